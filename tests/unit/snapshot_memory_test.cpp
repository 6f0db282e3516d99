// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots while memory runs out: every allocation fails once, on whichever thread it is.

#include "support/descriptors.hpp"
#include "support/failing_new.hpp"
#include "support/sanitized.hpp"
#include "support/snapshots.hpp"

#include <malloc.h>

namespace gpu_sleep::store {
namespace {

using namespace test;

/// Contents that take no memory once they are made.
class Contents final : public ChunkSource, public ChunkSink {
public:
    Contents() {
        for (const auto bytes : {200'000, 3000, 70'000}) {
            bytes_.push_back(normal_bf16(static_cast<std::size_t>(bytes)));
            spaces_.emplace_back(bytes_.back().size());
            extents.push_back({0x1000000 * bytes_.size(), bytes_.back().size(), "weights", 0});
        }
    }
    [[nodiscard]] Result<std::span<const std::byte>> take(const ChunkPlace& place) override {
        ++out_;
        return std::span<const std::byte>(bytes_[place.extent]);
    }
    void release(const ChunkPlace&) noexcept override { --out_; }
    [[nodiscard]] Result<std::span<std::byte>> space(const ChunkPlace& place) override {
        return std::span<std::byte>(spaces_[place.extent]);
    }
    [[nodiscard]] Result<void> deliver(const ChunkPlace& place, std::span<const std::byte> content) override {
        is_right_ = is_right_ && std::equal(content.begin(), content.end(), bytes_[place.extent].begin(),
                                            bytes_[place.extent].end());
        return {};
    }
    [[nodiscard]] bool is_quiet() const { return out_ == 0; }
    [[nodiscard]] bool is_right() const { return is_right_; }

