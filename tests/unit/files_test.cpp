// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading small files, and the way to a file: which links are followed, and where it leads.

#include "base/files.hpp"
#include "base/units.hpp"
#include "support/other_user.hpp"

using namespace gpu_sleep;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> lines;
    while (const auto line = take_line(text)) lines.emplace_back(*line);
    return lines;
}

/// Whether the descriptor that reads `path` would go to what the process executes; nothing if there is none.
std::optional<bool> is_inherited(const std::filesystem::path& path) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) != path) continue;
        const int fd = std::stoi(entry.path().filename());
        if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    }
    return {};
}

/// Whether both mean the same directory.
bool leads_to(const fs::path& path, const fs::path& parent) {
    const auto place = find_place(path, LastLink::kept);
    return place && FileIdentity::of(place->directory.get()) == FileIdentity::of(AT_FDCWD, parent.c_str());
}

bool is_refused(const fs::path& path) {
    return !find_place(path, LastLink::kept) && errno == ELOOP;
}

} // namespace

TEST_CASE("Small file: lines are taken one by one, the last with or without its end", "[small_file]") {
    using Lines = std::vector<std::string>;
    CHECK(lines_of("").empty());
    CHECK(lines_of("\n") == Lines{""});
    CHECK(lines_of("a") == Lines{"a"});
    CHECK(lines_of("a\nb\n") == Lines{"a", "b"});
    CHECK(lines_of("a\n\nb") == Lines{"a", "", "b"});
}

TEST_CASE("Small file: all of it is read, and what cannot be read is nothing", "[small_file]") {
    const test::Scratch scratch;
    const std::string text(10'000, 'x');
    std::ofstream(scratch.file("long")) << text;
    CHECK(read_small_file(scratch.file("long")) == text);
    CHECK_FALSE(read_small_file(scratch.file("missing")));
    CHECK_FALSE(read_small_file(std::filesystem::path(scratch.file("long")).parent_path()));
}

TEST_CASE("Small file: no program that is executed meanwhile inherits the descriptor", "[small_file]") {
    const test::Scratch scratch;
    const std::filesystem::path path = scratch.file("pipe");
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    auto text = std::async(std::launch::async, [&] { return read_small_file(path); });
    UniqueFd writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC)); // once somebody reads
    REQUIRE(writer);
    std::optional<bool> inherits; // the reader's call may return a little later
    for (int tries = 1000; !(inherits = is_inherited(path)) && tries > 0; --tries)
        std::this_thread::sleep_for(Milliseconds(10));
    REQUIRE(inherits);
    CHECK_FALSE(*inherits);
    REQUIRE(::write(writer.get(), "some", 4) == 4);
    writer.reset();
    CHECK(text.get() == "some");
}

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
