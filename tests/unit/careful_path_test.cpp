// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which links are followed on the way to a file, and where the ways lead.

#include "base/files.hpp"

#include "support/other_user.hpp"

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;

/// Whether both mean the same directory.
bool leads_to(const fs::path& path, const fs::path& parent) {
    const auto place = find_place(path, LastLink::kept);
    return place && FileIdentity::of(place->directory.get()) == FileIdentity::of(AT_FDCWD, parent.c_str());
}

bool is_refused(const fs::path& path) {
    return !find_place(path, LastLink::kept) && errno == ELOOP;
}

} // namespace

TEST_CASE("Careful paths: lead where the kernel's own do", "[careful_path]") {
    const test::Scratch scratch;
    const auto inner = scratch.path() / "a/b";
    fs::create_directories(inner);
    fs::create_symlink("a", scratch.path() / "to_a");
    fs::create_symlink(inner, scratch.path() / "a/to_b");
    fs::create_symlink("round", scratch.path() / "round");
    for (const auto* way : {"a/b/new", "to_a/b/new", "to_a/to_b/../b/./new", "to_a/to_b/new/", "a//b/new"})
        CHECK(leads_to(scratch.path() / way, inner));
    CHECK(leads_to("/proc/self/root" + (inner / "new").string(), inner));
    CHECK(leads_to("/", "/"));
    CHECK(leads_to("new", "."));
    const auto link = scratch.path() / "to_a";
    CHECK(find_place(link, LastLink::kept)->name == "to_a");
    CHECK(find_place(link, LastLink::followed)->name == "a");
    CHECK(is_refused(scratch.path() / "round/new"));
    CHECK((!find_place(scratch.path() / "missing/new", LastLink::kept) && errno == ENOENT));
}

TEST_CASE("Careful paths: a directory that can be entered but not read is no hindrance", "[careful_path]") {
    if (::geteuid() != 0) return test::skip_without_right("become another user");
    const test::Scratch scratch;
    REQUIRE(::chmod(scratch.path().c_str(), 0711) == 0);
    CHECK(test::as_user(test::k_one_user, [&] { return leads_to(scratch.path() / "new", scratch.path()); }));
}

TEST_CASE("Careful paths: links of root and of the user are followed, others' are not", "[careful_path]") {
    if (::geteuid() != 0) return test::skip_without_right("become other users");
    const test::Scratch scratch;
    const auto common = scratch.path() / "common";
    fs::create_directory(common);
    const auto way = common / "link/new";
    fs::create_symlink(scratch.path(), common / "link");
    const auto user_is_refused = [&] {
        return test::as_user(test::k_one_user, [&] { return is_refused(way); });
    };
    REQUIRE(::chmod(scratch.path().c_str(), 0755) == 0);
    // Root's own link, by which root goes only where nobody else could have put it.
    for (const mode_t mode : {0755, 01777, 0770, 0777}) {
        REQUIRE(::chmod(common.c_str(), mode) == 0);
        CHECK(is_refused(way) == (mode == 0770 || mode == 0777));
        if (mode != 0770) CHECK_FALSE(user_is_refused());
    }
    REQUIRE(::chmod(common.c_str(), 01777) == 0);
    REQUIRE(::lchown((common / "link").c_str(), test::k_one_user, test::k_one_user) == 0);
    CHECK_FALSE(user_is_refused());
    CHECK(is_refused(way));
    REQUIRE(::lchown((common / "link").c_str(), test::k_other_user, test::k_other_user) == 0);
    CHECK(user_is_refused());
    CHECK(is_refused(way));
    REQUIRE(::chmod(common.c_str(), 0755) == 0); // moved here by root, perhaps
    CHECK(is_refused(way));
    // A directory of somebody else's.
    REQUIRE(::lchown((common / "link").c_str(), 0, 0) == 0);
    REQUIRE(::chown(common.c_str(), test::k_other_user, test::k_other_user) == 0);
    CHECK(is_refused(way));
}
