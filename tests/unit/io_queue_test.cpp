// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads and writes that a file system does not take as they are.

#include "support/descriptors.hpp"
#include "support/snapshots.hpp"

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
        REQUIRE(move_bytes(IoRequest::Kind::write, fd.get(), bytes.data() + 1, 100'000, 3));
        test::ByteVector read(100'000);
        use_direct_io(fd.get());
        REQUIRE(move_bytes(IoRequest::Kind::read, fd.get(), read.data(), read.size(), 3));
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
