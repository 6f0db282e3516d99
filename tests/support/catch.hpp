// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Catch2, whichever generation the system has, and the names that differ between them: version 2 is one
// header, version 3 several. And the standard headers that most tests name, once for all of them.

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

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

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
