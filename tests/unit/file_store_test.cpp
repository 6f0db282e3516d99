// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The seam of stores: chunks are coded apart from where they are kept, and what becomes of a parcel of files.

#include "store/file_store.hpp"

#include "support/descriptors.hpp"
#include "support/failing_call.hpp"
#include "support/sanitized.hpp"
#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using namespace test;

/// Chunks in memory, as coded.
class MemoryStore {
public:
    [[nodiscard]] PutChunk put() {
        return [this](const ChunkPlace& place, const CodedChunk& chunk, const ChunkDone& done,
                      const std::atomic<bool>& /*has_failed*/) -> Result<void> {
            {
                const std::lock_guard lock(mutex_);
                auto& kept = kept_[place.number];
                kept.bytes.assign(chunk.bytes.begin(), chunk.bytes.end());
                kept.chunk = chunk;
            }
            done({});
            return {};
        };
    }
    [[nodiscard]] GetChunk get() const {
        return [this](const ChunkPlace& place, std::byte* to,
                      const std::function<void(Result<CodedChunk>)>& done) -> Result<void> {
            const auto& kept = kept_.at(place.number);
            auto chunk = kept.chunk;
            chunk.bytes = {to, kept.bytes.size()};
            std::copy(kept.bytes.begin(), kept.bytes.end(), to);
            done(chunk);
            return {};
        };
    }
    void damage() { kept_.begin()->second.bytes.front() ^= std::byte{1}; }

private:
    struct Kept {
        std::vector<std::byte> bytes;
        CodedChunk chunk;
    };
    std::mutex mutex_;
    std::map<std::size_t, Kept> kept_;
};

/// Its contents lie apart: what take() gives is of no use.
class ApartContents final : public MemoryContents {
public:
    using MemoryContents::MemoryContents;
    [[nodiscard]] Result<std::span<const std::byte>> take(const ChunkPlace& place) override {
        GPU_SLEEP_TRY(MemoryContents::take(place));
        return std::span<const std::byte>(nothing_).first(place.bytes);
    }
    [[nodiscard]] Bytes look_bytes() const noexcept override { return held; }
    [[nodiscard]] Result<std::span<const std::byte>> look_at(const ChunkPlace& place,
                                                             std::span<const std::byte> taken,
                                                             std::vector<std::byte>& buffer) const override {
        if (place.number == damaged_at) return make_error(ErrorCode::damaged, "not as sealed");
        CHECK(taken.size() == place.bytes);
        const auto bytes = bytes_of(place);
        buffer.assign(bytes.begin(), bytes.end());
        return std::span<const std::byte>(buffer);
    }
    std::size_t damaged_at = SIZE_MAX; ///< chunk
    Bytes held = codec::k_chunk_bytes;

private:
    ByteVector nothing_ = ByteVector(codec::k_chunk_bytes);
};

TEST_CASE("Coding: what is put anywhere comes back, also what a source puts together", "[store]") {
    ApartContents contents("weights", normal_bf16(3 * k_mib));
    contents.add("kv_cache", random_bytes(4 * k_mib + 77));
    const auto& extents = contents.description.extents;
    MemoryStore store;
    REQUIRE(encode_all(places_of(extents), contents, store.put(), {}));
    CHECK(contents.is_quiet());
    REQUIRE(decode_all(places_of(extents), extents, contents, store.get(), {}));
    CHECK(contents.delivered.size() == places_of(extents).size());
    contents.delivered.clear();
    REQUIRE(decode_all(places_of(extents, {1}), extents, contents, store.get(), {}));
    CHECK(contents.delivered == std::vector<std::size_t>{2, 3});
    contents.delivered.clear();
    store.damage();
    const auto read = decode_all(places_of(extents), extents, contents, store.get(), {});
    CHECK(read.error().code == ErrorCode::damaged);
    CHECK(contents.delivered.empty());
}

TEST_CASE("Coding: contents that are not what they were are not put", "[store]") {
    ApartContents contents("weights", normal_bf16(3 * k_mib));
    contents.damaged_at = 1;
    MemoryStore store;
    const auto& extents = contents.description.extents;
    CHECK(encode_all(places_of(extents), contents, store.put(), {}).error().code == ErrorCode::damaged);
    CHECK(contents.is_quiet());
}

