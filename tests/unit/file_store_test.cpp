// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The seam of stores: chunks are coded apart from where they are kept, and what becomes of a parcel of files.

#include "store/file_store.hpp"

#include "store/coding.hpp"
#include "support/descriptors.hpp"
#include "support/snapshots.hpp"

namespace gpu_sleep::store {
namespace {

using test::MemoryContents;
using test::Scratch;

/// Chunks in memory, as coded.
class MemoryStore {
public:
    [[nodiscard]] PutChunk put() {
        return [this](const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done) -> Result<void> {
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

private:
    test::ByteVector nothing_ = test::ByteVector(codec::k_chunk_bytes);
};

TEST_CASE("Coding: what is put anywhere comes back, also what a source puts together", "[store]") {
    ApartContents contents("weights", test::normal_bf16(3 * k_mib));
    contents.add("kv_cache", test::random_bytes(4 * k_mib + 77));
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
    ApartContents contents("weights", test::normal_bf16(3 * k_mib));
    contents.damaged_at = 1;
    MemoryStore store;
    const auto& extents = contents.description.extents;
    CHECK(encode_all(places_of(extents), contents, store.put(), {}).error().code == ErrorCode::damaged);
    CHECK(contents.is_quiet());
}

std::unique_ptr<Parcel> put_in(const Scratch& directory, MemoryContents& contents) {
    const auto store = std::make_shared<FileStore>(test::opened(directory), ClaimOptions());
    auto parcel = store->reserve(contents.description.extents);
    REQUIRE(parcel);
    const auto most = (*parcel)->bytes;
    const auto put = (*parcel)->put();
    REQUIRE(put);
    REQUIRE(encode_all(places_of(contents.description.extents), contents, *put, {}));
    REQUIRE((*parcel)->flush());
    CHECK((*parcel)->bytes <= most);
    CHECK((*parcel)->bytes == std::filesystem::file_size((*parcel)->name));
    return *std::move(parcel);
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
    MemoryContents contents("weights", test::normal_bf16(100'000));
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
    MemoryContents contents("weights", test::random_bytes(50'000));
    auto parcel = put_in(directory, contents);
    CHECK(parcel->close().error().code == ErrorCode::refused); // not kept, or not yet for good
    REQUIRE(parcel->keep());
    CHECK(parcel->close().error().code == ErrorCode::refused);
    CHECK(parcel->bytes > 0);
    REQUIRE(parcel->flush());
    REQUIRE(parcel->close());
    CHECK(parcel->bytes == 0);
    CHECK(test::descriptors_in(directory.path()).empty());
    const auto before = test::read_file(parcel->name);
    SECTION("as it was") {
        REQUIRE(parcel->open());
        CHECK(parcel->bytes == before.size());
        CHECK(read(*parcel, contents));
    }
    SECTION("written to") {
        test::write_file(parcel->name, before);
        CHECK_FALSE(parcel->open());
        CHECK(parcel->bytes == 0);
    }
}

} // namespace
} // namespace gpu_sleep::store
