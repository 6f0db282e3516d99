// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decoding UTF-8, and what of it is shown.

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace gpu_sleep {
namespace {

constexpr char k_mark = '?';

/// The number of changes that make one word of the other; a swap of two letters is one.
std::size_t distance(std::string_view one, std::string_view other) {
    std::vector<std::vector<std::size_t>> far(one.size() + 1, std::vector<std::size_t>(other.size() + 1));
    for (std::size_t i = 0; i <= one.size(); ++i)
        for (std::size_t j = 0; j <= other.size(); ++j) {
            far[i][j] = i + j;
            if (i == 0 || j == 0) continue;
            const auto replaced = far[i - 1][j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1);
            far[i][j] = std::min({far[i - 1][j] + 1, far[i][j - 1] + 1, replaced});
            if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1])
                far[i][j] = std::min(far[i][j], far[i - 2][j - 2] + 1);
        }
    return far[one.size()][other.size()];
}

/// First and last.
struct Range {
    char32_t first = 0;
    char32_t last = 0;
};

constexpr std::array k_hidden = {
    Range{0x0080, 0x009F},   Range{0x00AD, 0x00AD},   Range{0x034F, 0x034F}, Range{0x061C, 0x061C},
    Range{0x115F, 0x1160},   Range{0x17B4, 0x17B5},   Range{0x180B, 0x180F}, Range{0x200B, 0x200F},
    Range{0x2028, 0x202E},   Range{0x2060, 0x206F},   Range{0x3164, 0x3164}, Range{0xFE00, 0xFE0F},
    Range{0xFEFF, 0xFEFF},   Range{0xFFA0, 0xFFA0},   Range{0xFFF0, 0xFFFB}, Range{0x1BCA0, 0x1BCA3},
    Range{0x1D173, 0x1D17A}, Range{0xE0000, 0xE0FFF},
};

/// Marks of the scripts that are met most.
constexpr std::array k_narrow = {
    Range{0x0300, 0x036F}, Range{0x0483, 0x0489}, Range{0x0591, 0x05BD}, Range{0x0610, 0x061A},
    Range{0x064B, 0x065F}, Range{0x1AB0, 0x1AFF}, Range{0x1DC0, 0x1DFF}, Range{0x20D0, 0x20FF},
    Range{0x302A, 0x302D}, Range{0x3099, 0x309A}, Range{0xFE20, 0xFE2F},
};

constexpr std::array k_wide = {
    Range{0x1100, 0x115F},   Range{0x2E80, 0x303E},   Range{0x3041, 0x4DBF},   Range{0x4E00, 0xA4CF},
    Range{0xA960, 0xA97C},   Range{0xAC00, 0xD7A3},   Range{0xF900, 0xFAFF},   Range{0xFE30, 0xFE6F},
    Range{0xFF01, 0xFF60},   Range{0xFFE0, 0xFFE6},   Range{0x1F300, 0x1F64F}, Range{0x1F680, 0x1F6FF},
    Range{0x1F900, 0x1F9FF}, Range{0x20000, 0x3FFFD},
};

template <std::size_t N>
bool is_in(const std::array<Range, N>& ranges, char32_t code) noexcept {
    return std::any_of(ranges.begin(), ranges.end(),
                       [=](const Range& range) { return range.first <= code && code <= range.last; });
}

/// How many bytes a character has that begins with `byte`, and the least code that needs so many; 0 bytes for
/// none. Not for ASCII.
struct Form {
    std::size_t bytes = 0;
    char32_t least = 0;
};

constexpr Form form_of(unsigned char byte) noexcept {
    if (byte >= 0xC0 && byte < 0xE0) return {2, 0x80};
    if (byte >= 0xE0 && byte < 0xF0) return {3, 0x800};
    if (byte >= 0xF0 && byte < 0xF8) return {4, 0x10000};
    return {};
}

/// Gives `take` what printable() shows of `text`, piece by piece, until it returns false.
template <class Take>
void show(std::string_view text, bool lines, Take&& take) {
    constexpr std::string_view k_marked(&k_mark, 1);
    while (!text.empty()) {
        const auto next = first_character(text);
        const bool stays = next.is_shown || (lines && text.front() == '\n');
        if (!take(stays ? text.substr(0, next.bytes) : k_marked)) return;
        text.remove_prefix(next.bytes);
    }
}

std::string shown(std::string_view text, bool lines) {
    std::string safe;
    safe.reserve(text.size());
    show(text, lines, [&](std::string_view piece) {
        safe += piece;
        return true;
    });
    return safe;
}

} // namespace

Character first_character(std::string_view text) noexcept {
    const auto lead = static_cast<unsigned char>(text.front());
    Character character;
    if (lead < 0x80) { // nearly all
        character.code = lead;
        character.is_valid = true;
        character.is_shown = lead >= 0x20 && lead != 0x7F;
        return character;
    }
    const auto form = form_of(lead);
    if (form.bytes == 0 || form.bytes > text.size()) return character;
    char32_t code = lead & (0x7FU >> form.bytes);
    for (std::size_t i = 1; i < form.bytes; ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if ((byte & 0xC0U) != 0x80U) return character;
        code = code << 6U | (byte & 0x3FU);
    }
    if (code < form.least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return character;
    character.code = code;
    character.bytes = form.bytes;
    character.is_valid = true;
    character.is_shown = !is_in(k_hidden, code);
    character.columns = is_in(k_narrow, code) ? 0 : is_in(k_wide, code) ? 2 : 1;
    return character;
}

std::string printable(std::string_view text) {
    return shown(text, false);
}

std::string printable_lines(std::string_view text) {
    return shown(text, true);
}

std::size_t print_into(std::span<char> out, std::string_view text) noexcept {
    std::size_t size = 0;
    show(text, false, [&](std::string_view piece) {
        if (piece.size() > out.size() - size) return false;
        std::memcpy(out.data() + size, piece.data(), piece.size());
        size += piece.size();
        return true;
    });
    return size;
}

std::size_t width_of(std::string_view text) noexcept {
    std::size_t columns = 0;
    while (!text.empty()) {
        const auto next = first_character(text);
        columns += next.columns;
        text.remove_prefix(next.bytes);
    }
    return columns;
}

std::string shortened(std::string_view text, std::size_t columns) {
    constexpr std::string_view k_ellipsis = "...";
    const auto most_characters = 2 * columns; // marks take no column, and are as many as a stranger likes
    auto safe = printable(text);
    std::size_t characters = 0;
    std::size_t width = 0;
    std::size_t end = 0; // of what stays beside the ellipsis
    for (std::size_t at = 0; at < safe.size();) {
        const auto next = first_character(std::string_view(safe).substr(at));
        at += next.bytes;
        width += next.columns;
        if (width > columns || ++characters > most_characters) return safe.substr(0, end).append(k_ellipsis);
        if (width + k_ellipsis.size() <= columns) end = at;
    }
    return safe;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
    constexpr std::size_t k_longest = 64; // a longer one is no slip
    std::string_view nearest;
    if (word.size() > k_longest) return nearest;
    auto least = std::min(word.size() / 3 + 2, word.size()); // of a letter or two, all would be a slip
    for (const auto& each : known)
        if (const auto far = distance(word, each); far < least) {
            least = far;
            nearest = each;
        }
    return nearest;
}

std::string counted(std::uint64_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

} // namespace gpu_sleep