TEST_CASE("Coding: what a source puts together counts among the buffers", "[store]") {
    ApartContents contents("weights", random_bytes(12 * codec::k_chunk_bytes));
    MemoryStore store;
    CodingOptions options;
    options.threads = 1;
    options.under_way = 12;
    const auto encode = [&] {
        contents.most_out = 0;
        REQUIRE(encode_all(places_of(contents.description.extents), contents, store.put(), options));
        return contents.most_out;
    };
    contents.held = options.buffer_bytes;
    CHECK(encode() == 1);
    contents.held = 0;
    CHECK(encode() > 1);
}

std::unique_ptr<Parcel> put_in(const Scratch& directory, MemoryContents& contents) {
    const auto store = std::make_shared<FileStore>(test::opened(directory), HostBudget::own());
    auto parcel = need(store->reserve(contents.description.extents));
    const auto most = parcel->bytes;
    const auto put = need(parcel->put());
    REQUIRE(encode_all(places_of(contents.description.extents), contents, put, {}));
    REQUIRE(parcel->flush());
    CHECK(parcel->bytes <= most);
    CHECK(parcel->bytes == std::filesystem::file_size(parcel->name));
    return parcel;
}

Result<void> read(Parcel& parcel, MemoryContents& contents) {
    contents.delivered.clear();
    const auto get = GPU_SLEEP_TRY(parcel.get());
    const auto& extents = contents.description.extents;
    return decode_all(places_of(extents), extents, contents, get, {});
}

