// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which programs a deny list means.

#include "login/deny_list.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep::login;

namespace {

constexpr Program k_script{"/usr/bin/python3.11", "python", "work/train.py"};

/// In pieces of so many bytes.
bool is_denied(const std::string& text, std::size_t piece) {
    DenyList list(k_script);
    for (std::size_t at = 0; at < text.size(); at += piece)
        list.add(text.data() + at, std::min(piece, text.size() - at));
    return list.denies();
}

} // namespace

TEST_CASE("Deny list: a pattern is all of a text, with stars and question marks", "[deny_list]") {
    CHECK(matches("", ""));
    CHECK(matches("*", ""));
    CHECK(matches("train.py", "train.py"));
    CHECK(matches("t*n*.py", "train_one.py"));
    CHECK(matches("*.p?", "a.py.py"));
    CHECK(matches("a*a*b", "aaaaab"));
    CHECK_FALSE(matches("", "a"));
    CHECK_FALSE(matches("?", ""));
    CHECK_FALSE(matches("train", "train.py"));
    CHECK_FALSE(matches("a*a*c", "aaaaab"));
    CHECK_FALSE(matches(std::string(2'000, '*').append("b").c_str(), std::string(4'000, 'a').c_str()));
}

TEST_CASE("Deny list: a name means a file, a call or a script, and a path means files", "[deny_list]") {
    for (const auto* meant :
         {"python3.11", "python", "python*", "train.py", "/usr/bin/*", "*/train.py", "work/*"})
        CHECK(is_meant(meant, k_script));
    for (const auto* other : {"python3", "rain.py", "/usr/bin/python", "train.py/", "usr"})
        CHECK_FALSE(is_meant(other, k_script));
    CHECK_FALSE(is_meant("*", {}));
}

TEST_CASE("Deny list: lines are patterns but for comments, blanks and what is too long", "[deny_list]") {
    for (const std::size_t piece : {1, 3, 1'000'000}) {
        CHECK(is_denied("a\ntrain.py\nb\n", piece));
        CHECK(is_denied(" \t train.py \r\n", piece));
        CHECK(is_denied("x\ntrain.py", piece));
        CHECK(is_denied(std::string(1 << 20, 'a') + "\ntrain.py\n", piece));
        CHECK_FALSE(is_denied("", piece));
        CHECK_FALSE(is_denied("\n\n", piece));
        CHECK_FALSE(is_denied("# train.py\n", piece));
        CHECK_FALSE(is_denied(std::string(1 << 20, '*'), piece));
        CHECK_FALSE(is_denied("train.py x\n", piece));
    }
}

TEST_CASE("Deny list: a file that cannot be read denies nothing", "[deny_list]") {
    const gpu_sleep::test::Scratch scratch;
    CHECK_FALSE(is_denied_by(scratch.file("missing").c_str(), k_script));
    CHECK_FALSE(is_denied_by(scratch.path().c_str(), k_script));
    std::ofstream(scratch.file("list")) << "train.py";
    CHECK(is_denied_by(scratch.file("list").c_str(), k_script));
}
