// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads and writes that a file system does not take as they are.

#include "support/descriptors.hpp"
#include "support/snapshots.hpp"

#include <future>

namespace gpu_sleep::store {
namespace {

/// A file that passes by the page cache where the file system lets it.
UniqueFd direct_file(const test::Scratch& directory) {
    UniqueFd fd(::open((directory.path() / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(fd);
    use_direct_io(fd.get());
    return fd;
}

TEST_CASE("Reads and writes: those that are refused past the page cache go through it", "[store]") {
    const test::Scratch directory;
    auto bytes = test::random_bytes(100'001);
    SECTION("at once") {
        const auto fd = direct_file(directory);
        REQUIRE(move_bytes({IoRequest::Kind::write, fd.get(), bytes.data() + 1, 100'000, 3}));
        test::ByteVector read(100'000);
        use_direct_io(fd.get());
        REQUIRE(move_bytes({IoRequest::Kind::read, fd.get(), read.data(), read.size(), 3}));
        CHECK(std::equal(read.begin(), read.end(), bytes.begin() + 1));
    }
    SECTION("by a queue") {
        constexpr std::size_t k_parts = 50; // several of them refused at the same time
        constexpr std::size_t k_part = 2000;
        const auto fd = direct_file(directory);
        const auto queue = test::need(open_io_queue(GENERATE(IoKind::automatic, IoKind::threads)));
        test::ByteVector read(bytes.size());
        const auto move_all = [&](IoRequest::Kind kind, std::byte* data) {
            std::atomic<std::size_t> left{k_parts};
            std::atomic<bool> has_failed{false};
            for (std::size_t i = 0; i < k_parts; ++i)
                queue->submit(
                    {kind, fd.get(), data + 1 + i * k_part, k_part, i * k_part, [&](Result<void> moved) {
                         if (!moved) has_failed = true;
                         --left;
                     }});
            while (left > 0) std::this_thread::yield();
            return !has_failed;
        };
        CHECK(move_all(IoRequest::Kind::write, bytes.data()));
        use_direct_io(fd.get());
        CHECK(move_all(IoRequest::Kind::read, read.data()));
        CHECK(std::equal(read.begin() + 1, read.end(), bytes.begin() + 1));
    }
}

TEST_CASE("Reads and writes: what waits in a queue goes to no file of the program's own", "[store]") {
    const test::Scratch directory;
    const int number = direct_file(directory).release(); // the usurper closes it
    const auto file = FileIdentity::of(number).value();
    auto bytes = test::random_bytes(4096);
    const auto write = [&](
                           IoQueue& queue, std::function<void()> before_result = [] {}) {
        auto written = std::make_shared<std::promise<Result<void>>>();
        queue.submit({IoRequest::Kind::write, number, bytes.data(), bytes.size(), 0,
                      [=](Result<void> result) {
                          before_result();
                          written->set_value(std::move(result));
                      },
                      file});
        return written->get_future();
    };
    const auto one_thread = test::need(open_io_queue(IoKind::threads, IoUse::cached_writes));
    std::promise<void> both_wait;
    std::optional<test::Usurper> usurper;
    auto first = write(*one_thread, [&] {
        both_wait.get_future().wait();
        usurper.emplace(std::vector{number});
    });
    auto second = write(*one_thread);
    both_wait.set_value();
    CHECK(first.get());
    CHECK(test::error_of(second.get()).code == ErrorCode::io_failed);
    const auto kernels = test::need(open_io_queue(IoKind::automatic));
    CHECK(test::error_of(write(*kernels).get()).code == ErrorCode::io_failed);
    CHECK(usurper->is_unharmed());
}

TEST_CASE("Reads and writes: a queue whose number the program uses again leaves that alone", "[store]") {
    constexpr const char* k_ring = "anon_inode:[io_uring]";
    auto queue = test::need(open_io_queue(IoKind::automatic));
    const auto numbers = test::descriptors_in(k_ring);
    if (numbers.empty()) return test::skip("there is no io_uring here");
    const test::Usurper usurper(numbers);
    queue.reset();
    CHECK(usurper.is_unharmed());
}

} // namespace
} // namespace gpu_sleep::store
