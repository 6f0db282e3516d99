// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a sanitizer looks on.

#pragma once

#include <cstdlib>

namespace gpu_sleep::test {

/// Whether the test, or the programs that it starts, are built with a sanitizer, which takes memory and time.
[[nodiscard]] inline bool is_sanitized() noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#endif
#endif
    return std::getenv("GPU_SLEEP_SANITIZED_BUILD") != nullptr; // see command_file()
}

/// Whether the thread sanitizer looks on: it holds signals back, and the threads of its own take none.
[[nodiscard]] constexpr bool is_thread_sanitized() noexcept {
#if defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

} // namespace gpu_sleep::test
