// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Devices whose memory several host programs compete for.

#pragma once

#include "support/host.hpp"

namespace gpu_sleep::test {

/// Devices of so many bytes each that several programs share, with a directory for what tests note of them.
class SharedDevices {
public:
    explicit SharedDevices(std::uint64_t bytes) : bytes_(bytes) {}

    [[nodiscard]] Arguments environment() const {
        return {"GPU_SLEEP_SIM_STATE=" + file("devices"), "GPU_SLEEP_SIM_MEMORY=" + std::to_string(bytes_)};
    }
    [[nodiscard]] std::string file(const std::string& name) const { return scratch_.file(name); }

private:
    Scratch scratch_;
    std::uint64_t bytes_;
};

/// A call of the simulated driver that does not go on before release(), however slow the machine is.
class HeldCall {
public:
    /// `name` is the call's. For processes with its environment().
    explicit HeldCall(std::string name) : name_(std::move(name)) {}

    [[nodiscard]] Arguments environment() const {
        return {"GPU_SLEEP_SIM_DELAY=" + name_ + ":until=" + file_};
    }
    void release() const { std::ofstream(file_) << "now"; }

private:
    Scratch scratch_;
    std::string name_;
    std::string file_ = scratch_.file("released");
};

} // namespace gpu_sleep::test
