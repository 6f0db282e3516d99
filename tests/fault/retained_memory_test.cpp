// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The host memory of blocks that are retained past a wake: its budget, what the host has room for, who may
// reach it, and what gives it up.

#include "fault/retaining.hpp"
#include "support/sanitized.hpp"

#include <sys/resource.h>

using namespace gpu_sleep::test;
using model::State;

namespace {

/// What the host has room for, for retained contents.
Bytes g_room = 0;

/// Whether the kernel finds what is kept of the allocation out of reach of the process.
bool is_out_of_reach(EngineFixture& fixture, std::size_t allocation) {
    const auto number = fixture.ledger().find(fixture.allocations()[allocation].address)->kept.range;
    const auto& place = fixture.engine().contents().at(number).blocks.front().place;
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    const bool is_refused = ::write(pipe[1], place.batch->arena()->at(place.at), 1) == -1 && errno == EFAULT;
    for (const int end : pipe) ::close(end);
    return is_refused;
}

} // namespace

TEST_CASE("Retained: no more than the budget, and less when that is asked for", "[retained]") {
    EngineFixture fixture(retaining(5 * k_mib));
    fixture.add(0, "weights", 4 * k_mib);
    fixture.add(0, "kv_cache", 4 * k_mib);
    fixture.cycle();
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    static_cast<void>(fixture.shrink());
    CHECK(fixture.host_bytes() == 4 * k_mib);
    CHECK(cycle(fixture).copied == 4 * k_mib);
    CHECK(fixture.engine().contents().trim_retained(3 * k_mib) == 4 * k_mib);
    CHECK(fixture.retained_bytes() == 0);
    CHECK(cycle(fixture).copied == 8 * k_mib);
}

TEST_CASE("Retained: what a sleep that is short of memory gives up first is of no use to it", "[retained]") {
    EngineFixture fixture(retaining());
    fixture.add(0, "weights", 4 * k_mib);
    const auto cache = fixture.add(0, "kv_cache", 2 * k_mib);
    fixture.cycle();
    CHECK(fixture.engine().forget_retained_beside(level(1)) == 0);
    CHECK(fixture.engine().forget_retained_beside(level(1, {"weights"})) == 2 * k_mib);
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    CHECK(cycle(fixture).copied == 2 * k_mib);
    // At level 2 only what is preserved is used, and in files nothing.
    ledger::Ledger::preserve(*fixture.ledger().find(fixture.allocations()[cache].address), {0, k_mib});
    CHECK(fixture.engine().forget_retained_beside(level(2)) == 4 * k_mib);
    CHECK(fixture.engine().forget_retained_beside(in_files(Scratch())) == 2 * k_mib);
    CHECK(cycle(fixture).copied == 6 * k_mib);
}

TEST_CASE("Retained: what was prepared counts, goes first, and is taken by the next sleep", "[retained]") {
    constexpr auto k_piece = contents::Contents::k_prepared_piece;
    EngineFixture fixture(retaining());
    auto& contents = fixture.engine().contents();
    fixture.add(0, "weights", 2 * k_piece + 4 * k_mib);
    fixture.add(1, "weights", 2 * k_mib);
    const auto pinned = [before = sim_live_objects().host_registrations] {
        return sim_live_objects().host_registrations - before;
    };
    const auto prepare = [&](int pieces) {
        for (int i = 0; i < pieces; ++i) {
            const auto piece = need(contents.prepare_piece());
            contents.add_prepared(0, *piece);
        }
    };
    prepare(4);
    CHECK(contents.prepared(0) == 4 * k_piece);
    CHECK(fixture.retained_bytes() == 4 * k_piece);
    CHECK(fixture.host_bytes() == 4 * k_piece);
    CHECK(contents.room_to_prepare(5 * k_piece) == k_piece);
    CHECK(pinned() == 4);
    contents.limit_prepared(0, 3 * k_piece);
    CHECK(contents.reap().size() == 1);
    CHECK(pinned() == 3);
    CHECK(fixture.retained_bytes() == 3 * k_piece);

    REQUIRE(fixture.sleep(level(1)));
    CHECK(contents.prepared(0) == k_piece);
    CHECK(fixture.retained_bytes() == k_piece);
    CHECK(pinned() == 5); // and the rest of each device
    CHECK(fixture.host_bytes() == 3 * k_piece + 6 * k_mib);
    fixture.wake_whole();
    CHECK(fixture.retained_bytes() == 3 * k_piece + 6 * k_mib);

    CHECK(contents.trim_retained(3 * k_piece) == k_piece);
    static_cast<void>(contents.reap());
    CHECK(contents.prepared(0) == 0);
    CHECK(fixture.retained_bytes() == 2 * k_piece + 6 * k_mib);
    CHECK(cycle(fixture).copied == 0);
    prepare(1);
    static_cast<void>(contents.trim_retained(0));
    static_cast<void>(contents.reap());
    CHECK(pinned() == 0);
    CHECK(fixture.all_intact());
}

