// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The one matcher whose name differs between the generations of Catch2.

#pragma once

#include "support/catch.hpp"

#include <string>

namespace gpu_sleep::test {

/// Matches a text that has `part` in it.
inline auto mentions(const std::string& part) {
#if __has_include(<catch2/catch_test_macros.hpp>)
    return Catch::Matchers::ContainsSubstring(part);
#else
    return Catch::Matchers::Contains(part);
#endif
}

} // namespace gpu_sleep::test
