// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Small allocations, several of which share a range: what that must not change for each of them.

#include "support/engine_fixture.hpp"

using namespace gpu_sleep::test;
using model::State;

namespace {

/// Preserves the whole of allocation `index`, which is small.
void preserve(EngineFixture& fixture, std::size_t index) {
    const auto place = need(fixture.heap().locate(fixture.allocations()[index].address));
    ledger::Ledger::preserve(*place.backing, place.span);
}

} // namespace

TEST_CASE("Small allocations: thousands of them share ranges, and come back whole", "[transaction]") {
    EngineFixture fixture;
    const auto before = sim_live_objects().physical_bytes;
    for (int i = 0; i < 2'000; ++i) fixture.add(0, "small", 4 * k_kib);
    CHECK(sim_live_objects().physical_bytes - before <= 10 * k_mib);
    fixture.cycle();
    while (!fixture.allocations().empty()) fixture.remove(0);
    CHECK(sim_live_objects().physical_bytes == before);
}

TEST_CASE("Small allocations: one made while its tag sleeps is awake, and all comes back", "[transaction]") {
    EngineFixture fixture;
    const auto before = fixture.add(0, "weights", 3000);
    REQUIRE(fixture.sleep(level(1)));
    const auto after = fixture.add(0, "weights", 3000); // written at once, as a program does
    CHECK(fixture.state() == State::partial);
    CHECK(fixture.is_intact(after));
    REQUIRE(fixture.wake());
    CHECK(fixture.is_intact(before));
    CHECK(fixture.is_intact(after));
    const auto ranges = fixture.ledger().backings().size();
    fixture.add(0, "weights", 3000);
    CHECK(fixture.ledger().backings().size() == ranges); // both take more again
}

TEST_CASE("Small allocations: the mark of a freed one does not count for its neighbour", "[transaction]") {
    EngineFixture fixture;
    const auto freed = fixture.add(0, "weights", 4096);
    preserve(fixture, freed);
    fixture.add(0, "weights", 4096);
    fixture.remove(freed);
    CHECK(fixture.slept(level(2)).dropped_without_refill == std::vector<std::string>{"weights"});
    CHECK(fixture.host_bytes() == 0); // nothing that is left asked for it
    REQUIRE(fixture.wake());
    CHECK(fixture.ledger().report().front().needs_refill);
}

TEST_CASE("Small allocations: one in the place of a freed one does not inherit its mark", "[transaction]") {
    EngineFixture fixture;
    const auto preserved = fixture.add(0, "weights", 4096);
    const auto freed = fixture.add(0, "weights", 4096);
    preserve(fixture, preserved);
    preserve(fixture, freed);
    const auto place = fixture.allocations()[freed].address;
    fixture.remove(freed);
    const auto anew = fixture.add(0, "weights", 4096);
    REQUIRE(fixture.allocations()[anew].address == place);
    REQUIRE(fixture.sleep(level(2)));
    REQUIRE(fixture.wake());
    CHECK(fixture.is_intact(preserved));
    CHECK((fixture.read(anew) == std::vector<std::uint8_t>(4096, 0))); // not printed: it is long
    CHECK(fixture.ledger().report().front().needs_refill);
}
