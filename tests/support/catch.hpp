// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Catch2, whichever generation the system has, and the names that differ between them: version 2 is one
// header, version 3 several. And what most tests need besides: standard headers, once for all of them, what
// skips a test, and a directory for its files.

#pragma once

#include "support/not_copied.hpp"

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
#include <iterator>
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

using namespace gpu_sleep; // a test that names this namespace need not name that one

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

/// Skips a test for want of a right, such as "mount file systems", as skip() does. With
/// GPU_SLEEP_REQUIRE_RIGHTS=1 the test fails.
inline void skip_without_right(const std::string& right) {
    const char* const required = std::getenv("GPU_SLEEP_REQUIRE_RIGHTS");
    if (required && required == std::string("1")) FAIL("this process may not " << right);
    skip("this process may not " + right);
}

/// What `found`, a Result or an optional, holds; it must hold something.
template <class Found>
[[nodiscard]] auto need(Found found) {
    if constexpr (requires { found.error().message; })
        if (!found) UNSCOPED_INFO(found.error().message);
    REQUIRE(found);
    return *std::move(found);
}

/// The error that `result` holds; it must hold one.
template <class Result>
[[nodiscard]] auto error_of(const Result& result) {
    REQUIRE_FALSE(result);
    return result.error();
}

/// The one way in which tests get a directory: made empty under `parent`, with mode 0700, and removed with
/// all that is in it at the end.
class Scratch : NotCopied {
public:
    explicit Scratch(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
        auto name = (parent / "gpu-sleep-test-XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~Scratch() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ / name; }
    /// How many files and directories are in it.
    [[nodiscard]] std::size_t file_count() const {
        const auto entries = std::filesystem::directory_iterator(path_);
        return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
    }

private:
    std::filesystem::path path_;
};

} // namespace gpu_sleep::test
