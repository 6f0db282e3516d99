// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Catch2, whichever generation the system has, and the names that differ between them. Version 2 is one
// header, version 3 several.

#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace gpu_sleep::test {

/// Matches a text that has `part` in it.
inline auto mentions(const std::string& part) {
#ifdef SKIP
    return Catch::Matchers::ContainsSubstring(part);
#else
    return Catch::Matchers::Contains(part);
#endif
}

/// To end a test, or a section, with: `return skip("why");`. Catch2 3 counts it as skipped and version 2 as
/// passed, so the line is what tells: scripts/test gathers them.
inline void skip(const std::string& why) {
#ifdef SKIP
    SKIP("skipped: " << why);
#else
    WARN("skipped: " << why);
#endif
}

} // namespace gpu_sleep::test
