// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Text of strangers on a terminal, character by character.

#include "base/text.hpp"

#include "support/catch.hpp"

#include <fmt/format.h>

#include <initializer_list>

using namespace gpu_sleep;
using namespace std::string_literals;

namespace {

/// By the form of so many bytes, right or wrong.
std::string encoded(char32_t code, std::size_t bytes) {
    constexpr std::array<unsigned, 5> k_leads = {0, 0, 0xC0, 0xE0, 0xF0};
    if (bytes == 1) return std::string(1, static_cast<char>(code));
    std::string text;
    for (std::size_t i = 1; i < bytes; ++i, code >>= 6U)
        text.insert(text.begin(), static_cast<char>(0x80U | (code & 0x3FU)));
    return text.insert(0, 1, static_cast<char>(k_leads[bytes] | code));
}

std::string utf8(char32_t code) {
    return encoded(code, code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);
}

} // namespace

TEST_CASE("Text: what steers a terminal is replaced by a mark", "[text]") {
    CHECK(printable("a\033[31mb\r\n\tc\x7F\0d"s) == "a?[31mb???c??d");
    for (char32_t code = 0; code < 0x20; ++code) CHECK(printable(utf8(code)) == "?");
    for (char32_t code = 0x7F; code < 0xA0; ++code) CHECK(printable(utf8(code)) == "?");
    CHECK(printable("\xC2\x9B"
                    "31m") == "?31m");
    CHECK(printable("\x9B"
                    "31m\x9D"
                    "0;x\x9C") == "?31m?0;x?");
}

TEST_CASE("Text: what is not shown, or turns the direction of text, is replaced by a mark", "[text]") {
    for (const auto& [first, last] : {std::pair<char32_t, char32_t>{0x061C, 0x061C},
                                      {0x200B, 0x200F},
                                      {0x2028, 0x202E},
                                      {0x2060, 0x206F},
                                      {0xFEFF, 0xFEFF},
                                      {0xFE00, 0xFE0F},
                                      {0x00AD, 0x00AD},
                                      {0x3164, 0x3164},
                                      {0xE0000, 0xE007F},
                                      {0xE0100, 0xE01EF}})
        for (auto code = first; code <= last; ++code) {
            INFO(fmt::format("U+{:04X}", static_cast<unsigned>(code)));
            CHECK(printable("a" + utf8(code) + "b") == "a?b");
        }
}

TEST_CASE("Text: bytes that are not UTF-8 are replaced, each by a mark; what follows stays", "[text]") {
    CHECK(printable("\xFF\xC3") == "??");
    CHECK(printable("\xC3(") == "?(");
    CHECK(printable("\xE2\x82") == "??");
    CHECK(printable("\x80x") == "?x");
    for (const char32_t code : {0xD800U, 0xDBFFU, 0xDC00U, 0xDFFFU})
        CHECK(printable(encoded(code, 3)) == "???");
    CHECK(printable(encoded(0x110000, 4)) == "????");
    CHECK(printable(encoded(0x1B, 2)) == "??"); // an escape, in too long a form
    CHECK(printable(encoded(0x1B, 3)) == "???");
    CHECK(printable(encoded(0x1B, 4)) == "????");
    CHECK(printable("\xFC\x80\x80\x80\x80\x9B") == "??????");
}

TEST_CASE("Text: what a person can read stays as it is", "[text]") {
    for (const std::string text :
         {"", "python3 serve.py --port 80", "gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "e\xCC\x81",
          "\xE6\xA8\xA1\xE5\x9E\x8B", "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D", "\xF0\x9F\xA6\x99"})
        CHECK(printable(text) == text);
    CHECK(printable_lines("a\nb\n\033c\n") == "a\nb\n?c\n");
}

TEST_CASE("Text: columns are those of a terminal", "[text]") {
    CHECK(width_of("") == 0);
    CHECK(width_of("abc") == 3);
    CHECK(width_of("gr\xC3\xBC\xC3\x9F") == 4);
    CHECK(width_of("e\xCC\x81") == 1);                // a letter and its accent
    CHECK(width_of("\xE6\xA8\xA1\xE5\x9E\x8B") == 4); // two ideographs
    CHECK(width_of("\xF0\x9F\xA6\x99") == 2);         // a llama
}

TEST_CASE("Text: what does not fit is cut between characters", "[text]") {
    std::array<char, 4> room{};
    CHECK(print_into(room, "a\033") == 2);
    CHECK(std::string(room.data(), 2) == "a?");
    CHECK(print_into(room, "abcdef") == 4);
    CHECK(print_into(room, "abc\xC3\xBC") == 3);
    CHECK(print_into(std::span(room).first(0), "a") == 0);
}

TEST_CASE("Text: one of a thing is not several", "[text]") {
    CHECK(counted(0, "byte") == "0 bytes");
    CHECK(counted(1, "byte") == "1 byte");
    CHECK(counted(2, "byte") == "2 bytes");
}

TEST_CASE("Text: a number is all of its text, and one that its type holds", "[text]") {
    for (const auto& [text, number] :
         std::initializer_list<std::pair<std::string_view, std::optional<int>>>{{"0", 0},
                                                                                {"007", 7},
                                                                                {"-12", -12},
                                                                                {"2147483647", 2147483647},
                                                                                {"2147483648", {}},
                                                                                {"", {}},
                                                                                {"-", {}},
                                                                                {"+1", {}},
                                                                                {" 1", {}},
                                                                                {"1 ", {}},
                                                                                {"1.0", {}},
                                                                                {"0x1", {}}}) {
        INFO(text);
        CHECK(parse_number<int>(text) == number);
    }
    CHECK_FALSE(parse_number<unsigned>("-1"));
}
