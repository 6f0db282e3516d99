// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much memory of nobody's file a process has.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace gpu_sleep::test {

/// Resident memory of nobody's file, in bytes; 0 if the process has gone. The simulated devices are shared
/// memory, and do not count. Source: proc_pid_status(5).
inline std::size_t anonymous_bytes(pid_t process) {
    std::ifstream status("/proc/" + std::to_string(process) + "/status");
    for (std::string word; status >> word;) {
        if (word != "RssAnon:") continue;
        std::size_t kib = 0;
        status >> kib;
        return kib << 10U;
    }
    return 0;
}

} // namespace gpu_sleep::test
