// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The record of memory: finding, moving, marking, adding up.

#include "ledger/ledger.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using ledger::Backing;
using ledger::Ledger;
using model::Residence;
using model::State;

namespace {

Backing backing_at(std::uint64_t address, Bytes bytes, ledger::TagId tag = 0, int device = 0) {
    Backing backing;
    backing.address = address;
    backing.bytes = bytes;
    backing.allocated = bytes;
    backing.tag = tag;
    backing.device = device;
    return backing;
}

} // namespace

TEST_CASE("Ledger: a backing is found by every address in it, and by no other", "[ledger]") {
    Ledger ledger;
    const auto tag = ledger.tag_id("weights");
    ledger.add(backing_at(0x1000, 0x100, tag));
    ledger.add(backing_at(0x1100, 0x100, tag));
    CHECK(ledger.find(0xFFF) == nullptr);
    CHECK(ledger.find(0x1000)->address == 0x1000);
    CHECK(ledger.find(0x10FF)->address == 0x1000);
    CHECK(ledger.find(0x1100)->address == 0x1100);
    CHECK(ledger.find(0x1200) == nullptr);
    CHECK(ledger.remove(0x1000).bytes == 0x100);
    CHECK(ledger.find(0x1000) == nullptr);
}

TEST_CASE("Ledger: only the moves of the table are made", "[ledger]") {
    const auto all = {Residence::device, Residence::kept, Residence::dropped, Residence::damaged};
    const std::vector<std::pair<Residence, Residence>> allowed = {
        {Residence::device, Residence::kept},     {Residence::device, Residence::dropped},
        {Residence::kept, Residence::device},     {Residence::kept, Residence::dropped},
        {Residence::kept, Residence::damaged},    {Residence::dropped, Residence::device},
        {Residence::dropped, Residence::damaged}, {Residence::damaged, Residence::dropped},
        {Residence::damaged, Residence::device},
    };
    for (const auto from : all) {
        for (const auto to : all) {
            const bool listed =
                std::find(allowed.begin(), allowed.end(), std::pair(from, to)) != allowed.end();
            INFO(to_string(from) << " to " << to_string(to));
            CHECK(ledger::may_move(from, to) == listed);
        }
    }
    auto backing = backing_at(0, 1);
    CHECK_FALSE(Ledger::move(backing, Residence::damaged));
    CHECK(backing.residence() == Residence::device);
    CHECK(Ledger::move(backing, Residence::kept));
    CHECK(backing.residence() == Residence::kept);
}

TEST_CASE("Ledger: an unknown tag is refused with the known ones listed", "[ledger]") {
    Ledger ledger;
    CHECK_THAT(ledger.find_tag("weight").error().message, test::mentions("none (without gpu-run,"));
    ledger.tag_id("weights");
    ledger.tag_id("kv_cache");
    CHECK(ledger.tag_id("weights") == 0);
    const auto result = test::error_of(ledger.find_tag("weight"));
    CHECK(result.code == ErrorCode::unknown_tag);
    CHECK_THAT(result.message, test::mentions("weights, kv_cache"));
}

TEST_CASE("Ledger: preserved spans that meet become one", "[ledger]") {
    auto backing = backing_at(0, 1000);
    Ledger::preserve(backing, {100, 50});
    Ledger::preserve(backing, {300, 50});
    CHECK(backing.preserved == std::vector<Span>{{100, 50}, {300, 50}});
    Ledger::preserve(backing, {150, 10}); // touches the first
    CHECK(backing.preserved == std::vector<Span>{{100, 60}, {300, 50}});
    Ledger::preserve(backing, {120, 200}); // spans both
    CHECK(backing.preserved == std::vector<Span>{{100, 250}});
    Ledger::preserve(backing, {0, 10});
    Ledger::preserve(backing, {990, 10});
    CHECK(backing.preserved == std::vector<Span>{{0, 10}, {100, 250}, {990, 10}});
}

TEST_CASE("Ledger: freeing a part forgets the marks in it and no others", "[ledger]") {
    auto backing = backing_at(0, 1000);
    Ledger::preserve(backing, {100, 100});
    Ledger::forget_preserved(backing, {120, 30});
    CHECK(backing.preserved == std::vector<Span>{{100, 20}, {150, 50}});
    Ledger::forget_preserved(backing, {0, 130});
    CHECK(backing.preserved == std::vector<Span>{{150, 50}});
    Ledger::forget_preserved(backing, {0, 1000});
    CHECK(backing.preserved.empty());
}

