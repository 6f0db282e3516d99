// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Bytes, times and numbers with units, as people write them, and the time that is left until a deadline.

#pragma once

#include "base/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace gpu_sleep {

/// A count of bytes. Plain, because it is added, compared and printed everywhere.
using Bytes = std::uint64_t;

inline constexpr Bytes k_kib = Bytes{1} << 10;
inline constexpr Bytes k_mib = Bytes{1} << 20;
inline constexpr Bytes k_gib = Bytes{1} << 30;

/// A part of something, in bytes from its start.
struct Span {
    Bytes offset = 0;
    Bytes bytes = 0;
    [[nodiscard]] Bytes end() const noexcept { return offset + bytes; }
    friend bool operator==(const Span&, const Span&) = default;
};

/// The sum of what `bytes_of`, a function or a member, says of each of `items`.
template <class Items, class BytesOf>
[[nodiscard]] Bytes sum_of(const Items& items, BytesOf&& bytes_of) {
    Bytes sum = 0;
    for (const auto& item : items) sum += std::invoke(bytes_of, item);
    return sum;
}

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

[[nodiscard]] inline double seconds_since(Clock::time_point start) noexcept {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Rounds `value` up to a multiple of `step`, a power of two.
[[nodiscard]] constexpr Bytes round_up(Bytes value, Bytes step) noexcept {
    return (value + step - 1) & ~(step - 1);
}

/// The longest duration that is accepted, so that deadlines stay within the clock's range.
inline constexpr Milliseconds k_max_duration = std::chrono::hours(24) * 10'000;

/// Reads "15m", "250ms", "1.5h" or "0". Units: ms, s, m, min, h, d. At most k_max_duration. Errors:
/// invalid_argument.
[[nodiscard]] Result<Milliseconds> parse_duration(std::string_view text);

/// Reads "40GiB", "1.5GB" or "0". Units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, and K, M, G, T for the binary
/// ones. Errors: invalid_argument.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

/// "61.2 GiB", "512 B": three or four significant digits, binary units.
[[nodiscard]] std::string format_bytes(Bytes bytes);

/// "0.29 s", "1.4 ms", "2 h 5 min".
[[nodiscard]] std::string format_seconds(double seconds);

/// The timeout for poll(2): rounded up, so that the deadline has passed afterwards; 0 once it has.
[[nodiscard]] inline int milliseconds_until(Clock::time_point deadline) noexcept {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, std::numeric_limits<int>::max()));
}

} // namespace gpu_sleep
