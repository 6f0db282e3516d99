// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots on disks that are full at any point, and that read slowly or not at all.

#include "base/quiet_thread.hpp"
#include "store/snapshot.hpp"
#include "support/descriptors.hpp"
#include "support/failing_call.hpp"
#include "support/skip.hpp"
#include "support/snapshots.hpp"

#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gpu_sleep::store {
namespace {

using test::MemoryContents;
using test::Scratch;
using test::small_read;
using test::small_write;

/// A file system in memory, of this many bytes, if this user may mount one.
class TinyDisk {
public:
    explicit TinyDisk(const std::string& options) {
        is_mounted_ =
            ::mount("gpu-sleep-test", path().c_str(), "tmpfs", 0, (options + ",mode=0700").c_str()) == 0;
    }
    TinyDisk(const TinyDisk&) = delete;
    TinyDisk& operator=(const TinyDisk&) = delete;
    ~TinyDisk() {
        if (is_mounted_) ::umount2(path().c_str(), MNT_DETACH);
    }
    explicit operator bool() const noexcept { return is_mounted_; }
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return mount_point_.path(); }
    [[nodiscard]] const Scratch& directory() const noexcept { return mount_point_; }
    [[nodiscard]] bool resize(Bytes bytes) const {
        const auto options = "size=" + std::to_string(bytes);
        return ::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT, options.c_str()) == 0;
    }

private:
    Scratch mount_point_;
    bool is_mounted_ = false;
};

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
    MemoryContents contents;
    test::add_sample_contents(contents);
    const auto queue = open_io_queue();
    REQUIRE(queue);
    for (std::size_t i = 0; i < places_of(contents.description.extents).size(); ++i) {
        FullDisk disk(**queue, i);
        auto options = small_write();
        options.queue = &disk;
        const auto snapshot =
            write_snapshot(test::opened(directory), contents.description, contents, options);
        CHECK(snapshot.error().code == ErrorCode::out_of_disk);
        CHECK(contents.is_quiet());
        CHECK(directory.file_count() == 0);
    }
}

TEST_CASE("Snapshots: a file that lies in host memory takes no more of it than may be taken", "[store]") {
    const TinyDisk disk("size=64m");
    if (!disk) return test::skip_without_right("mount a file system");
    MemoryContents contents;
    for (int i = 0; i < 4; ++i) contents.add("weights", test::random_bytes(4 * k_mib));
    const auto room = [&] { return *SnapshotDirectory::room_in(disk.path()); };
    REQUIRE(room().in_memory);
    const auto whole = room().bytes;
    const auto used = [&] { return whole - room().bytes; };
    auto options = small_write();
    options.memory.reserve = 3 * k_mib;
    options.memory.patience = Milliseconds(0);
    Bytes host_memory = 0;
    std::atomic<Bytes> most_used{0};
    options.memory.headroom = [&] {
        most_used = std::max(most_used.load(), used());
        return Headroom{host_memory - std::min(host_memory, used()), "a test"};
    };
    SECTION("and fails where that is too little") {
        host_memory = GENERATE(Bytes{0}, 3 * k_mib, 8 * k_mib, 16 * k_mib);
        const auto failed =
            write_snapshot(test::opened(disk.directory()), contents.description, contents, options);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == ErrorCode::out_of_host_memory);
        CHECK(failed.error().message.find("limited by a test") != std::string::npos);
        CHECK(most_used + options.memory.reserve <= std::max(host_memory, options.memory.reserve));
        CHECK(used() == 0);
    }
    SECTION("and waits for what comes in time") {
        options.memory.patience = std::chrono::hours(1);
        std::atomic<int> asked{0};
        options.memory.headroom = [&] { return Headroom{asked++ % 3 == 2 ? k_gib : 0, "a test"}; };
        CHECK(write_snapshot(test::opened(disk.directory()), contents.description, contents, options));
    }
    SECTION("and is written where that is enough") {
        host_memory = 24 * k_mib;
        options.memory.patience = std::chrono::minutes(1); // what is being written may count twice
        const auto written =
            write_snapshot(test::opened(disk.directory()), contents.description, contents, options);
        REQUIRE(written);
        const auto reader = SnapshotReader::open(written->file, written->header);
        REQUIRE(reader);
        CHECK(reader->read(contents, small_read()));
    }
    CHECK(contents.is_quiet());
    CHECK(disk.directory().file_count() == 0);
}

