// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Tests that cannot run for want of a right, and say so.

#pragma once

#include "support/catch.hpp"

namespace gpu_sleep::test {

/// Skips a test for want of a right, such as "mount file systems", as skip() does. With
/// GPU_SLEEP_REQUIRE_RIGHTS=1 the test fails.
inline void skip_without_right(const std::string& right) {
    const char* const required = std::getenv("GPU_SLEEP_REQUIRE_RIGHTS");
    if (required && required == std::string("1")) FAIL("this process may not " << right);
    skip("this process may not " + right);
}

} // namespace gpu_sleep::test