TEST_CASE("File store: what is kept outlasts its process, and what is older than the last sleep", "[store]") {
    struct Row {
        bool is_kept, is_closed, stays;
        std::size_t files;
    };
    const auto row = GENERATE(Row{false, false, true, 0}, Row{true, false, true, 1},
                              Row{true, false, false, 0}, Row{true, true, false, 1});
    const Scratch directory;
    MemoryContents contents("weights", normal_bf16(100'000));
    auto parcel = put_in(directory, contents);
    if (row.is_kept) {
        CHECK(*parcel->keep());
        CHECK(parcel->name.extension() == ".kept");
        REQUIRE(parcel->flush());
        CHECK_FALSE(*parcel->keep());
    }
    if (row.is_closed) {
        REQUIRE(parcel->close());
        REQUIRE(parcel->open());
    }
    CHECK(read(*parcel, contents));
    CHECK(parcel->forget(row.stays));
    parcel.reset();
    CHECK(directory.file_count() == row.files);
}

TEST_CASE("File store: a closed parcel holds nothing, and is used again if nobody changed it", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    auto parcel = put_in(directory, contents);
    CHECK(parcel->close().error().code == ErrorCode::refused); // not kept, or not yet for good
    REQUIRE(parcel->keep());
    CHECK(parcel->close().error().code == ErrorCode::refused);
    CHECK(parcel->bytes > 0);
    REQUIRE(parcel->flush());
    REQUIRE(parcel->close());
    CHECK(parcel->bytes == 0);
    CHECK(descriptors_in(directory.path()).empty());
    const auto before = read_file(parcel->name);
    SECTION("as it was") {
        REQUIRE(parcel->open());
        CHECK(parcel->bytes == before.size());
        CHECK(read(*parcel, contents));
    }
    SECTION("written to") {
        write_file(parcel->name, before);
        CHECK_FALSE(parcel->open());
        CHECK(parcel->bytes == 0);
    }
}

TEST_CASE("File store: what was put, and not flushed, goes with the way to put it", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    const auto store = std::make_shared<FileStore>(test::opened(directory), HostBudget::own());
    const auto parcel = need(store->reserve(contents.description.extents));
    {
        const auto put = need(parcel->put());
        REQUIRE(encode_all(places_of(contents.description.extents), contents, put, {}));
        CHECK(directory.file_count() == 1);
    }
    CHECK(directory.file_count() == 0);
    CHECK(parcel->flush().error().code == ErrorCode::refused);
    CHECK(parcel->put()); // once more
}

TEST_CASE("File store: what is put once more takes the place of what was flushed", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    const auto parcel = put_in(directory, contents);
    const auto before = parcel->name;
    {
        const auto put = need(parcel->put());
        REQUIRE(encode_all(places_of(contents.description.extents), contents, put, {}));
        REQUIRE(parcel->flush());
    }
    CHECK(parcel->name != before);
    CHECK(directory.file_count() == 1);
    CHECK(read(*parcel, contents));
}

TEST_CASE("File store: a parcel that cannot be taken up is closed as before", "[store]") {
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    auto parcel = put_in(directory, contents);
    REQUIRE(parcel->keep());
    REQUIRE(parcel->flush());
    REQUIRE(parcel->close());
    Result<void> opened;
    if (!with_failing_calls({{__NR_pread64, EIO}}, [&] { opened = parcel->open(); })) return;
    CHECK(opened.error().code == ErrorCode::io_failed);
    CHECK(parcel->bytes == 0);
    CHECK(descriptors_in(directory.path()).empty());
    REQUIRE(parcel->open());
    CHECK(read(*parcel, contents));
}

TEST_CASE("File store: where names could not be flushed, another parcel's flush does not count", "[store]") {
    const Scratch directory;
    const auto store = std::make_shared<FileStore>(test::opened(directory), HostBudget::own());
    MemoryContents contents("weights", random_bytes(50'000));
    std::vector<std::unique_ptr<Parcel>> parcels;
    for (int i = 0; i < 3; ++i) {
        auto& parcel = parcels.emplace_back(*store->reserve(contents.description.extents));
        const auto put = need(parcel->put());
        REQUIRE(encode_all(places_of(contents.description.extents), contents, put, {}));
        REQUIRE(parcel->flush());
        REQUIRE(parcel->keep());
    }
    const auto flush_fails = [&](Parcel& parcel) {
        Result<void> flushed;
        return with_failing_calls({{__NR_fsync, EIO}}, [&] { flushed = parcel.flush(); }) && !flushed;
    };
    CHECK(flush_fails(*parcels[0]));
    REQUIRE(parcels[1]->flush());
    CHECK(flush_fails(*parcels[0]));
    CHECK(flush_fails(*parcels[2]));
    CHECK(*parcels[0]->keep());
    REQUIRE(parcels[0]->flush());
    CHECK_FALSE(*parcels[0]->keep());
}

TEST_CASE("Snapshot writer: the pages of its header are there before the contents are written", "[store]") {
    const Scratch directory;
    const SnapshotDescription description{
        {}, {}, {4242, 123456}, ::geteuid(), {{0x1000000, 1024 * k_gib, "weights", 0}}};
    const auto resident = [] {
        Bytes size = 0;
        Bytes pages = 0;
        std::ifstream("/proc/self/statm") >> size >> pages;
        return pages * static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    };
    const auto writer = need(SnapshotWriter::create(test::opened(directory), description, {}));
    const auto before = resident();
    const auto snapshot = writer->finish();
    REQUIRE(snapshot);
    CHECK(resident() < before + header_bytes_of(description) / 2);
}

TEST_CASE("Snapshot writer: once the contents are written, its header needs no more pages", "[store]") {
    if (is_sanitized()) return skip("a sanitizer maps memory itself");
    const Scratch directory;
    MemoryContents contents("weights", random_bytes(50'000));
    const auto writer = need(SnapshotWriter::create(test::opened(directory), contents.description, {}));
    const auto put = [&](const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done,
                         const std::atomic<bool>& has_failed) {
        return writer->put(place, chunk, std::move(done), has_failed);
    };
    REQUIRE(encode_all(places_of(contents.description.extents), contents, put, {}));
    bool is_whole = false;
    const bool was_run =
        with_failing_calls({{__NR_mmap, ENOMEM}}, [&] { is_whole = writer->finish().has_value(); });
    if (!was_run) return skip("no call can be made to fail here");
    CHECK(is_whole);
}

} // namespace
} // namespace gpu_sleep::store
