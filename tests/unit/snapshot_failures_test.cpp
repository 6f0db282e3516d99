// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots where calls of the kernel fail, or are slow. Disks that are full are in
// snapshot_full_disk_test.cpp.

#include "support/descriptors.hpp"
#include "support/failing_call.hpp"
#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using namespace test;

TEST_CASE("Snapshots: a flush, a rename or a header that fails leaves nothing behind", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    const auto opened = test::opened(directory);
    const auto failing = GENERATE(FailingCall{SYS_fsync, EIO, {}}, FailingCall{SYS_renameat2, EIO, {}},
                                  FailingCall{SYS_fsync, ENOSPC, {}}, FailingCall{SYS_renameat2, ENOSPC, {}},
                                  FailingCall{SYS_pwrite64, ENOSPC, {}},
                                  FailingCall{SYS_pwrite64, EDQUOT, {}}, FailingCall{SYS_ftruncate, EIO, {}});
    std::optional<Error> error;
    if (!with_failing_calls({failing}, [&] {
            const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            if (!snapshot) error = snapshot.error();
        }))
        return;
    REQUIRE(error);
    CHECK(error->code == (failing.error != EIO ? ErrorCode::out_of_disk : ErrorCode::io_failed));
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: a file that was not flushed is not used, though its directory was", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    const auto opened = test::opened(directory);
    const auto descriptor = static_cast<std::uint32_t>(descriptors_in(directory.path()).at(0));
    const auto error = static_cast<std::uint32_t>(GENERATE(EIO, ENOSPC));
    const FailingCall of_directory{SYS_fsync, 0, {}, descriptor}; // which succeeds
    Result<void> done;
    if (!with_failing_calls({of_directory, {SYS_fsync, error, {}}}, [&] {
            const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            if (!snapshot) done = snapshot.error();
        }))
        return;
    CHECK(error_of(done).code == (error != EIO ? ErrorCode::out_of_disk : ErrorCode::io_failed));
    CHECK_THAT(done.error().message, mentions("fsync"));
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: what some file systems do not have is done without", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    const auto opened = test::opened(directory);
    const auto descriptor = static_cast<std::uint32_t>(descriptors_in(directory.path()).at(0));
    const auto failing =
        GENERATE_COPY(FailingCall{SYS_flock, EOPNOTSUPP, {}}, FailingCall{SYS_flock, ENOSYS, {}},
                      FailingCall{SYS_renameat2, EINVAL, {}}, FailingCall{SYS_renameat2, ENOSYS, {}},
                      FailingCall{SYS_fsync, EINVAL, {}, descriptor});
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    if (!with_failing_calls({failing}, [&] {
            auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            done = snapshot ? snapshot->file.keep() : snapshot.error();
            if (done) snapshot->file.let_stay();
        }))
        return;
    REQUIRE(done);
    REQUIRE(directory.file_count() == 1);
    const auto reader =
        need(SnapshotReader::open(std::filesystem::directory_iterator(directory.path())->path()));
    CHECK(reader.read(contents, small_read()));
}

TEST_CASE("Snapshots: a lock that is refused is done without only where nobody can have one", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    const auto opened = test::opened(directory);
    bool is_written_here = true;
    bool is_written_afar = false;
    write_file(directory.path() / SnapshotName{k_nobody, 1}.text(), random_bytes(10));
    std::size_t leftovers = 2;
    std::size_t doubtful = 0;
    const auto write = [&] { return write_snapshot(opened, contents.description, contents, small_write()); };
    if (!with_failing_calls({{SYS_flock, ENOLCK}}, [&] { is_written_here = write().has_value(); })) return;
    // As on a file system that nothing is known of.
    REQUIRE(with_failing_calls({{SYS_flock, ENOLCK}, {SYS_fstatfs, EIO}}, [&] {
        const auto written = write();
        is_written_afar = written.has_value();
        leftovers = opened->leftovers()->size();
        doubtful = opened->doubtful()->size();
    }));
    CHECK_FALSE(is_written_here);
    CHECK(is_written_afar);
    CHECK(leftovers == 0); // though their owners cannot be seen
    CHECK(doubtful == 2);
    CHECK(opened->remove_leftovers()->size() == 1);
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: a kernel that takes no requests, or lets nobody wait, is done without", "[store]") {
    const Scratch directory;
    SampleContents contents;
    const auto opened = test::opened(directory);
    const auto error = static_cast<std::uint32_t>(GENERATE(EBADF, ENOMEM, EAGAIN, EBUSY));
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    if (!with_failing_calls({{SYS_io_uring_enter, error, {}}}, [&] {
            const auto snapshot = write_snapshot(opened, contents.description, contents, small_write());
            if (!snapshot) {
                done = snapshot.error();
                return;
            }
            const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
            done = reader ? reader->read(contents, small_read()) : reader.error();
        }))
        return;
    CHECK(done);
    CHECK(contents.delivered.size() == places_of(contents.description.extents).size());
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
    SampleContents contents;
    const auto snapshot = written(directory, contents);
    const auto queue = open_io_queue();
    REQUIRE(queue);
    const auto count = snapshot->header.rows.size();
    for (std::size_t i = 0; i <= count; ++i) {
        contents.delivered.clear();
        Result<void> done;
        {
            const auto disk = std::make_shared<BadDisk>(**queue, i);
            const auto reader = need(SnapshotReader::open(snapshot->file, snapshot->header));
            auto options = small_read();
            options.queue = disk;
            done = reader.read(contents, options);
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
    MemoryContents contents("weights", random_bytes(50'000));
    const auto snapshot = written(directory, contents);
    const auto options = small_read(store::IoKind::threads);
    const auto bytes = snapshot->header.rows.front().stored_bytes;
    Result<void> done;
    Result<void> opened;
    if (!with_failing_calls({{SYS_pread64, EIO, bytes}}, [&] {
            const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
            opened = reader ? Result<void>() : reader.error();
            if (reader) done = reader->read(contents, options);
        }))
        return;
    REQUIRE(opened);
    CHECK(done.error().code == ErrorCode::io_failed);
    CHECK(contents.delivered.empty());
    CHECK(SnapshotReader::open(snapshot->file, snapshot->header)->read(contents, options));
}

} // namespace
} // namespace gpu_sleep::store
