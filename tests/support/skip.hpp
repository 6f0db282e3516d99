// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Tests that cannot run in this build or on this machine, and say so.

#pragma once

#include "support/catch.hpp"

#include <cstdlib>
#include <string>

namespace gpu_sleep::test {

/// To end a test, or a section, with: `return skip("why");`. Catch2 3 counts it as skipped and version 2 as
/// passed, so the line is what tells: scripts/test gathers them.
inline void skip(const std::string& why) {
#ifdef SKIP
    SKIP("skipped: " << why);
#else
    WARN("skipped: " << why);
#endif
}

/// The same for want of a right, such as "mount file systems". With GPU_SLEEP_REQUIRE_RIGHTS=1 the test
/// fails.
inline void skip_without_right(const std::string& right) {
    const char* const required = std::getenv("GPU_SLEEP_REQUIRE_RIGHTS");
    if (required && required == std::string("1")) FAIL("this process may not " << right);
    skip("this process may not " + right);
}

} // namespace gpu_sleep::test
