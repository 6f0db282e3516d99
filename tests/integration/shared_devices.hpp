// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Devices whose memory several host programs compete for.

#pragma once

#include "host.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace gpu_sleep::test {

/// Two devices' worth of memory that several host programs share.
class SharedDevices {
public:
    explicit SharedDevices(const std::string& bytes)
        : file_(fmt::format("/tmp/gpu-sleep-devices-{}", ::getpid())), bytes_(bytes) {}
    SharedDevices(const SharedDevices&) = delete;
    SharedDevices& operator=(const SharedDevices&) = delete;
    ~SharedDevices() {
        std::error_code ignored;
        std::filesystem::remove(file_, ignored);
    }

    [[nodiscard]] Arguments environment() const {
        return {"GPU_SLEEP_SIM_STATE=" + file_, "GPU_SLEEP_SIM_MEMORY=" + bytes_};
    }

private:
    std::string file_;
    std::string bytes_;
};

} // namespace gpu_sleep::test
