// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Vaults whose contents die: what is worth giving back, who is told, and what is said to be held.

#include "sleep/vault.hpp"

#include "support/catch.hpp"
#include "support/result_printing.hpp"

#include <utility>
#include <vector>

using namespace gpu_sleep;
using ledger::KeptExtent;
using sleep::Vault;
using sleep::Vaults;

namespace {

constexpr auto k_piece = store::HostArena::k_piece_bytes;

/// Contents that lie one after another in one arena, each a backing's.
class Tag {
public:
    explicit Tag(const std::vector<Bytes>& sizes) {
        Bytes total = 0;
        for (const auto bytes : sizes) total += bytes;
        Vault vault;
        auto arena = store::HostArena::create(total, nullptr);
        REQUIRE(arena);
        vault.arena = *std::move(arena);
        data_ = vault.arena->data();
        std::vector<KeptExtent> extents;
        Bytes offset = 0;
        for (const auto bytes : sizes) {
            extents.push_back({{0, bytes}, 1, offset});
            vault.note_live(extents.back());
            vault.live += bytes;
            offset += bytes;
        }
        REQUIRE(vaults.add(std::move(vault)) == 1);
        for (const auto& extent : extents) {
            ledger::Backing backing;
            // In another order than that of their contents.
            backing.address = (Bytes{1} << 40) - extent.vault_offset;
            backing.bytes = extent.span.bytes;
            backing.kept.push_back(extent);
            ledger.add(std::move(backing));
            addresses_.push_back((Bytes{1} << 40) - extent.vault_offset);
        }
        vaults.when_wasted([this] { ++told; });
    }
    void free(std::size_t index) { vaults.forget(ledger.remove(addresses_[index]).kept); }
    /// The piece that is worth shrinking; it is said to have given back `bytes`.
    std::optional<sleep::Waste> shrink(Bytes bytes) {
        auto waste = vaults.find_waste(ledger);
        if (waste) vaults.note_shrunk(*waste, bytes);
        return waste;
    }
    /// Where a part that is needed begins.
    [[nodiscard]] Bytes offset_of(std::span<const std::byte> part) const {
        return static_cast<Bytes>(part.data() - data_);
    }

    ledger::Ledger ledger;
    Vaults vaults;
    int told = 0;

private:
    std::vector<std::uint64_t> addresses_;
    const std::byte* data_ = nullptr;
};

} // namespace

TEST_CASE("Vaults: a piece is worth shrinking once a quarter of what it holds has died", "[vault]") {
    Tag tag(std::vector<Bytes>(16, 4 * k_mib));
    CHECK(tag.vaults.host_bytes() == 64 * k_mib);
    for (const std::size_t i : {0U, 5U, 9U}) tag.free(i);
    CHECK(tag.told == 0);
    CHECK_FALSE(tag.vaults.has_waste());
    CHECK_FALSE(tag.shrink(0));
    tag.free(14);
    CHECK(tag.told == 1);
    CHECK(tag.vaults.has_waste());
    const auto waste = tag.shrink(16 * k_mib);
    REQUIRE(waste);
    CHECK(waste->piece == 0);
    REQUIRE(waste->needed.size() == 12);
    CHECK(tag.offset_of(waste->needed.front()) == 4 * k_mib);
    CHECK(tag.offset_of(waste->needed.back()) == 60 * k_mib);
    CHECK(tag.vaults.host_bytes() == 48 * k_mib);
    CHECK_FALSE(tag.shrink(0));

    // A quarter of what is left.
    for (const std::size_t i : {1U, 2U}) tag.free(i);
    CHECK_FALSE(tag.vaults.has_waste());
    tag.free(3);
    CHECK(tag.told == 2);
    CHECK(tag.shrink(12 * k_mib));
    CHECK(tag.vaults.host_bytes() == 36 * k_mib);
}

TEST_CASE("Vaults: a piece that gives nothing back is not tried again until more of it dies", "[vault]") {
    Tag tag(std::vector<Bytes>(4, 4 * k_mib));
    tag.free(0);
    CHECK(tag.shrink(0));
    CHECK_FALSE(tag.shrink(0));
    CHECK(tag.vaults.host_bytes() == 16 * k_mib);
    tag.free(1);
    CHECK(tag.shrink(8 * k_mib));
    CHECK(tag.vaults.host_bytes() == 8 * k_mib);
}

TEST_CASE("Vaults: a piece in which nothing lives goes, however little was left in it", "[vault]") {
    Tag tag({k_piece - 256, 256, 4 * k_mib});
    tag.free(0);
    CHECK(tag.shrink(k_piece - 2 * k_mib));
    tag.free(1);
    const auto waste = tag.shrink(2 * k_mib);
    REQUIRE(waste);
    CHECK(waste->piece == 0);
    CHECK(waste->needed.empty());
    CHECK(tag.vaults.host_bytes() == 4 * k_mib);
}

TEST_CASE("Vaults: contents in two pieces count in both", "[vault]") {
    Tag tag({k_piece - 8 * k_mib, 16 * k_mib, 24 * k_mib});
    tag.free(0);
    auto waste = tag.shrink(k_piece - 8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->piece == 0);
    REQUIRE(waste->needed.size() == 1);
    CHECK(tag.offset_of(waste->needed.front()) == k_piece - 8 * k_mib);
    tag.free(1);
    CHECK(tag.told == 2);
    waste = tag.shrink(8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->needed.empty());
    waste = tag.shrink(8 * k_mib);
    REQUIRE(waste);
    CHECK(waste->piece == 1);
    REQUIRE(waste->needed.size() == 1);
    CHECK(tag.offset_of(waste->needed.front()) == k_piece + 8 * k_mib);
    CHECK(tag.vaults.host_bytes() == 24 * k_mib);
}

TEST_CASE("Vaults: one that nothing needs is told of, and held until it is reaped", "[vault]") {
    Tag tag({4 * k_mib, 4 * k_mib});
    tag.free(0);
    const auto waste = tag.vaults.find_waste(tag.ledger);
    REQUIRE(waste);
    tag.free(1); // while the piece is being shrunk
    tag.vaults.note_shrunk(*waste, 4 * k_mib);
    CHECK(tag.told == 2);
    CHECK(tag.vaults.has_waste());
    CHECK(tag.vaults.host_bytes() == 0);
    CHECK(tag.vaults.retired_bytes() == 4 * k_mib);
    CHECK_FALSE(tag.shrink(0));
    CHECK(tag.vaults.reap().size() == 1);
    CHECK(tag.vaults.retired_bytes() == 0);
    CHECK_FALSE(tag.vaults.has_waste());
}
