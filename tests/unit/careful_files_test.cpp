// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files of others: read and replaced.

#include "cli/login/careful_files.hpp"

#include "support/catch.hpp"
#include "support/files_of.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;

namespace {

namespace fs = std::filesystem;

struct stat status_of(const fs::path& file) {
    struct stat status = {};
    REQUIRE(::lstat(file.c_str(), &status) == 0);
    return status;
}

} // namespace

TEST_CASE("Careful files: a file is replaced whole, with the owner and mode it had", "[careful_files]") {
    const test::Scratch scratch;
    const auto file = scratch.path() / "file";
    CHECK_FALSE(read_carefully(file)->has_value());
    REQUIRE(write_carefully(file, "one", 0640));
    CHECK((status_of(file).st_mode & 07777) == 0640);
    CHECK(*read_carefully(file) == "one");
    REQUIRE(::chmod(file.c_str(), 0604) == 0);
    const bool is_root = ::geteuid() == 0;
    if (is_root) REQUIRE(::chown(file.c_str(), 12, 34) == 0);
    const auto before = status_of(file);
    REQUIRE(write_carefully(file, "two", 0640));
    const auto after = status_of(file);
    CHECK(test::content_of(file) == "two");
    CHECK(after.st_mode == before.st_mode);
    CHECK(after.st_uid == before.st_uid);
    CHECK(after.st_gid == before.st_gid);
    CHECK(after.st_ino != before.st_ino);
    CHECK(scratch.file_count() == 1);
    REQUIRE(remove_carefully(file));
    REQUIRE(remove_carefully(file));
    REQUIRE(remove_carefully(scratch.path() / "missing" / "file"));
    CHECK(scratch.file_count() == 0);
}

TEST_CASE("Careful files: a link to a file stays, and its file is replaced", "[careful_files]") {
    const test::Scratch scratch;
    fs::create_directory(scratch.path() / "dotfiles");
    std::ofstream(scratch.file("dotfiles/profile")) << "one";
    fs::create_symlink("dotfiles/../dotfiles/profile", scratch.path() / "link");
    REQUIRE(write_carefully(scratch.path() / "link", "two", 0644));
    CHECK(fs::is_symlink(scratch.path() / "link"));
    CHECK(test::content_of(scratch.path() / "dotfiles/profile") == "two");
    fs::create_symlink("round", scratch.path() / "round");
    CHECK_FALSE(read_carefully(scratch.path() / "round"));
    CHECK_FALSE(write_carefully(scratch.path() / "round", "x", 0644));
}

TEST_CASE("Careful files: what is not a regular file, or is too long, is refused", "[careful_files]") {
    const test::Scratch scratch;
    REQUIRE(::mkfifo(scratch.file("pipe").c_str(), 0600) == 0);
    for (const auto& file : {scratch.path() / "pipe", scratch.path()}) {
        CHECK(read_carefully(file).error().code == ErrorCode::invalid_argument);
        CHECK(write_carefully(file, "x", 0600).error().code == ErrorCode::invalid_argument);
    }
    std::ofstream(scratch.file("long")) << std::string(k_max_careful_file_bytes + 1, 'x');
    CHECK(read_carefully(scratch.path() / "long").error().code == ErrorCode::invalid_argument);
    CHECK(scratch.file_count() == 2);
}

TEST_CASE("Careful files: missing directories are made, told, and removed if empty", "[careful_files]") {
    const test::Scratch scratch;
    std::vector<fs::path> made;
    REQUIRE(make_directories(scratch.path() / "a/b", Visitors::by_umask, made));
    CHECK(made == std::vector<fs::path>{scratch.path() / "a", scratch.path() / "a/b"});
    REQUIRE(make_directories(scratch.path() / "a/b", Visitors::by_umask, made));
    CHECK(made.size() == 2);
    remove_if_empty(scratch.path() / "a");
    CHECK(fs::exists(scratch.path() / "a/b"));
    remove_if_empty(scratch.path() / "a/b");
    remove_if_empty(scratch.path() / "a");
    CHECK(scratch.file_count() == 0);
    std::ofstream(scratch.file("file")) << "x";
    CHECK_FALSE(make_directories(scratch.path() / "file/a", Visitors::all, made));
}

TEST_CASE("Careful files: all may enter what is made for all, whatever the umask is", "[careful_files]") {
    const test::Scratch scratch;
    std::vector<fs::path> made;
    const auto before = ::umask(077);
    REQUIRE(make_directories(scratch.path() / "own", Visitors::by_umask, made));
    REQUIRE(make_directories(scratch.path() / "a/b", Visitors::all, made));
    ::umask(before);
    CHECK((status_of(scratch.path() / "own").st_mode & 07777) == 0700);
    CHECK((status_of(scratch.path() / "a").st_mode & 07777) == 0755);
    CHECK((status_of(scratch.path() / "a/b").st_mode & 07777) == 0755);
}
