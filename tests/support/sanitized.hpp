// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a sanitizer looks on.

#pragma once

namespace gpu_sleep::test {

/// Whether the tests and the programs they start are built with a sanitizer, which takes memory and time.
[[nodiscard]] constexpr bool is_sanitized() noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
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

/// The stride of a sweep of which each step takes a program's start or more: `step` under a sanitizer, or 1.
[[nodiscard]] constexpr int sanitized_step(int step) noexcept {
    return is_sanitized() ? step : 1;
}

} // namespace gpu_sleep::test
