// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers with units.

#include "base/units.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace gpu_sleep {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr std::array k_durations = {
    Unit{"ms", 1},         Unit{"s", 1000},        Unit{"m", 60'000.0},
    Unit{"min", 60'000.0}, Unit{"h", 3'600'000.0}, Unit{"d", 86'400'000.0},
};

constexpr std::array k_sizes = {
    Unit{"B", 1},        Unit{"K", 0x1p10},   Unit{"KiB", 0x1p10}, Unit{"kB", 1e3},     Unit{"M", 0x1p20},
    Unit{"MiB", 0x1p20}, Unit{"MB", 1e6},     Unit{"G", 0x1p30},   Unit{"GiB", 0x1p30}, Unit{"GB", 1e9},
    Unit{"T", 0x1p40},   Unit{"TiB", 0x1p40}, Unit{"TB", 1e12},
};

/// Returns the number times its unit's factor, or nothing if `text` is not one non-negative number with one
/// known unit. Zero needs none.
template <std::size_t N>
std::optional<double> parse_scaled(std::string_view text, const std::array<Unit, N>& units) {
    double number = 0;
    const auto [end, failure] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (failure != std::errc{} || !std::isfinite(number) || std::signbit(number)) return std::nullopt;
    auto name = text.substr(static_cast<std::size_t>(end - text.data()));
    if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    if (name.empty() && number == 0) return 0;
    const auto unit = std::find_if(units.begin(), units.end(), [=](const Unit& u) { return u.name == name; });
    if (unit == units.end()) return std::nullopt;
    return number * unit->factor;
}

} // namespace

Result<Milliseconds> parse_duration(std::string_view text) {
    const auto value = parse_scaled(text, k_durations);
    if (value && *value > static_cast<double>(k_max_duration.count()))
        return make_error(ErrorCode::invalid_argument, "'{}' is too long; the limit is 10000d", text);
    if (!value)
        return make_error(ErrorCode::invalid_argument,
                          "'{}' is not a duration; write it as 250ms, 30s, 15m or 2h", text);
    return Milliseconds(static_cast<Milliseconds::rep>(std::llround(*value)));
}

Result<Bytes> parse_bytes(std::string_view text) {
    const auto value = parse_scaled(text, k_sizes);
    constexpr double k_max = 0x1p63;
    if (value && *value >= k_max)
        return make_error(ErrorCode::invalid_argument, "'{}' is too large; use less than 8388608TiB", text);
    if (!value)
        return make_error(ErrorCode::invalid_argument,
                          "'{}' is not a size; write it as 512MiB, 40GiB or 1.5GB", text);
    return static_cast<Bytes>(std::llround(*value));
}

std::string format_bytes(Bytes bytes) {
    constexpr std::array k_names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < k_kib) return fmt::format("{} B", bytes);
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < k_names.size()) {
        value /= 1024;
        ++unit;
    }
    return value < 9.995 ? fmt::format("{:.2f} {}", value, k_names[unit])
                         : fmt::format("{:.1f} {}", value, k_names[unit]);
}

std::string format_seconds(double seconds) {
    if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
    if (seconds < 0.09995) return fmt::format("{:.1f} ms", seconds * 1e3);
    if (seconds < 59.995) return fmt::format("{:.2f} s", seconds);
    const auto whole = std::llround(seconds);
    if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
    if (whole < 86'400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
    return fmt::format("{} d {} h", whole / 86'400, whole % 86'400 / 3600);
}

} // namespace gpu_sleep