TEST_CASE("Ledger: what must stay counts neither for a tag nor for the process", "[ledger]") {
    Ledger ledger;
    const auto weights = ledger.tag_id("weights");
    auto& first = ledger.add(backing_at(0x1000, 10, weights));
    auto& second = ledger.add(backing_at(0x2000, 20, weights));
    second.stay_reason = "shared";
    CHECK(ledger.report().front().bytes == 10);
    CHECK(ledger.report().front().ranges == 1);
    CHECK(ledger.report().front().resident == 10);
    first.host_backed = true;
    CHECK(ledger.report().front().resident == 0);
    CHECK(ledger.report().front().host_backed == 10);
    CHECK(ledger.host_backed() == 10);
    CHECK(ledger.report().front().in_place == 0);
    ledger.set_live_bytes(weights, 1);
    CHECK(ledger.report().front().in_place == 10);
    Ledger::move(first, Residence::kept);
    CHECK(ledger.report().front().in_place == 0);
    first.holds_contents = true;
    CHECK(ledger.report().front().in_place == 10);
    CHECK(ledger.state() == State::asleep);
    CHECK(ledger.report().front().state == State::asleep);
    first.stay_reason = "shared";
    CHECK(ledger.report().empty());
    CHECK(ledger.state() == State::awake);
}

TEST_CASE("Ledger: residences add up to a state, by tag and in all", "[ledger]") {
    Ledger ledger;
    const auto weights = ledger.tag_id("weights");
    const auto cache = ledger.tag_id("kv_cache");
    CHECK(ledger.state() == State::awake);
    auto& first = ledger.add(backing_at(0x1000, 10, weights));
    auto& second = ledger.add(backing_at(0x2000, 20, weights));
    ledger.add(backing_at(0x3000, 40, cache, 1));
    Ledger::move(first, Residence::kept);
    CHECK(ledger.state() == State::partial);
    auto report = ledger.report();
    REQUIRE(report.size() == 2);
    CHECK(report[0].tag == "kv_cache");
    CHECK(report[0].device == 1);
    CHECK(report[0].state == State::awake);
    CHECK(report[1].state == State::partial);
    CHECK(report[1].bytes == 30);
    CHECK(report[1].kept == 10);
    CHECK(report[1].resident == 20);
    Ledger::move(second, Residence::dropped);
    second.kept = {1, 5};
    report = ledger.report();
    CHECK(report[1].state == State::asleep);
    CHECK(report[1].kept == 15);
    CHECK(report[1].dropped == 15);
    const auto in_files = [](std::uint64_t range) { return Bytes{range == 1 ? 3U : 0U}; };
    CHECK(ledger.report(in_files)[1].in_files == 3);
    first.kept = {2, 10};
    Ledger::move(first, Residence::damaged);
    CHECK(ledger.state() == State::damaged);
    CHECK(ledger.report()[1].damaged == 10);
    Ledger::move(second, Residence::damaged); // of which only a part was kept
    report = ledger.report(in_files);
    CHECK(report[1].damaged == 15);
    CHECK(report[1].dropped == 15);
    CHECK(report[1].in_files == 0);
}

TEST_CASE("Ledger: what is marked beyond what was asked for preserves nothing", "[ledger]") {
    Ledger ledger;
    auto& backing = ledger.add(backing_at(0, 1000));
    backing.allocated = 700;
    Ledger::preserve(backing, {300, 700});
    CHECK_FALSE(backing.is_wholly_preserved());
    backing.kept = {1, 700};
    REQUIRE(Ledger::move(backing, Residence::dropped));
    CHECK(backing.has_lost_contents());
    REQUIRE(Ledger::move(backing, Residence::device));
    Ledger::preserve(backing, {0, 300});
    CHECK(backing.is_wholly_preserved());
    backing.kept = {2, 1000};
    REQUIRE(Ledger::move(backing, Residence::dropped));
    CHECK_FALSE(backing.has_lost_contents());
}

TEST_CASE("Ledger: the last tags are forgotten as if they had never been", "[ledger]") {
    Ledger ledger;
    ledger.tag_id("weights");
    ledger.tag_id("ghost");
    ledger.forget_tags_from(1);
    CHECK_FALSE(ledger.find_tag("ghost"));
    CHECK(ledger.tags().size() == 1);
    ledger.forget_tags_from(5);
    CHECK(ledger.tags().size() == 1);
    CHECK(ledger.tag_id("other") == 1);
    ledger.add(backing_at(0, 1000, 1));
    ledger.tag_id("ghost");
    ledger.forget_tags_from(0);
    CHECK(ledger.tags().size() == 2); // the backing has the second
}
