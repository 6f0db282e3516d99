// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Other processes of a test: this very program, run again for a hidden test case that is the other one's
// part.

#pragma once

#include "support/catch.hpp"
#include "support/process.hpp"

#include <iostream>

namespace gpu_sleep::driver_testing {

/// Another run of this program, for one test case, whose standard output is that case's own; Catch2 has the
/// other.
class OtherRun : public test::Process {
public:
    OtherRun(std::string test_case, std::vector<std::string> environment)
        : test::Process(
              {{"/proc/self/exe", std::move(test_case), "--out", "/dev/stderr"}, std::move(environment)}) {}

    /// Waits until the other process says that it is ready.
    [[nodiscard]] bool is_ready() { return read_line() == "ready"; }
    /// Waits for the end of it; whether its test case was run and passed.
    [[nodiscard]] bool passed() {
        const bool ok = is_ready() && wait() == 0;
        if (!ok) UNSCOPED_INFO(errors());
        return ok;
    }
    void end_with(int number) {
        signal(number);
        wait();
    }
};

/// The other run says so.
inline void say_ready() {
    std::cout << "ready" << std::endl;
}

} // namespace gpu_sleep::driver_testing
