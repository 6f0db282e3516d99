// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What another user of the machine may try, tried as another user: links, pre-made names, open permissions,
// reading and removing.

#include "support/other_user.hpp"
#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using namespace test;

/// A directory that is everybody's, as /tmp is.
class CommonPlace {
public:
    CommonPlace() { REQUIRE(::chmod(parent_.path().c_str(), 01777) == 0); }
    [[nodiscard]] std::string path(const char* name) const { return parent_.path() / name; }
    [[nodiscard]] std::string own() const { return path("own"); }

private:
    Scratch parent_;
};

/// Whether a system call has failed for want of a right.
bool is_refused(long result) {
    return result < 0 && (errno == EACCES || errno == EPERM);
}

bool is_refused_directory(const std::string& path) {
    const auto opened = SnapshotDirectory::open(path);
    return !opened && opened.error().code == ErrorCode::not_permitted;
}

/// Writes a snapshot and lets it stay.
bool write_kept(const std::string& directory) {
    ::umask(0); // no umask hides what others may
    MemoryContents contents("weights", random_bytes(50'000));
    WriteOptions options;
    options.threads = 1;
    auto opened = SnapshotDirectory::open(directory);
    if (!opened) return false;
    auto snapshot = write_snapshot(*std::move(opened), contents.description, contents, options);
    if (!snapshot || !snapshot->file.keep()) return false;
    snapshot->file.let_stay();
    return true;
}

} // namespace

TEST_CASE("Other users: they can neither read, list, link, add, rename nor remove what is there", "[store]") {
    if (::geteuid() != 0) return skip_without_right("become other users");
    const CommonPlace place;
    REQUIRE(as_user(k_one_user, [&] { return write_kept(place.own()); }));
    struct stat status = {};
    REQUIRE(::lstat(place.own().c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0700);
    CHECK(status.st_uid == k_one_user);
    const auto file = std::filesystem::directory_iterator(place.own())->path();
    REQUIRE(::lstat(file.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
    CHECK(status.st_uid == k_one_user);

    const auto refuses = [&](auto&& attempt) {
        return as_user(k_other_user, [&] { return is_refused(attempt()); });
    };
    const auto thing = place.path("thing");
    CHECK(refuses([&] { return ::open(place.own().c_str(), O_RDONLY | O_DIRECTORY); }));
    CHECK(refuses([&] { return ::open(file.c_str(), O_RDONLY); }));
    CHECK(refuses([&] { return ::open(file.c_str(), O_WRONLY); }));
    CHECK(refuses([&] { return ::link(file.c_str(), thing.c_str()); }));
    CHECK(refuses([&] { return ::unlink(file.c_str()); }));
    CHECK(refuses([&] { return ::rename(file.c_str(), thing.c_str()); }));
    CHECK(refuses(
        [&] { return ::symlink("/etc/passwd", (place.own() + "/gpu-sleep-1-2-3.snapshot").c_str()); }));
    CHECK(refuses([&] { return ::chmod(place.own().c_str(), 0777); }));
    CHECK(refuses([&] { return ::rename(place.own().c_str(), thing.c_str()); }));
    CHECK(as_user(k_other_user, [&] { return is_refused_directory(place.own()); }));
    CHECK(
        as_user(k_other_user, [&] { return open_snapshot(file).error().code == ErrorCode::not_permitted; }));
    CHECK(as_user(k_one_user, [&] { return SnapshotReader::open(file).has_value(); }));
}

TEST_CASE("Other users: what they made beforehand under the directory's name is refused", "[store]") {
    if (::geteuid() != 0) return skip_without_right("become other users");
    const CommonPlace place;
    const auto lair = place.path("lair");
    REQUIRE(as_user(k_other_user, [&] {
        ::umask(0);
        return ::mkdir(lair.c_str(), 0777) == 0;
    }));
    const auto victim = place.path("victim"); // the user's own
    REQUIRE(as_user(k_one_user, [&] { return ::mkdir(victim.c_str(), 0700) == 0; }));
    const std::string what = GENERATE("an open directory", "a private directory", "a link to lair",
                                      "a link to nowhere", "a link to victim", "a file");
    INFO(what);
    REQUIRE(as_user(k_other_user, [&] {
        ::umask(0);
        if (what == "a file") return ::open(place.own().c_str(), O_CREAT, 0666) >= 0;
        if (what.ends_with("directory"))
            return ::mkdir(place.own().c_str(), what == "an open directory" ? 0777 : 0700) == 0;
        return ::symlink(place.path(&what[what.rfind(' ') + 1]).c_str(), place.own().c_str()) == 0;
    }));
    if (what == "a link to victim") {
        const auto way = place.path("own/new"); // it is on the way
        CHECK(as_user(k_one_user, [&] { return is_refused_directory(way); }));
        CHECK(is_refused_directory(way));
        CHECK(SnapshotDirectory::free_space_in(way).error().code == ErrorCode::not_permitted);
        CHECK(std::filesystem::is_empty(victim));
        write_file(victim + "/new", {});
        CHECK(open_snapshot(way).error().code == ErrorCode::not_permitted);
    }
    CHECK(as_user(k_one_user, [&] { return is_refused_directory(place.own()); }));
    CHECK(as_user(k_one_user, [&] { return is_refused_directory(place.own() + "/"); }));
    CHECK(is_refused_directory(place.own())); // by root as well
    CHECK(std::filesystem::is_empty(lair));
    CHECK_FALSE(std::filesystem::exists(place.path("nowhere")));
}

TEST_CASE("Other users: names that they made in a directory while it was open are not used", "[store]") {
    if (::geteuid() != 0) return skip_without_right("become other users");
    const CommonPlace place;
    const auto victim = place.path("victim");
    REQUIRE(as_user(k_one_user, [&] {
        ::umask(0);
        write_file(victim, random_bytes(100));
        return ::mkdir(place.own().c_str(), 0777) == 0;
    }));
    CHECK(as_user(k_one_user, [&] { return is_refused_directory(place.own()); }));
    // The first names that the user's process will want.
    const auto name = [&](std::uint64_t number, SnapshotName::Kind kind) {
        return place.own() + "/" +
               SnapshotName{{4242, 123456}, number, kind, boot_id(), pid_namespace()}.text();
    };
    REQUIRE(as_user(k_other_user, [&] {
        ::umask(0);
        bool is_made = true;
        for (std::uint64_t i = 1; i < 500; ++i) {
            const auto kind = static_cast<SnapshotName::Kind>(i % 3);
            is_made = is_made && (i % 2 == 0 ? ::symlink(victim.c_str(), name(i, kind).c_str()) == 0
                                             : ::open(name(i, kind).c_str(), O_CREAT, 0666) >= 0);
            ::closefrom(3);
        }
        return is_made;
    }));
    REQUIRE(::chmod(place.own().c_str(), 0700) == 0);
    const auto before = read_file(victim);
    CHECK(as_user(k_one_user, [&] { return write_kept(place.own()); }));
    CHECK(read_file(victim) == before);
    int made = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place.own())) {
        struct stat status = {};
        REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
        if (status.st_uid != k_one_user) continue;
        ++made;
        CHECK((status.st_mode & 07777) == 0600);
        CHECK(S_ISREG(status.st_mode));
    }
    CHECK(made == 1);
}

TEST_CASE("Other users: their files are no snapshots to this one", "[store]") {
    if (::geteuid() != 0) return skip_without_right("become other users");
    const CommonPlace place;
    REQUIRE(as_user(k_other_user, [&] { return write_kept(place.own()); }));
    const auto file = std::filesystem::directory_iterator(place.own())->path();
    REQUIRE(::chmod(place.own().c_str(), 0755) == 0);
    REQUIRE(::chmod(file.c_str(), 0666) == 0);
    CHECK(as_user(k_one_user, [&] {
        const auto opened = SnapshotReader::open(file);
        return !opened && opened.error().code == ErrorCode::not_permitted;
    }));
    CHECK(SnapshotReader::open(file)); // root may look at everything
}

} // namespace gpu_sleep::store
