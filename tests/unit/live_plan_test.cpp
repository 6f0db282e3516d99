// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What moves of a running program, in what pieces, and how often a piece is tried.

#include "sleep/live_plan.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using sleep::Direction;
using sleep::Verdict;

namespace {

constexpr auto k_all = std::numeric_limits<Bytes>::max();

ledger::Backing& add_backing(ledger::Ledger& ledger, std::uint64_t address, std::string_view tag,
                             int device = 0) {
    ledger::Backing backing;
    backing.address = address;
    backing.bytes = 4 * k_mib;
    backing.tag = ledger.tag_id(tag);
    backing.device = device;
    return ledger.add(std::move(backing));
}

std::vector<std::uint64_t> addresses(const Result<std::vector<sleep::LivePart>>& parts) {
    std::vector<std::uint64_t> found;
    for (const auto& part : *parts) found.push_back(part.span.address);
    return found;
}

} // namespace

TEST_CASE("Live plan: what may move does, in the order of allocation, until there is enough", "[plan]") {
    using Addresses = std::vector<std::uint64_t>;
    ledger::Ledger ledger;
    add_backing(ledger, 0x5000'0000, "weights");
    add_backing(ledger, 0x1000'0000, "cache");
    add_backing(ledger, 0x4000'0000, "weights").host_backed = true;
    add_backing(ledger, 0x2000'0000, "weights");
    add_backing(ledger, 0x6000'0000, "weights").stay_reason = "exported";
    ledger::Ledger::move(add_backing(ledger, 0x3000'0000, "weights"), model::Residence::kept);
    const auto out = [&](const std::vector<std::string>& tags, Bytes bytes) {
        return addresses(plan_live(ledger, Direction::to_host, tags, bytes));
    };
    CHECK(out({}, k_all) == Addresses{0x5000'0000, 0x1000'0000, 0x2000'0000});
    CHECK(out({"weights"}, k_all) == Addresses{0x5000'0000, 0x2000'0000});
    CHECK(out({"weights"}, 4 * k_mib).empty()); // so much is there already
    CHECK(out({"weights"}, 4 * k_mib + 1) == Addresses{0x5000'0000});
    CHECK(out({"weights", "cache"}, k_all) == Addresses{0x5000'0000, 0x2000'0000, 0x1000'0000});
    CHECK(out({"cache", "weights"}, k_all) == Addresses{0x1000'0000, 0x5000'0000, 0x2000'0000});
    CHECK(out({"cache"}, 1) == Addresses{0x1000'0000});
    CHECK(out({}, 0).empty());
    CHECK(addresses(plan_live(ledger, Direction::to_device, {}, k_all)) == Addresses{0x4000'0000});
    CHECK(addresses(plan_live(ledger, Direction::to_device, {}, 0)).empty());
    CHECK(addresses(plan_live(ledger, Direction::to_device, {"cache"}, k_all)).empty());
    // All is as much as the program was not started with there.
    ledger.set_live_bytes(ledger.tag_id("weights"), 1);
    CHECK(addresses(plan_live(ledger, Direction::to_device, {}, k_all)).empty());
    CHECK(addresses(plan_live(ledger, Direction::to_device, {}, k_all - 1)) == Addresses{0x4000'0000});
    add_backing(ledger, 0x7000'0000, "weights").host_backed = true;
    CHECK(addresses(plan_live(ledger, Direction::to_device, {}, k_all)) == Addresses{0x7000'0000});
    CHECK(plan_live(ledger, Direction::to_host, {"none"}, k_all).error().code == ErrorCode::unknown_tag);
    CHECK(addresses(plan_live(ledger, Direction::to_device, {"none"}, k_all)).empty());
}

TEST_CASE("Live plan: a piece is whole backings of one device", "[plan]") {
    ledger::Ledger ledger;
    for (std::uint64_t i = 1; i <= 5; ++i) add_backing(ledger, i << 28, "weights", i > 3);
    const auto parts = test::need(plan_live(ledger, Direction::to_host, {}, k_all));
    const std::span<const sleep::LivePart> all = parts;
    CHECK(sleep::first_piece(all, k_gib).size() == 3);
    CHECK(sleep::first_piece(all, 8 * k_mib).size() == 2);
    CHECK(sleep::first_piece(all, 8 * k_mib - 1).size() == 1);
    CHECK(sleep::first_piece(all, 1).size() == 1); // a backing moves whole
    CHECK(sleep::first_piece(all.subspan(3), k_gib).size() == 2);
    CHECK(sleep::bytes_of(all) == 20 * k_mib);
}

TEST_CASE("Live plan: pieces are as large as their pauses allow", "[plan]") {
    using Seconds = std::chrono::duration<double>;
    const auto out = [](Bytes bytes, double pause) {
        return sleep::next_piece_limit(Direction::to_host, bytes, Seconds(pause));
    };
    CHECK(out(256 * k_mib, 0.007) == 512 * k_mib);
    CHECK(out(256 * k_mib, 0.028) == 128 * k_mib);
    CHECK(out(256 * k_mib, 0.001) == k_gib);
    CHECK(out(256 * k_mib, 10) == 64 * k_mib);
    CHECK(out(256 * k_mib, 0) == k_gib);
    CHECK(sleep::next_piece_limit(Direction::to_device, 256 * k_mib, Seconds(0.020)) == 128 * k_mib);
    CHECK(sleep::first_piece_limit(Direction::to_device) < sleep::first_piece_limit(Direction::to_host));
}

TEST_CASE("Live plan: a piece that is written all the time stays after three rounds", "[plan]") {
    CHECK(sleep::judge_round(100, 1000, 1) == Verdict::move);
    CHECK(sleep::judge_round(101, 1000, 1) == Verdict::again);
    CHECK(sleep::judge_round(101, 1000, 2) == Verdict::again);
    CHECK(sleep::judge_round(101, 1000, 3) == Verdict::stay);
    CHECK(sleep::judge_round(0, 1000, 3) == Verdict::move);
}
