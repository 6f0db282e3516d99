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
    MemoryContents contents("weights", test::random_bytes(5000));
    const auto opened = test::opened(directory);
    const auto failing =
        GENERATE(test::FailingCall{SYS_fsync, EIO, {}}, test::FailingCall{SYS_renameat2, EIO, {}},
                 test::FailingCall{SYS_fsync, ENOSPC, {}}, test::FailingCall{SYS_renameat2, ENOSPC, {}},
                 test::FailingCall{SYS_pwrite64, ENOSPC, {}}, test::FailingCall{SYS_pwrite64, EDQUOT, {}},
                 test::FailingCall{SYS_ftruncate, EIO, {}});
    std::optional<Error> error;
    const bool was_run = test::with_failing_calls({failing}, [&] {
        const auto snapshot = test::write_snapshot(opened, contents.description, contents, small_write());
        if (!snapshot) error = snapshot.error();
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE(error);
    CHECK(error->code == (failing.error != EIO ? ErrorCode::out_of_disk : ErrorCode::io_failed));
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: a file whose contents could not be flushed is not used, though its directory was",
          "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", test::random_bytes(5000));
    const auto opened = test::opened(directory);
    const auto descriptor = static_cast<std::uint32_t>(test::descriptors_in(directory.path()).at(0));
    const auto error = static_cast<std::uint32_t>(GENERATE(EIO, ENOSPC));
    const test::FailingCall of_directory{SYS_fsync, 0, {}, descriptor}; // which succeeds
    Result<void> done;
    const bool was_run = test::with_failing_calls({of_directory, {SYS_fsync, error, {}}}, [&] {
        const auto snapshot = test::write_snapshot(opened, contents.description, contents, small_write());
        if (!snapshot) done = snapshot.error();
    });
    if (!was_run) return test::skip_without_right("filter its system calls");
    REQUIRE_FALSE(done);
    CHECK(done.error().code == (error != EIO ? ErrorCode::out_of_disk : ErrorCode::io_failed));
    CHECK(done.error().message.find("fsync") != std::string::npos);
    CHECK(directory.file_count() == 0);
}

TEST_CASE("Snapshots: what some file systems do not have is done without", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", test::random_bytes(50'000));
    const auto opened = test::opened(directory);
    const auto descriptor = static_cast<std::uint32_t>(test::descriptors_in(directory.path()).at(0));
    const auto failing = GENERATE_COPY(
        test::FailingCall{SYS_flock, EOPNOTSUPP, {}}, test::FailingCall{SYS_flock, ENOSYS, {}},
        test::FailingCall{SYS_renameat2, EINVAL, {}}, test::FailingCall{SYS_renameat2, ENOSYS, {}},
        test::FailingCall{SYS_fsync, EINVAL, {}, descriptor});
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    const bool was_run = test::with_failing_calls({failing}, [&] {
        auto snapshot = test::write_snapshot(opened, contents.description, contents, small_write());
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

TEST_CASE("Snapshots: a lock that is refused is done without only where nobody can have one", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", test::random_bytes(5000));
    const auto opened = test::opened(directory);
    bool is_written_here = true;
    bool is_written_afar = false;
    test::write_file(directory.path() / SnapshotName{test::k_nobody, 1}.text(), test::random_bytes(10));
    std::size_t leftovers = 2;
    std::size_t doubtful = 0;
    bool was_run = test::with_failing_calls({{SYS_flock, ENOLCK, {}}}, [&] {
        is_written_here =
            test::write_snapshot(opened, contents.description, contents, small_write()).has_value();
    });
    // As on a file system that nothing is known of.
    was_run = was_run && test::with_failing_calls({{SYS_flock, ENOLCK, {}}, {SYS_fstatfs, EIO, {}}}, [&] {
                  const auto written =
                      test::write_snapshot(opened, contents.description, contents, small_write());
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

TEST_CASE("Snapshots: a kernel that takes no requests, or lets nobody wait for them, is done without",
          "[store]") {
    const Scratch directory;
    test::SampleContents contents;
    const auto opened = test::opened(directory);
    const auto error = static_cast<std::uint32_t>(GENERATE(EBADF, ENOMEM, EAGAIN, EBUSY));
    Result<void> done = make_error(ErrorCode::internal, "it was not run");
    const bool was_run = test::with_failing_calls({{SYS_io_uring_enter, error, {}}}, [&] {
        const auto snapshot = test::write_snapshot(opened, contents.description, contents, small_write());
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
    test::SampleContents contents;
    const auto snapshot = test::written(directory, contents);
    const auto queue = open_io_queue();
    REQUIRE(queue);
    const auto count = snapshot->header.rows.size();
    for (std::size_t i = 0; i <= count; ++i) {
        contents.delivered.clear();
        Result<void> done;
        {
            const auto disk = std::make_shared<BadDisk>(**queue, i);
            const auto reader = SnapshotReader::open(snapshot->file, snapshot->header);
            REQUIRE(reader);
            auto options = small_read();
            options.queue = disk;
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
    MemoryContents contents("weights", test::random_bytes(50'000));
    const auto snapshot = test::written(directory, contents);
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