    std::vector<SnapshotExtent> extents;

private:
    std::vector<ByteVector> bytes_;
    std::vector<ByteVector> spaces_;
    std::atomic<int> out_{0};
    bool is_right_ = true;
};

/// Runs `body` with the n-th allocation failing, for every n that it reaches. `check(result)` after each.
template <class Body, class Check>
void for_every_allocation(bool lasting, Body&& body, Check&& check) {
    static_cast<void>(HostBudget::own()); // made before memory runs out, as the agent makes it
    bool was_reached = true;
    for (long n = 0; was_reached; ++n) {
        INFO("allocation " << n);
        g_allocations.lasts = lasting;
        g_allocations.left = n;
        g_allocations.counts = true;
        auto result = body();
        g_allocations.counts = false;
        was_reached = g_allocations.left < 0;
        check(result);
        if (!was_reached) CHECK(n > 10);
    }
}

WriteOptions write_options(IoKind io) {
    WriteOptions options;
    options.threads = 2;
    options.io = io;
    return options;
}

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
#define GPU_SLEEP_HAVE_MALLINFO
/// Whether the allocator maps a block of this size for itself, and so gives it back when it is freed.
bool is_mapped_for_itself(std::size_t bytes) {
    const auto before = ::mallinfo2().hblks;
    void* const block = std::malloc(bytes);
    const auto with = ::mallinfo2().hblks;
    std::free(block);
    return with > before;
}
#endif

} // namespace

#ifdef GPU_SLEEP_HAVE_MALLINFO
TEST_CASE("Snapshots: large buffers are not the allocator's, which would keep such for good", "[store]") {
    if (is_sanitized()) return skip("a sanitizer has an allocator of its own");
    const Scratch directory;
    Contents contents;
    SnapshotDescription description{{}, {}, {4242, 123456}, ::geteuid(), contents.extents};
    {
        const auto snapshot = need(
            write_snapshot(test::opened(directory), description, contents, write_options(IoKind::automatic)));
        CHECK(need(SnapshotReader::open(snapshot.file, snapshot.header)).read(contents, {}));
        CHECK(SnapshotReader::open(snapshot.file.path()));
    }
    CHECK(is_mapped_for_itself(3 * k_mib)); // less than any of the buffers
}
#endif

TEST_CASE("Snapshots: memory that runs out at any allocation ends a writing, and leaves nothing", "[store]") {
    const auto io = GENERATE(IoKind::automatic, IoKind::threads);
    const auto lasting = GENERATE(false, true);
    const Scratch directory;
    const auto opened = test::opened(directory);
    Contents contents;
    SnapshotDescription description{{}, {}, {4242, 123456}, ::geteuid(), contents.extents};
    int written = 0;
    for_every_allocation(
        lasting,
        [&] {
            return guarded([&]() -> Result<void> {
                const auto snapshot = write_snapshot(opened, description, contents, write_options(io));
                if (!snapshot) return snapshot.error();
                ++written;
                return {};
            });
        },
        [&](const Result<void>& result) {
            if (!result) CHECK(result.error().code == ErrorCode::out_of_host_memory);
            CHECK(contents.is_quiet());
            CHECK(directory.file_count() == 0);
        });
    CHECK(written > 0);
}

TEST_CASE("Snapshots: memory that runs out anywhere ends a reading, which can be tried again", "[store]") {
    const auto io = GENERATE(IoKind::automatic, IoKind::threads);
    const auto lasting = GENERATE(false, true);
    const auto is_cut = GENERATE(false, true); // errors, too, take memory
    const Scratch directory;
    Contents contents;
    SnapshotDescription description{{}, {}, {4242, 123456}, ::geteuid(), contents.extents};
    const auto snapshot = write_snapshot(test::opened(directory), description, contents, write_options(io));
    REQUIRE(snapshot);
    SnapshotReadOptions options;
    options.threads = 2;
    options.io = io;
    const auto reader = need(SnapshotReader::open(snapshot->file, snapshot->header));
    if (is_cut) std::filesystem::resize_file(snapshot->file.path(), 4096);
    for_every_allocation(
        lasting, [&] { return reader.read(contents, options); },
        [&](const Result<void>& result) {
            if (is_cut) CHECK_FALSE(result);
            if (!result)
                CHECK((result.error().code == ErrorCode::out_of_host_memory ||
                       (is_cut && result.error().code == ErrorCode::damaged)));
            CHECK(contents.is_right());
        });
    if (!is_cut) CHECK(reader.read(contents, options));
}

TEST_CASE("Snapshots: memory that runs out at any allocation ends an opening", "[store]") {
    const Scratch directory;
    Contents contents;
    SnapshotDescription description{{}, {}, {4242, 123456}, ::geteuid(), contents.extents};
    const auto snapshot =
        write_snapshot(test::opened(directory), description, contents, write_options(IoKind::threads));
    REQUIRE(snapshot);
    for_every_allocation(
        GENERATE(false, true), [&] { return SnapshotReader::open(snapshot->file, snapshot->header); },
        [&](const Result<SnapshotReader>& result) {
            if (!result) CHECK(result.error().code == ErrorCode::out_of_host_memory);
        });
}

TEST_CASE("File store: memory that runs out at any allocation leaves a closed parcel closed", "[store]") {
    const Scratch directory;
    Contents contents;
    auto parcel =
        std::make_shared<FileStore>(test::opened(directory), HostBudget::own())->reserve(contents.extents);
    REQUIRE(parcel);
    {
        const auto put = need((*parcel)->put());
        REQUIRE(encode_all(places_of(contents.extents), contents, put, {}));
        REQUIRE((*parcel)->flush());
    }
    REQUIRE((*parcel)->keep());
    REQUIRE((*parcel)->flush());
    REQUIRE((*parcel)->close());
    for_every_allocation(
        GENERATE(false, true), [&] { return guarded([&] { return (*parcel)->open(); }); },
        [&](const Result<void>& result) {
            if (result) REQUIRE((*parcel)->close());
            CHECK(descriptors_in(directory.path()).empty());
        });
}

} // namespace gpu_sleep::store
