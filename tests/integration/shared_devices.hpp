// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Devices whose memory several host programs compete for.

#pragma once

#include "support/host.hpp"
#include "support/scratch.hpp"

#include <string>
#include <utility>

namespace gpu_sleep::test {

/// Two devices' worth of memory that several host programs share.
class SharedDevices {
public:
    explicit SharedDevices(std::string bytes) : bytes_(std::move(bytes)) {}

    [[nodiscard]] Arguments environment() const {
        return {"GPU_SLEEP_SIM_STATE=" + scratch_.file("devices"), "GPU_SLEEP_SIM_MEMORY=" + bytes_};
    }

private:
    Scratch scratch_;
    std::string bytes_;
};

} // namespace gpu_sleep::test