TEST_CASE("Retained: no more than the host has room for, when it wakes and afterwards", "[retained]") {
    auto options = retaining();
    const auto headroom = [] { return store::Headroom{g_room + store::HostBudget::k_left_available, ""}; };
    store::HostBudget budget({.directory = {}, .headroom = headroom, .pressure = [] { return 0U; }});
    options.budget = &budget;
    EngineFixture fixture(options);
    fixture.add(0, "weights", 4 * k_mib);
    fixture.add(0, "kv_cache", 4 * k_mib);
    auto& contents = fixture.engine().contents();
    g_room = 6 * k_mib;
    fixture.cycle();
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    g_room = 8 * k_mib;
    fixture.cycle();
    CHECK(fixture.retained_bytes() == 8 * k_mib);
    CHECK(contents.trim_retained(budget.room_to_retain()) == 0);
    g_room = 5 * k_mib;
    CHECK(contents.trim_retained(budget.room_to_retain()) == 4 * k_mib);
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    g_room = 0;
    CHECK(contents.trim_retained(budget.room_to_retain()) == 4 * k_mib);
    CHECK(fixture.retained_bytes() == 0);
    CHECK(cycle(fixture).copied == 8 * k_mib);
    CHECK(fixture.host_bytes() == 0);
}

TEST_CASE("Retained: what the host has room for is nothing where that cannot be told", "[retained]") {
    CHECK(store::HostBudget::own().room_to_retain() < std::numeric_limits<Bytes>::max() / 2);
    struct rlimit before {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const struct rlimit none { 0, before.rlim_max };
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const auto room = store::HostBudget::own().room_to_retain();
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(room == 0);
}

TEST_CASE("Retained: the budget counts memory that is held, not contents alone", "[retained]") {
    EngineFixture fixture(retaining(10 * k_mib));
    const auto weights = fixture.add(0, "weights", 8 * k_mib);
    fixture.cycle();
    // Every other block: no huge page of it can be given back.
    for (Bytes at = 0; at < 8 * k_mib; at += 2 * k_mib) fixture.fill(weights, {at, k_mib}, 0);
    fixture.add(0, "weights", 4 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    static_cast<void>(fixture.shrink());
    fixture.wake_whole();
    static_cast<void>(fixture.shrink());
    CHECK(fixture.retained_bytes() <= 10 * k_mib);
    CHECK(fixture.host_bytes() <= 10 * k_mib);
    CHECK(fixture.retained_bytes() == fixture.host_bytes());
}

TEST_CASE("Retained: what is kept is out of reach, asleep and awake", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    CHECK(is_out_of_reach(fixture, weights));
    fixture.wake_whole();
    CHECK(is_out_of_reach(fixture, weights));
    fixture.change(weights, 0);
    REQUIRE(fixture.sleep(level(1)));
    CHECK(is_out_of_reach(fixture, weights));
    fixture.wake_whole();
}

TEST_CASE("Retained: contents out of reach fail a wake or a sleep, and nothing is lost", "[retained]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    fixture.add(1, "weights", 2 * k_mib);
    struct rlimit before {};
    REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
    // What was put out of reach does not count, and is refused when it is to count again.
    const auto without_room = [&](auto&& run) {
        const struct rlimit little { 4096, before.rlim_max }; // of 0 the kernel takes no notice
        REQUIRE(::setrlimit(RLIMIT_DATA, &little) == 0);
        auto done = run();
        REQUIRE(::setrlimit(RLIMIT_DATA, &before) == 0);
        CHECK(error_of(done).code == ErrorCode::out_of_host_memory);
    };
    REQUIRE(fixture.sleep(level(1)));
    without_room([&] { return fixture.wake(); });
    CHECK(fixture.state() == State::asleep);
    fixture.wake_whole();
    fixture.change(weights, 5);
    without_room([&] { return fixture.sleep(level(1)); });
    CHECK(fixture.state() == State::awake);
    CHECK(fixture.all_intact());
    CHECK(sleep_at(fixture).copied == k_mib); // nothing was overwritten
    fixture.wake_whole();
}

TEST_CASE("Retained: what is given back in the middle of a sleep is not taken for kept", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    const auto cache = fixture.add(0, "kv_cache", 4 * k_mib);
    fixture.cycle();
    fixture.change(weights, 7);
    // While the blocks are copied that have changed, all else that is retained goes.
    bool has_trimmed = false;
    fixture.control().progress = [&](const model::Progress&) {
        fixture.engine().contents().trim_retained(0);
        static_cast<void>(fixture.shrink());
        has_trimmed = true;
        return true;
    };
    CHECK(sleep_at(fixture, level(1, {"weights"})).copied == k_mib);
    CHECK(has_trimmed);
    fixture.control() = {};
    CHECK(fixture.retained_bytes() == 0);
    CHECK(cycle(fixture, level(1, {"kv_cache"})).copied == 4 * k_mib);
    CHECK(fixture.is_intact(cache));
}
