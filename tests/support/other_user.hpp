// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Doing something with the rights of another user, in a child.

#pragma once

#include "support/catch.hpp"

#include <grp.h>
#include <sys/types.h>
#include <sys/wait.h>

namespace gpu_sleep::test {

/// Users that own nothing else on a test machine.
inline constexpr uid_t k_one_user = 61'234;
inline constexpr uid_t k_other_user = 61'235;

/// What a child of `uid`, which belongs to no group but its own, makes of `body`. Only for root, and while
/// the test has no other thread. `body` makes no assertions.
template <class Body>
[[nodiscard]] bool as_user(uid_t uid, Body&& body) {
    constexpr int k_no_rights = 2;
    const auto child = ::fork();
    if (child == 0) {
        if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 ||
            ::setresuid(uid, uid, uid) != 0)
            ::_exit(k_no_rights);
        ::_exit(body() ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) != k_no_rights);
    return WEXITSTATUS(status) == 0;
}

} // namespace gpu_sleep::test
