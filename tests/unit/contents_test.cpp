// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents that die: what is worth giving back, who is told, and what is said to be held.

#include "contents/contents.hpp"

#include "support/result_printing.hpp"

#include <ctime>

using namespace gpu_sleep;
using contents::Contents;
using contents::Number;
using contents::Waste;

namespace {

constexpr auto k_piece = store::HostArena::k_piece_bytes;

/// Ranges that lie one after another in one batch, in host memory if nothing else is said.
class Tag {
public:
    explicit Tag(const std::vector<Bytes>& sizes, model::Store store = model::Store::host,
                 const contents::SaveOptions& options = {}) {
        std::map<Number, contents::KeptRange> ranges;
        contents::Batches batches;
        auto& batch = *batches.emplace_back(contents.make_batch({0, "weights"}, store, options));
        for (const auto bytes : sizes) {
            contents::KeptRange range;
            range.spans = {{0, bytes}};
            range.stored = bytes;
            range.blocks.resize(contents::block_count(bytes));
            contents::for_each_block(range, [&](contents::Block& block, Span span, std::size_t) {
                block.place = batch.add(1, {0x7000'0000 + span.offset, span.bytes});
            });
            numbers_.push_back(contents.next_number());
            ranges.emplace(numbers_.back(), std::move(range));
        }
        REQUIRE(batch.begin());
        contents.admit(ranges, batches);
        contents.when_wasted([this] { ++told; });
    }
    void free(std::size_t index) { contents.forget(numbers_[index]); }
    bool retain(std::size_t index, Bytes& room) { return contents.retain(numbers_[index], room); }
    /// The part that is worth giving back; it is said to have given back `bytes`.
    std::optional<Waste> shrink(Bytes bytes) {
        auto waste = contents.find_waste();
        if (waste) Contents::note_shrunk(*waste, bytes);
        return waste;
    }
    [[nodiscard]] Bytes host_bytes() const { return contents.held(model::Store::host); }

private:
    driver::Api api_{};
    std::vector<Number> numbers_;

public:
    Contents contents{api_, {}};
    int told = 0;
};

/// In a file that stays, and counts how often it is closed.
class KeptParcel final : public store::Parcel {
public:
    explicit KeptParcel(int& closed) : Parcel({}), closed_(closed) {
        bytes = 1;
        is_kept = true;
    }
    [[nodiscard]] Result<store::PutChunk> put() override { return unused(); }
    [[nodiscard]] Result<void> flush() override { return unused(); }
    [[nodiscard]] Result<store::GetChunk> get() override { return unused(); }
    [[nodiscard]] Result<bool> keep() override { return false; }
    [[nodiscard]] Result<void> close() override {
        bytes = 0;
        ++closed_;
        return {};
    }
    [[nodiscard]] Result<void> open() override { return unused(); }
    [[nodiscard]] bool forget(bool /*stays*/) noexcept override { return true; }

private:
    [[nodiscard]] static Error unused() { return make_error(ErrorCode::internal, "not in this test"); }
    int& closed_;
};

class KeptStore final : public store::ParcelStore {
public:
    [[nodiscard]] Result<std::unique_ptr<store::Parcel>>
    reserve(std::vector<store::SnapshotExtent>) override {
        return std::unique_ptr<store::Parcel>(new KeptParcel(closed));
    }
    int closed = 0;
};

} // namespace

TEST_CASE("Contents: a kept file is closed with the last of its ranges that wakes, in no time",
          "[contents]") {
    constexpr std::size_t k_count = 40'000;
    const auto store = std::make_shared<KeptStore>();
    contents::SaveOptions options;
    options.store = store;
    Tag tag(std::vector<Bytes>(k_count, 4096), model::Store::file, options);
    auto room = std::numeric_limits<Bytes>::max();
    tag.free(0); // it never wakes
    const auto begun = std::clock();
    for (std::size_t i = 1; i < k_count - 1; ++i) REQUIRE(tag.retain(i, room));
    tag.free(1);
    CHECK(store->closed == 0);
    CHECK(tag.retain(k_count - 1, room));
    CHECK(store->closed == 1);
    CHECK((std::clock() - begun) / CLOCKS_PER_SEC < 3); // not as the square of their number
}

TEST_CASE("Contents: a piece is worth shrinking once a quarter of what it holds has died", "[contents]") {
    Tag tag(std::vector<Bytes>(16, 2 * k_mib));
    CHECK(tag.host_bytes() == 32 * k_mib);
    for (const std::size_t i : {0U, 5U, 9U}) tag.free(i);
    CHECK(tag.told == 0);
    CHECK_FALSE(tag.contents.has_waste());
    CHECK_FALSE(tag.shrink(0));
    tag.free(14);
    CHECK(tag.told == 1);
    CHECK(tag.contents.has_waste());
    const auto waste = test::need(tag.shrink(8 * k_mib));
    CHECK(waste.part == 0);
    REQUIRE(waste.needed.size() == 12);
    CHECK(waste.needed.front().offset == 2 * k_mib);
    CHECK(waste.needed.back().offset == 30 * k_mib);
    CHECK(tag.host_bytes() == 24 * k_mib);
    CHECK_FALSE(tag.shrink(0));

    // A quarter of what is left.
    for (const std::size_t i : {1U, 2U}) tag.free(i);
    CHECK_FALSE(tag.contents.has_waste());
    tag.free(3);
    CHECK(tag.told == 2);
    CHECK(tag.shrink(6 * k_mib));
    CHECK(tag.host_bytes() == 18 * k_mib);
}

TEST_CASE("Contents: a piece that gives nothing back is not tried until more of it dies", "[contents]") {
    Tag tag(std::vector<Bytes>(4, 4 * k_mib));
    tag.free(0);
    CHECK(tag.shrink(0));
    CHECK_FALSE(tag.shrink(0));
    CHECK(tag.host_bytes() == 16 * k_mib);
    tag.free(1);
    CHECK(tag.shrink(8 * k_mib));
    CHECK(tag.host_bytes() == 8 * k_mib);
}

TEST_CASE("Contents: a piece in which nothing lives goes, with what rounds its last block up", "[contents]") {
    const auto last = GENERATE(Bytes{256}, Bytes{100}); // whole, and short of what it takes
    Tag tag({k_piece - 256, last, 4 * k_mib});
    tag.free(0);
    CHECK(tag.shrink(k_piece - 2 * k_mib));
    tag.free(1);
    const auto waste = test::need(tag.shrink(2 * k_mib));
    CHECK(waste.part == 0);
    CHECK(waste.needed.empty());
    CHECK(tag.host_bytes() == 4 * k_mib);
}

TEST_CASE("Contents: what is together in a store is so on the device, and of one range", "[contents]") {
    struct Added {
        Number range;
        driver::AddressSpan memory;
    };
    using Extents = std::vector<Bytes>; // their sizes
    struct Row {
        std::vector<Added> blocks;
        Extents extents;
    };
    const std::vector<Row> rows{
        {{{1, {0, k_mib}}, {1, {k_mib, k_mib}}, {1, {2 * k_mib, 5}}}, {2 * k_mib + 5}},
        {{{1, {0, k_mib}}, {1, {2 * k_mib, k_mib}}}, {k_mib, k_mib}},
        {{{1, {0, k_mib}}, {2, {k_mib, k_mib}}}, {k_mib, k_mib}},
        {{{1, {0, 4096}}, {1, {4096, k_mib}}}, {4096, k_mib}},
    };
    for (const auto& row : rows) {
        contents::Batch batch({0, "weights"}, std::make_shared<store::FileStore>());
        Bytes end = 0;
        for (const auto& [range, memory] : row.blocks) {
            const auto place = batch.add(range, memory);
            CHECK_FALSE(place.is_coded());
            CHECK(place.bytes == memory.bytes);
            CHECK(place.at >= end);
            end = place.span().end();
            const auto extent = batch.extent_at(place.at);
            CHECK(extent == batch.extents().size() - 1);
            CHECK(batch.extents()[extent].address + (place.at - batch.start_of(extent)) == memory.address);
        }
        Extents extents;
        for (const auto& extent : batch.extents()) extents.push_back(extent.bytes);
        CHECK(extents == row.extents);
        CHECK(batch.needs());
    }
}

TEST_CASE("Contents: contents in two pieces count in both", "[contents]") {
    Tag tag({k_piece - 8 * k_mib, 16 * k_mib, 24 * k_mib});
    tag.free(0);
    auto waste = tag.shrink(k_piece - 8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->part == 0);
    REQUIRE(waste->needed.size() == 1);
    CHECK(waste->needed.front().offset == k_piece - 8 * k_mib);
    tag.free(1);
    CHECK(tag.told == 2);
    waste = tag.shrink(8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->needed.empty());
    waste = tag.shrink(8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->part == 1);
    REQUIRE(waste->needed.size() == 1);
    CHECK(waste->needed.front().offset == k_piece + 8 * k_mib);
    CHECK(tag.host_bytes() == 24 * k_mib);
}

TEST_CASE("Contents: one that nothing needs is told of, and held until it is reaped", "[contents]") {
    Tag tag({4 * k_mib, 4 * k_mib});
    tag.free(0);
    const auto waste = test::need(tag.contents.find_waste());
    tag.free(1); // while the piece is being shrunk
    Contents::note_shrunk(waste, 4 * k_mib);
    CHECK(tag.told == 2);
    CHECK(tag.contents.has_waste());
    CHECK(tag.host_bytes() == 0);
    CHECK(tag.contents.retired_bytes() == 4 * k_mib);
    CHECK_FALSE(tag.shrink(0));
    CHECK(tag.contents.reap().size() == 1);
    CHECK(tag.contents.retired_bytes() == 0);
    CHECK_FALSE(tag.contents.has_waste());
}
