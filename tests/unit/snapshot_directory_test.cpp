// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names, leftovers, and other people's attempts.

#include "support/failing_call.hpp"
#include "support/snapshots.hpp"

#include <sys/wait.h>

namespace gpu_sleep::store {
namespace {

using namespace test;
using Kind = SnapshotName::Kind;

TEST_CASE("Snapshot names: read as they are written, and no others", "[store]") {
    const std::string boot = "0123456789abcdef0123456789abcdef";
    for (const auto kind : {Kind::sleeping, Kind::partial, Kind::kept}) {
        for (const auto& machine : {std::string(), boot}) {
            const SnapshotName name{{4242, 123456}, 7, kind, machine};
            CHECK(SnapshotName::parse(name.text()) == name);
        }
        const SnapshotName name{{4242, 123456}, 7, kind, boot, 4026531836};
        CHECK(SnapshotName::parse(name.text()) == name);
    }
    CHECK(SnapshotName{{4242, 123456}, 7, Kind::kept, boot}.text() ==
          "gpu-sleep-4242-123456-7-0123456789abcdef0123456789abcdef.kept");
    CHECK(SnapshotName{{4242, 123456}, 7, Kind::kept, boot, 4026531836}.text() ==
          "gpu-sleep-4242-123456-7-0123456789abcdef0123456789abcdef-4026531836.kept");
    CHECK(boot_id().size() == boot.size());
    CHECK(SnapshotName{{4242, 123456}, 7, Kind::sleeping}.text() == "gpu-sleep-4242-123456-7.snapshot");
    for (const auto* text : {"",
                             "gpu-sleep-",
                             "gpu-sleep-1-2.snapshot",
                             "gpu-sleep-1-2-3",
                             "gpu-sleep-1-2-3.snap",
                             "gpu-sleep-1-2-3.snapshot~",
                             "gpu-sleep--1-2-3.snapshot",
                             "gpu-sleep-0-2-3.kept",
                             "gpu-sleep-01-2-3.kept",
                             "gpu-sleep-1-2-3x.kept",
                             "gpu-sleep-99999999999-2-3.snapshot",
                             "gpu-sleep-1-2-3-.kept",
                             "gpu-sleep-1-2-3-0123.kept",
                             "gpu-sleep-1-2-3-0123456789ABCDEF0123456789abcdef.kept",
                             "gpu-sleep-1-2-3-77.kept",
                             "gpu-sleep-1-2-3-0123456789abcdef0123456789abcdef-.kept",
                             "gpu-sleep-1-2-3-0123456789abcdef0123456789abcdef-0.kept",
                             "gpu-sleep-1-2-3-0123456789abcdef0123456789abcdef-07.kept",
                             "gpu-sleep-1-2-3-0123456789abcdef0123456789abcdef-7-7.kept",
                             "x-gpu-sleep-1-2-3.kept"})
        CHECK_FALSE(SnapshotName::parse(text));
}

TEST_CASE("Snapshot directories: made private; links and those open to others are refused", "[store]") {
    const Scratch parent;
    const auto path = parent.path() / "new";
    const auto opened = SnapshotDirectory::open(path);
    REQUIRE(opened);
    struct stat status = {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0700);
    CHECK(SnapshotDirectory::open(path));

    std::filesystem::create_directory_symlink(path, parent.path() / "link");
    CHECK(SnapshotDirectory::open(parent.path() / "link").error().code == ErrorCode::not_permitted);
    for (const mode_t mode : {0750, 0701, 0777, 0720}) {
        REQUIRE(::chmod(path.c_str(), mode) == 0);
        CHECK(SnapshotDirectory::open(path).error().code == ErrorCode::not_permitted);
    }
    write_file(parent.path() / "file", {});
    CHECK(SnapshotDirectory::open(parent.path() / "file").error().code == ErrorCode::not_permitted);
    const auto without_parent = SnapshotDirectory::open(parent.path() / "a" / "b").error();
    CHECK(without_parent.code == ErrorCode::io_failed);
    CHECK_THAT(without_parent.message, mentions("make the directory above it first"));
    if (::geteuid() != 0) return skip_without_right("give a directory away");
    const auto foreign = parent.path() / "foreign";
    REQUIRE(::mkdir(foreign.c_str(), 0700) == 0);
    REQUIRE(::chown(foreign.c_str(), 12345, 12345) == 0);
    CHECK(SnapshotDirectory::open(foreign).error().code == ErrorCode::not_permitted);
}

TEST_CASE("Snapshot directories: one that is made is flushed, so that a crash does not take it", "[store]") {
    const Scratch parent;
    const auto path = parent.path() / "new";
    Result<void> opened;
    const auto open = [&] {
        const auto made = SnapshotDirectory::open(path);
        opened = made ? Result<void>() : made.error();
    };
    if (!with_failing_calls({{SYS_fsync, EIO, {}}}, open)) return;
    CHECK_THAT(error_of(opened).message, mentions("fsync"));
    REQUIRE(with_failing_calls({{SYS_fsync, EIO, {}}}, open));
    CHECK(opened); // it was there
}

TEST_CASE("Snapshot files: a name that somebody has is not followed and not replaced", "[store]") {
    const Scratch directory;
    const auto victim = directory.path() / "victim";
    write_file(victim, random_bytes(100));
    const auto before = read_file(victim);
    // The next numbers, both as links to the victim and as plain files.
    auto probe = need(SnapshotFile::create(test::opened(directory), k_nobody, false));
    const auto number = probe.name().number;
    for (std::uint64_t i = 1; i <= 4; ++i) {
        const SnapshotName name{k_nobody, number + i, static_cast<Kind>(i % 3), boot_id(), pid_namespace()};
        if (i < 3)
            std::filesystem::create_symlink(victim, directory.path() / name.text());
        else
            write_file(directory.path() / name.text(), random_bytes(9));
    }
    auto file = need(SnapshotFile::create(test::opened(directory), k_nobody, false));
    CHECK(file.name().number == number + 5);
    REQUIRE(file.commit());
    CHECK(read_file(victim) == before);
    CHECK(directory.file_count() == 7);
}

TEST_CASE("Snapshots are opened only where they are plain files", "[store]") {
    const Scratch directory;
    const auto file = directory.path() / "file";
    write_file(file, random_bytes(100));
    std::filesystem::create_symlink(file, directory.path() / "link");
    REQUIRE(::mkfifo((directory.path() / "pipe").c_str(), 0600) == 0);
    CHECK(open_snapshot(file));
    for (const auto* name : {"link", "pipe", "."})
        CHECK(open_snapshot(directory.path() / name).error().code == ErrorCode::not_permitted);
    CHECK(open_snapshot(directory.path() / "missing").error().code == ErrorCode::io_failed);
}

TEST_CASE("Leftovers: those that nobody holds", "[store]") {
    const Scratch directory;
    const ProcessIdentity living{::getpid(), *own_start_time()};
    const auto make = [&](ProcessIdentity owner, std::uint64_t number, Kind kind) {
        const SnapshotName name{owner, number, kind};
        write_file(directory.path() / name.text(), random_bytes(10));
        return name;
    };
    std::vector<SnapshotName> dead = {
        make(k_nobody, 100'001, Kind::sleeping), make(k_nobody, 100'002, Kind::partial),
        make({::getpid(), 1}, 100'003, Kind::sleeping), // the pid was used again
        make(living, 100'004, Kind::sleeping)};         // which runs another program by now
    make(k_nobody, 100'005, Kind::kept);
    make(living, 100'007, Kind::kept);
    write_file(directory.path() / "something else", {});
    const auto link = SnapshotName{k_nobody, 100'006, Kind::sleeping};
    std::filesystem::create_symlink(directory.path() / "something else", directory.path() / link.text());
    // Its owner cannot be seen from here, as in another container, but holds it.
    const auto held = SnapshotFile::create(test::opened(directory), k_nobody, false);
    REQUIRE(held);
    const auto held_by_living = SnapshotFile::create(test::opened(directory), living, false);
    REQUIRE(held_by_living);

    const auto sorted = [](std::vector<SnapshotName> names) {
        std::sort(names.begin(), names.end(), [](auto& a, auto& b) { return a.number < b.number; });
        return names;
    };
    CHECK(sorted(*test::opened(directory)->leftovers()) == dead);
    CHECK(sorted(*test::opened(directory)->remove_leftovers()) == dead);
    CHECK(test::opened(directory)->leftovers()->empty());
    CHECK(directory.file_count() == 6);
}

TEST_CASE("Leftovers: those of another machine only where a file system is no other machine's", "[store]") {
    const Scratch directory;
    const ProcessIdentity living{::getpid(), *own_start_time()};
    const auto here = boot_id();
    const std::string other(32, 'a');
    const auto make = [&](ProcessIdentity owner, std::uint64_t number, const std::string& boot,
                          std::uint64_t its_pids = 0) {
        const SnapshotName name{owner, number, Kind::sleeping, boot, its_pids};
        write_file(directory.path() / name.text(), random_bytes(10));
    };
    REQUIRE(pid_namespace() != 0);
    make(k_nobody, 1, here, pid_namespace());
    make(k_nobody, 7, here, pid_namespace() + 1); // as in another container
    make(k_nobody, 8, here);
    make(k_nobody, 2, other);
    make(living, 3, other); // whose pid and start time are by chance those of somebody here
    make(k_nobody, 4, "");
    make(living, 5, here);
    make(living, 6, "");
    const auto numbers = [](const Result<std::vector<SnapshotName>>& names) {
        std::set<std::uint64_t> found;
        for (const auto& name : *names) found.insert(name.number);
        return found;
    };
    const auto opened = test::opened(directory);
    CHECK(numbers(opened->leftovers()) == std::set<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(opened->doubtful()->empty());
    std::set<std::uint64_t> left;
    std::set<std::uint64_t> doubtful;
    // As on a file system that nothing is known of.
    const bool was_run = with_failing_calls({{SYS_fstatfs, EIO, {}}}, [&] {
        left = numbers(opened->leftovers());
        doubtful = numbers(opened->doubtful());
    });
    CHECK(opened->remove_leftovers()->size() == 8);
    CHECK(directory.file_count() == 0);
    if (!was_run) return;
    CHECK(left == std::set<std::uint64_t>{1});
    CHECK(doubtful == std::set<std::uint64_t>{2, 3, 4, 6, 7, 8});
}

TEST_CASE("Leftovers: a process killed at any moment leaves what the next one finds", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", normal_bf16(300'000));
    contents.description.owner = k_nobody;
    for (int i = 0; i < 25; ++i) {
        const auto child = ::fork();
        if (child == 0) {
            WriteOptions options;
            options.threads = 2;
            const auto opened = SnapshotDirectory::open(directory.path());
            for (;;)
                if (!opened || !write_snapshot(*opened, contents.description, contents, options)) ::_exit(1);
        }
        ::usleep(static_cast<useconds_t>(1000 + 1700 * i));
        ::kill(child, SIGKILL);
        REQUIRE(::waitpid(child, nullptr, 0) == child);
        // The kernel lets go of what io_uring had under way, and with it of the lock, a moment later.
        const auto deadline = Clock::now() + std::chrono::seconds(5);
        do CHECK(test::opened(directory)->remove_leftovers());
        while (directory.file_count() > 0 && Clock::now() < deadline);
        CHECK(directory.file_count() == 0);
    }
}

} // namespace
} // namespace gpu_sleep::store