TEST_CASE("Snapshots: a flush, a rename or a header that fails leaves nothing behind", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(5000));
    const auto opened = test::opened(directory);
    const auto failing =
        GENERATE(test::FailingCall{SYS_fsync, EIO, {}}, test::FailingCall{SYS_renameat2, EIO, {}},
                 test::FailingCall{SYS_fsync, ENOSPC, {}}, test::FailingCall{SYS_renameat2, ENOSPC, {}},
                 test::FailingCall{SYS_pwrite64, ENOSPC, {}}, test::FailingCall{SYS_pwrite64, EDQUOT, {}},
                 test::FailingCall{SYS_ftruncate, EIO, {}});
    std::optional<Error> error;
    const bool was_run = test::with_failing_calls({failing}, [&] {
        const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
        if (!snapshot) error = snapshot.error();
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE(error);
    CHECK(error->code == (failing.error != EIO ? ErrorCode::out_of_disk : ErrorCode::io_failed));
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: what some file systems do not have is done without", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(50'000));
    const auto opened = test::opened(directory);
    const auto descriptor = static_cast<std::uint32_t>(test::descriptors_in(directory.path()).at(0));
    const auto failing = GENERATE_COPY(
        test::FailingCall{SYS_flock, EOPNOTSUPP, {}}, test::FailingCall{SYS_flock, ENOSYS, {}},
        test::FailingCall{SYS_renameat2, EINVAL, {}}, test::FailingCall{SYS_renameat2, ENOSYS, {}},
        test::FailingCall{SYS_fsync, EINVAL, {}, descriptor});
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    const bool was_run = test::with_failing_calls({failing}, [&] {
        auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
        done = snapshot ? snapshot->file.keep() : snapshot.error();
        if (done) snapshot->file.let_stay();
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE(done);
    REQUIRE(directory.file_count() == 1);
    const auto reader = SnapshotReader::open(std::filesystem::directory_iterator(directory.path())->path());
    REQUIRE(reader);
    CHECK(reader->read(contents, small_read()));
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
    test::ByteVector chunk_ = test::ByteVector(codec::k_chunk_bytes, std::byte{7});
};

TEST_CASE("Snapshots: room is taken a step ahead, not for all contents uncompressed", "[store]") {
    const Scratch directory;
    SnapshotDescription description{{}, {}, test::k_nobody, ::geteuid(), {{0x1000, k_gib, "weights", 0}}};
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
        if (!test::with_failing_calls({{SYS_fallocate, ENOSPC, {}}}, write))
            return test::skip_without_right("filter its system calls");
        CHECK(contents.most_bytes < 50 * k_mib);
    }
    REQUIRE(file_bytes > 0);
    CHECK(file_bytes < 50 * k_mib);
    CHECK(taken_bytes < file_bytes + k_mib); // the rest was given back
}

TEST_CASE("Snapshots: a lock that is refused is done without only where nobody can have one", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(5000));
    const auto opened = test::opened(directory);
    bool is_written_here = true;
    bool is_written_afar = false;
    test::write_file(directory.path() / SnapshotName{test::k_nobody, 1}.text(), test::random_bytes(10));
    std::size_t leftovers = 2;
    std::size_t doubtful = 0;
    bool was_run = test::with_failing_calls({{SYS_flock, ENOLCK, {}}}, [&] {
        is_written_here = write_snapshot(opened, contents.description, contents, small_write()).has_value();
    });
    // As on a file system that nothing is known of.
    was_run = was_run && test::with_failing_calls({{SYS_flock, ENOLCK, {}}, {SYS_fstatfs, EIO, {}}}, [&] {
                  const auto written = write_snapshot(opened, contents.description, contents, small_write());
                  is_written_afar = written.has_value();
                  leftovers = opened->leftovers()->size();
                  doubtful = opened->doubtful()->size();
              });
    if (!was_run) return test::skip_without_right("filter its system calls");
    CHECK_FALSE(is_written_here);
    CHECK(is_written_afar);
    CHECK(leftovers == 0); // though their owners cannot be seen
    CHECK(doubtful == 2);
    CHECK(opened->remove_leftovers()->size() == 1);
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: room that cannot be reserved is not needed", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(50'000));
    const auto opened = test::opened(directory);
    const auto error = static_cast<std::uint32_t>(GENERATE(ENOSPC, EOPNOTSUPP));
    bool is_right = false;
    const bool was_run = test::with_failing_calls({{SYS_fallocate, error, {}}}, [&] {
        const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
        is_right = snapshot && SnapshotReader::open(snapshot->file, snapshot->header);
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    CHECK(is_right);
}

TEST_CASE("Snapshots: a kernel that takes no requests, or lets nobody wait for them, is done without",
          "[store]") {
    const Scratch directory;
    MemoryContents contents;
    test::add_sample_contents(contents);
    const auto opened = test::opened(directory);
    const auto error = static_cast<std::uint32_t>(GENERATE(EBADF, ENOMEM, EAGAIN, EBUSY));
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    const bool was_run = test::with_failing_calls({{SYS_io_uring_enter, error, {}}}, [&] {
        const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
        if (!snapshot) {
            done = snapshot.error();
            return;
        }
        const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
        done = reader ? reader->read(contents, small_read()) : reader.error();
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    CHECK(done);
    CHECK(contents.delivered.size() == places_of(contents.description.extents).size());
}

TEST_CASE("Snapshots: a disk of any size holds a whole one or none", "[store]") {
    const TinyDisk disk("size=16m");
    if (!disk) return test::skip_without_right("mount a file system");
    MemoryContents contents;
    contents.add("weights", test::normal_bf16(30'000));
    contents.add("kv_cache", test::random_bytes(40'000));
    Bytes needed = 0;
    {
        const auto whole =
            write_snapshot(test::opened(disk.directory()), contents.description, contents, small_write());
        REQUIRE(whole);
        needed = whole->header.file_bytes;
    }
    bool has_failed_at_header = false;
    for (Bytes bytes = k_alignment; bytes <= needed; bytes += k_alignment) {
        INFO(bytes << " of " << needed);
        REQUIRE(disk.resize(bytes));
        const auto snapshot =
            write_snapshot(test::opened(disk.directory()), contents.description, contents, small_write());
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
    const TinyDisk disk("size=16m,nr_inodes=1"); // its directory's
    if (!disk) return test::skip_without_right("mount a file system");
    MemoryContents contents;
    contents.add("weights", test::random_bytes(5000));
    const auto snapshot =
        write_snapshot(test::opened(disk.directory()), contents.description, contents, small_write());
    CHECK(snapshot.error().code == ErrorCode::out_of_disk);
    CHECK(contents.is_quiet());
    CHECK(disk.directory().file_count() == 0);
}

TEST_CASE("Snapshots: a limit on the length of files is as a full disk, and ends nobody", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(300'000));
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

/// A queue whose n-th read fails, and whose others come late and in another order.
class BadDisk final : public IoQueue {
public:
    BadDisk(IoQueue& queue, std::size_t fails_at) : queue_(queue), fails_at_(fails_at) {}
    BadDisk(const BadDisk&) = delete;
    BadDisk& operator=(const BadDisk&) = delete;
    ~BadDisk() override {
        for (auto& thread : threads_) thread.join();
    }
    void submit(IoRequest request) override {
        const auto number = count_++;
        threads_.emplace_back([this, number, request = std::move(request)] {
            std::this_thread::sleep_for(Milliseconds(number % 3 == 0 ? 60 : 5));
            if (number == fails_at_)
                request.done(make_error(ErrorCode::io_failed, "it does not read"));
            else
                queue_.submit(request);
        });
    }

private:
    IoQueue& queue_;
    const std::size_t fails_at_;
    std::size_t count_ = 0;
    std::vector<std::thread> threads_;
};

TEST_CASE("Snapshots: reads that are slow come in order, and one that fails ends the reading", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    test::add_sample_contents(contents);
    const auto snapshot =
        write_snapshot(test::opened(directory), contents.description, contents, small_write());
    REQUIRE(snapshot);
    const auto queue = open_io_queue();
    REQUIRE(queue);
    const auto count = snapshot->header.rows.size();
    for (std::size_t i = 0; i <= count; ++i) {
        contents.delivered.clear();
        Result<void> done;
        {
            BadDisk disk(**queue, i);
            const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
            REQUIRE(reader);
            auto options = small_read();
            options.queue = &disk;
            done = reader->read(contents, options);
        }
        CHECK(contents.delivered.size() == i); // all before it, and no more
        if (i == count)
            CHECK(done);
        else
            CHECK(done.error().code == ErrorCode::io_failed);
    }
}

TEST_CASE("Snapshots: a read that the kernel fails is an error, not damage", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    contents.add("weights", test::random_bytes(50'000));
    const auto snapshot =
        write_snapshot(test::opened(directory), contents.description, contents, small_write());
    REQUIRE(snapshot);
    const auto options = small_read(store::IoKind::threads);
    const auto bytes = snapshot->header.rows.front().stored_bytes;
    Result<void> done;
    Result<void> opened;
    const bool was_run = test::with_failing_calls({{SYS_pread64, EIO, bytes}}, [&] {
        const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
        opened = reader ? Result<void>() : reader.error();
        if (reader) done = reader->read(contents, options);
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE(opened);
    CHECK(done.error().code == ErrorCode::io_failed);
    CHECK(contents.delivered.empty());
    CHECK(SnapshotReader::open(snapshot->file, snapshot->header)->read(contents, options));
}

} // namespace
} // namespace gpu_sleep::store
