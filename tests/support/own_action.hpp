// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// For tests of what is the program's and not the driver's: its actions for signals, and how a child ends.

#pragma once

#include "support/driver_testing.hpp"

#include <sys/wait.h>

namespace gpu_sleep::driver_testing {

/// The program's action for SIGSEGV, in place of the test framework's; over it the driver has set its own.
class OwnAction : test::NotCopied {
public:
    explicit OwnAction(void (*handler)(int)) : outer_before_(before) {
        struct sigaction own {};
        own.sa_handler = handler;
        REQUIRE(::sigaction(SIGSEGV, &own, &before) == 0);
        let_driver_set_its_handler();
    }
    ~OwnAction() {
        ::sigaction(SIGSEGV, &before, nullptr);
        before = outer_before_;
    }

    void let_driver_set_its_handler() const {
        const Range range;
        CHECK(cuMemsetD8(range.address, 1, range.bytes) == CUDA_SUCCESS);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    }

    static inline struct sigaction before {}; ///< the action that the innermost one took the place of

private:
    struct sigaction outer_before_;
};

/// The signal that ends a child which does `what`; 0 if it goes on.
template <class What>
int signal_that_ends(What&& what) {
    const auto child = ::fork();
    if (child == 0) {
        what();
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

} // namespace gpu_sleep::driver_testing
