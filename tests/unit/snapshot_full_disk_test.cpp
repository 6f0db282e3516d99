// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots on disks that are full, at any point.

#include "support/small_disk.hpp"
#include "support/snapshots.hpp"
#include "unit/arenas.hpp"

#include <sys/resource.h>

namespace gpu_sleep::store {
namespace {

using namespace test;

/// A queue whose n-th write fails.
class FullDisk final : public IoQueue {
public:
    FullDisk(IoQueue& queue, std::size_t fails_at) : queue_(queue), left_(fails_at) {}
    void submit(IoRequest request) override {
        if (left_-- != 0) return queue_.submit(std::move(request));
        request.done(make_error(ErrorCode::out_of_disk, "full"));
    }

private:
    IoQueue& queue_;
    std::atomic<std::size_t> left_;
};

TEST_CASE("Snapshots: a disk that is full at any write leaves nothing behind", "[store]") {
    const Scratch directory;
    SampleContents contents;
    const auto queue = open_io_queue();
    REQUIRE(queue);
    for (std::size_t i = 0; i < places_of(contents.description.extents).size(); ++i) {
        const auto disk = std::make_shared<FullDisk>(**queue, i);
        auto options = small_write();
        options.queue = disk;
        CHECK(try_to_write(directory, contents, options).error().code == ErrorCode::out_of_disk);
        CHECK(contents.is_quiet());
        CHECK(directory.file_count() == 0);
    }
}

TEST_CASE("Snapshots: a file that lies in host memory takes no more of it than may be taken", "[store]") {
    const SmallDisk disk("size=64m");
    if (!disk) return skip_without_right("mount a file system");
    MemoryContents contents;
    for (int i = 0; i < 4; ++i) contents.add("weights", random_bytes(4 * k_mib));
    const auto room = [&] { return *SnapshotDirectory::free_space_in(disk.path()); };
    REQUIRE(room().in_memory);
    const auto whole = room().bytes;
    const auto used = [&] { return whole - room().bytes; };
    auto options = small_write();
    constexpr Bytes k_reserve = 3 * k_mib;
    std::function<Headroom()> headroom;
    options.memory.budget = &budget_of([&] { return headroom(); }, k_reserve);
    options.memory.patience = Milliseconds(0);
    Bytes host_memory = 0;
    std::atomic<Bytes> most_used{0};
    headroom = [&] {
        most_used = std::max(most_used.load(), used());
        return Headroom{host_memory - std::min(host_memory, used()), "a test"};
    };
    SECTION("and fails where that is too little") {
        host_memory = GENERATE(Bytes{0}, 3 * k_mib, 8 * k_mib, 16 * k_mib);
        const auto failed = try_to_write(disk.directory(), contents, options);
        CHECK(error_of(failed).code == ErrorCode::out_of_host_memory);
        CHECK_THAT(failed.error().message, mentions("limited by a test"));
        CHECK(most_used + k_reserve <= std::max(host_memory, k_reserve));
        CHECK(used() == 0);
    }
    SECTION("and waits for what comes in time") {
        options.memory.patience = std::chrono::hours(1);
        std::atomic<int> asked{0};
        headroom = [&] { return Headroom{asked++ % 3 == 2 ? k_gib : 0, "a test"}; };
        CHECK(try_to_write(disk.directory(), contents, options));
    }
    SECTION("and waits no longer than its contents come") {
        options.memory.patience = std::chrono::hours(1);
        headroom = [] { return Headroom{0, "a test"}; };
        contents.fails_at = 1;
        CHECK(try_to_write(disk.directory(), contents, options).error().code == ErrorCode::driver_failed);
    }
    SECTION("nor than the user's processes may hold, with what is there already") {
        host_memory = k_gib;
        auto& budget = *options.memory.budget;
        budget.limit(8 * k_mib);
        const auto failed = try_to_write(disk.directory(), contents, options);
        CHECK_THAT(error_of(failed).message, mentions("allowed to them"));
        budget.limit(24 * k_mib);
        CHECK(budget.room().bytes == 24 * k_mib);
        {
            const auto written = test::written(disk.directory(), contents, options);
            CHECK(budget.room().bytes == 24 * k_mib - written->header.file_bytes);
        }
        CHECK(budget.room().bytes == 24 * k_mib);
    }
    SECTION("and is written where that is enough") {
        host_memory = 24 * k_mib;
        options.memory.patience = std::chrono::minutes(1); // what is being written may count twice
        const auto written = test::written(disk.directory(), contents, options);
        CHECK(need(SnapshotReader::open(written->file, written->header)).read(contents, small_read()));
    }
    CHECK(contents.is_quiet());
    CHECK(disk.directory().file_count() == 0);
}

/// Contents that repeat one chunk, and what the file of a directory takes of the disk meanwhile.
class Watching final : public ChunkSource {
public:
    explicit Watching(std::filesystem::path directory) : directory_(std::move(directory)) {}
    [[nodiscard]] Result<std::span<const std::byte>> take(const ChunkPlace& place) override {
        for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
            struct stat status = {};
            if (::stat(entry.path().c_str(), &status) == 0)
                most_bytes = std::max(most_bytes, static_cast<Bytes>(status.st_blocks) * 512);
        }
        return std::span<const std::byte>(chunk_).first(place.bytes);
    }
    void release(const ChunkPlace&) noexcept override {}

