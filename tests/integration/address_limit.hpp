// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that runs out of host memory, without harm to the machine.

#pragma once

#include "support/catch.hpp"

#include <fmt/format.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace gpu_sleep::test {

/// Lets `process` have `more` bytes of address space besides what it has; lifted at the end.
class AddressLimit {
public:
    AddressLimit(pid_t process, std::size_t more) : process_(process) {
        std::size_t pages = 0;
        std::ifstream(fmt::format("/proc/{}/statm", process)) >> pages;
        const rlimit limit{pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more, RLIM_INFINITY};
        REQUIRE(::prlimit(process_, RLIMIT_AS, &limit, &before_) == 0);
    }
    AddressLimit(const AddressLimit&) = delete;
    AddressLimit& operator=(const AddressLimit&) = delete;
    ~AddressLimit() { ::prlimit(process_, RLIMIT_AS, &before_, nullptr); }

private:
    pid_t process_;
    rlimit before_{};
};

} // namespace gpu_sleep::test
