// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Foreign text made safe for a person's terminal, and how wide it is there; numbers as text.

#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace gpu_sleep {

/// The beginning of a text.
struct Character {
    char32_t code = 0;     ///< means nothing unless it is valid
    std::size_t bytes = 1; ///< 1 for a byte that is not UTF-8 with what follows it
    bool is_valid = false; ///< UTF-8: neither too long a form, nor a surrogate, nor beyond U+10FFFF
    /// Valid and visible: no control character (C0, DEL, C1), no line separator, no character that changes
    /// the direction of text, and no invisible character, also no joiner or selector of emoji: two different
    /// names must not look alike. Source: Unicode,
    /// Default_Ignorable_Code_Point, Bidi_Control.
    bool is_shown = false;
    /// 2 for East Asian wide ones and pictures, 0 for marks on the character before, else 1. Source: UAX #11.
    std::size_t columns = 1;
};

/// The first character of `text`, which is not empty.
[[nodiscard]] Character first_character(std::string_view text) noexcept;

/// `text` with '?' for every character that is not shown, for every byte that is not UTF-8, and for newlines:
/// a process chooses its own name, and must not steer the terminal of whoever lists it, nor write lines of
/// its own.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, of text that consists of lines: newlines stay.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// Copies printable(text) to `out`, as many whole characters as fit. Returns the number of bytes.
/// Allocates nothing.
[[nodiscard]] std::size_t print_into(std::span<char> out, std::string_view text) noexcept;

/// Columns of a terminal that printable text takes.
[[nodiscard]] std::size_t width_of(std::string_view text) noexcept;

/// At most `columns` columns of printable(text), and 3 at least; the last three of them "..." if some are
/// missing.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t columns);

/// "1 byte", "2 bytes". The noun's plural is formed by an s.
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);

/// Returns the word of `known` of which `word` is most likely a slip; empty if it looks like none.
[[nodiscard]] std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

/// The whole number that all of `text` is, or nothing.
template <class Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) noexcept {
    Number number{};
    const auto* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    return read.ec == std::errc{} && read.ptr == end ? std::optional(number) : std::nullopt;
}

} // namespace gpu_sleep