    Bytes most_bytes = 0;

private:
    std::filesystem::path directory_;
    ByteVector chunk_ = ByteVector(codec::k_chunk_bytes, std::byte{7});
};

TEST_CASE("Snapshots: room is taken a step ahead, not for all contents uncompressed", "[store]") {
    const Scratch directory;
    SnapshotDescription description{{}, {}, k_nobody, ::geteuid(), {{0x1000, k_gib, "weights", 0}}};
    Watching contents(directory.path());
    Bytes file_bytes = 0;
    Bytes taken_bytes = 0;
    const auto write = [&] {
        const auto written = write_snapshot(test::opened(directory), description, contents, small_write());
        if (!written) return;
        file_bytes = written->header.file_bytes;
        struct stat status = {};
        if (::stat(written->file.path().c_str(), &status) == 0)
            taken_bytes = static_cast<Bytes>(status.st_blocks) * 512;
    };
    SECTION("where there is some") {
        write();
        CHECK(contents.most_bytes < 300 * k_mib);
    }
    SECTION("and where there is none, it goes on without") {
        if (!with_failing_calls({{SYS_fallocate, ENOSPC, {}}}, write)) return;
        CHECK(contents.most_bytes < 50 * k_mib);
    }
    REQUIRE(file_bytes > 0);
    CHECK(file_bytes < 50 * k_mib);
    CHECK(taken_bytes < file_bytes + k_mib); // the rest was given back
}

TEST_CASE("Snapshots: room that cannot be reserved is not needed", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    const auto opened = test::opened(directory);
    const auto error = static_cast<std::uint32_t>(GENERATE(ENOSPC, EOPNOTSUPP));
    bool is_right = false;
    if (!with_failing_calls({{SYS_fallocate, error, {}}}, [&] {
            const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            is_right = snapshot && SnapshotReader::open(snapshot->file, snapshot->header);
        }))
        return;
    CHECK(is_right);
}

TEST_CASE("Snapshots: a disk of any size holds a whole one or none", "[store]") {
    const SmallDisk disk("size=16m");
    if (!disk) return skip_without_right("mount a file system");
    MemoryContents contents("weights", normal_bf16(30'000));
    contents.add("kv_cache", random_bytes(40'000));
    Bytes needed = 0;
    {
        const auto whole = written(disk.directory(), contents);
        needed = whole->header.file_bytes;
    }
    bool has_failed_at_header = false;
    for (Bytes bytes = k_alignment; bytes <= needed; bytes += k_alignment) {
        INFO(bytes << " of " << needed);
        REQUIRE(disk.resize(bytes));
        const auto snapshot = try_to_write(disk.directory(), contents);
        CHECK(contents.is_quiet());
        if (bytes == needed) {
            REQUIRE(snapshot);
            CHECK(SnapshotReader::open(snapshot->file.path())->read(contents, small_read()));
            continue;
        }
        CHECK(snapshot.error().code == ErrorCode::out_of_disk);
        CHECK(disk.directory().file_count() == 0);
        has_failed_at_header = bytes == needed - k_alignment; // which is written last
    }
    CHECK(has_failed_at_header);
}

TEST_CASE("Snapshots: a disk without room for one more file", "[store]") {
    const SmallDisk disk("size=16m,nr_inodes=1"); // its directory's
    if (!disk) return skip_without_right("mount a file system");
    MemoryContents contents("weights", random_bytes(5000));
    CHECK(try_to_write(disk.directory(), contents).error().code == ErrorCode::out_of_disk);
    CHECK(contents.is_quiet());
    CHECK(disk.directory().file_count() == 0);
}

TEST_CASE("Snapshots: a limit on the length of files is as a full disk, and ends nobody", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(300'000));
    const auto opened = test::opened(directory);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    for (const rlim_t limit : {rlim_t{0}, rlim_t{4096}, rlim_t{100'000}, rlim_t{300'000}}) {
        const rlimit short_files{limit, before.rlim_max};
        std::optional<Error> error;
        // As in the agent, where signals are blocked: the one that comes with such a write would end it.
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &short_files) == 0);
        auto thread = start_quiet_thread("writer", [&] {
            const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            if (!snapshot) error = snapshot.error();
        });
        if (thread) thread->join();
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
        REQUIRE(thread);
        REQUIRE(error);
        CHECK(error->code == ErrorCode::out_of_disk);
        CHECK(directory.file_count() == 0);
    }
}

} // namespace
} // namespace gpu_sleep::store
