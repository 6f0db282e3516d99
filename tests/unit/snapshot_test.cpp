// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots there and back, cut, bent, lied about, and with a disk that fails.

#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using namespace test;

TEST_CASE("Snapshots: what was written is read, by both queues, past the page cache or not", "[store]") {
    const auto io = GENERATE(IoKind::automatic, IoKind::threads);
    const auto direct = GENERATE(true, false);
    const Scratch directory;
    SampleContents contents;
    auto options = small_write(io);
    options.direct = direct;
    const auto snapshot = written(directory, contents, options);
    CHECK(contents.is_quiet());
    CHECK(contents.most_out <= 6);
    const bool by_name = GENERATE(true, false);
    const auto reader = need(by_name ? SnapshotReader::open(snapshot->file.path())
                                     : SnapshotReader::open(snapshot->file, snapshot->header));
    CHECK(reader.header().description == snapshot->header.description);
    CHECK(reader.header().description.extents == contents.description.extents);
    contents.most_out = 0;
    REQUIRE(reader.read(contents, small_read(io)));
    CHECK(contents.delivered.size() == reader.header().rows.size());
    CHECK(contents.most_out <= 6);
    CHECK(reader.header().file_bytes < contents.description.content_bytes() * 3 / 4);
}

TEST_CASE("Snapshots: single extents, and those that are not there", "[store]") {
    const Scratch directory;
    SampleContents contents;
    const auto snapshot = written(directory, contents);
    const auto reader = need(SnapshotReader::open(snapshot->file.path()));
    auto options = small_read();
    options.extents = {3, 1};
    REQUIRE(reader.read(contents, options));
    CHECK(contents.delivered == std::vector<std::size_t>{2, 3, 5});
    options.extents = {6};
    CHECK(reader.read(contents, options).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("Snapshots: files are private, and go with their owner unless kept", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    std::filesystem::path kept;
    {
        auto snapshot = written(directory, contents);
        struct stat status = {};
        REQUIRE(::stat(snapshot->file.path().c_str(), &status) == 0);
        CHECK((status.st_mode & 07777) == 0600);
        CHECK(snapshot->file.name().kind == SnapshotName::Kind::sleeping);
        CHECK(directory.file_count() == 1);
        auto other = written(directory, contents);
        REQUIRE(other->file.keep());
        { REQUIRE(written(directory, contents)->file.keep()); }
        CHECK(directory.file_count() == 2);
        CHECK(other->file.name().kind == SnapshotName::Kind::kept);
        kept = other->file.path();
        other->file.let_stay();
    }
    CHECK(directory.file_count() == 1);
    CHECK(SnapshotReader::open(kept));
    CHECK(opened(directory)->leftovers()->empty());
}

TEST_CASE("Snapshots: a small bound for buffers still works, one chunk at a time", "[store]") {
    const Scratch directory;
    SampleContents contents;
    auto options = small_write();
    options.buffer_bytes = k_mib;
    const auto snapshot = written(directory, contents, options);
    CHECK(contents.most_out == 1);
    auto reading = small_read();
    reading.buffer_bytes = k_mib;
    contents.most_out = 0;
    REQUIRE(SnapshotReader::open(snapshot->file.path())->read(contents, reading));
    CHECK(contents.most_out == 1);
}

TEST_CASE("Snapshots: without extents", "[store]") {
    const Scratch directory;
    MemoryContents contents;
    CHECK(read_all(written(directory, contents)->file.path(), contents));
}

TEST_CASE("Snapshots: a source or a sink that fails at any chunk", "[store]") {
    const Scratch directory;
    SampleContents contents;
    const auto count = places_of(contents.description.extents).size();
    for (std::size_t i = 0; i < count; ++i) {
        contents.fails_at = i;
        CHECK(try_to_write(directory, contents).error().code == ErrorCode::driver_failed);
        CHECK(contents.is_quiet());
        CHECK(directory.file_count() == 0);
    }
    contents.fails_at = SIZE_MAX;
    const auto snapshot = written(directory, contents);
    for (std::size_t i = 0; i < count; ++i) {
        contents.fails_at = i;
        CHECK(read_all(snapshot->file.path(), contents).error().code == ErrorCode::driver_failed);
    }
}

TEST_CASE("Snapshots: one that is cut at any 4 KiB, or longer, is refused", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", normal_bf16(100'000));
    contents.add("kv_cache", random_bytes(100'000));
    auto snapshot = written(directory, contents);
    const auto path = snapshot->file.path();
    const auto size = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, size + 4096);
    CHECK(read_all(path, contents).error().code == ErrorCode::damaged);
    for (auto left = size; left > 0;) {
        left -= std::min<std::uintmax_t>(left, 4096);
        std::filesystem::resize_file(path, left);
        CHECK(read_all(path, contents).error().code == ErrorCode::damaged);
    }
}

TEST_CASE("Snapshots: a flipped bit anywhere in the header, and in every block, is found", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", normal_bf16(100'000));
    contents.add("kv_cache", random_bytes(20'000));
    auto snapshot = written(directory, contents);
    const auto path = snapshot->file.path();
    auto bytes = read_file(path);
    REQUIRE(read_all(path, contents));
    for (std::size_t i = 0; i < bytes.size(); i += i < 1500 ? 1 : 499) {
        const auto bit = static_cast<std::byte>(1 << i % 8);
        bytes[i] ^= bit;
        write_file(path, bytes);
        const auto result = read_all(path, contents);
        if (result || result.error().code != ErrorCode::damaged) FAIL("flipped in byte " << i);
        CHECK(contents.delivered.size() < 2);
        bytes[i] ^= bit;
    }
}

TEST_CASE("Snapshots: one that is held open is read whatever became of its name", "[store]") {
    const Scratch directory;
    SampleContents contents;
    auto options = small_write();
    options.direct = GENERATE(true, false);
    auto one = written(directory, contents, options);
    auto other = written(directory, contents, options);
    const auto path = one->file.path();
    SECTION("renamed") {
        std::filesystem::rename(path, path.string() + ".away");
    }
    SECTION("removed") {
        std::filesystem::remove(path);
    }
    SECTION("replaced by another one, which is then nobody's to remove") {
        std::filesystem::rename(other->file.path(), path);
    }
    SECTION("replaced by a symbolic link") {
        std::filesystem::remove(path);
        std::filesystem::create_symlink(other->file.path(), path);
    }
    const bool has_name = std::filesystem::exists(path);
    {
        const auto reader = need(SnapshotReader::open(one->file, one->header));
        REQUIRE(reader.read(contents, small_read()));
        CHECK(contents.delivered.size() == reader.header().rows.size());
    }
    { const auto gone = std::move(one); } // removes only what it made
    CHECK(std::filesystem::exists(path) == has_name);
}

TEST_CASE("Snapshots: another one that was written over it is noticed", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(5000));
    const auto one = written(directory, contents);
    const auto other = written(directory, contents);
    write_file(one->file.path(), read_file(other->file.path()));
    CHECK(SnapshotReader::open(one->file, one->header).error().code == ErrorCode::damaged);
}

} // namespace
} // namespace gpu_sleep::store
