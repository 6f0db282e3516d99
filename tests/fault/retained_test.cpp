// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep costs what changed since the last one, and a range what is in it: blocks of zeros, blocks that are
// retained past a wake, and what may happen to the ranges meanwhile.

#include "fault/retaining.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;

TEST_CASE("Retained: a later sleep copies the blocks that changed, and no others", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 6 * k_mib);
    const auto other = fixture.add(1, "weights", 2 * k_mib);
    CHECK(sleep_at(fixture) == Costs{8 * k_mib, 8 * k_mib, 8 * k_mib});
    CHECK(fixture.retained_bytes() == 0);
    fixture.wake_whole();
    CHECK(fixture.retained_bytes() == 8 * k_mib);
    CHECK(fixture.host_bytes() == 8 * k_mib);

    sim_reset_counts();
    CHECK(sleep_at(fixture) == Costs{8 * k_mib, 8 * k_mib, 0});
    CHECK(sim_calls("cuMemcpyDtoHAsync") == 0);
    CHECK(sim_calls("cuMemHostRegister") == 0);
    fixture.wake_whole();

    fixture.change(weights, 3 * k_mib + 17);
    fixture.change(other, 2 * k_mib - 1);
    CHECK(sleep_at(fixture) == Costs{8 * k_mib, 8 * k_mib, 2 * k_mib});
    CHECK(fixture.host_bytes() == 8 * k_mib);
    fixture.wake_whole();
    CHECK(cycle(fixture).copied == 0);

    auto all = level(1);
    all.copy_all = true;
    CHECK(sleep_at(fixture, all).copied == 8 * k_mib);
    CHECK(fixture.host_bytes() == 8 * k_mib);
    fixture.wake_whole();
}

TEST_CASE("Retained: blocks of zeros are stored nowhere, and are zero again", "[retained]") {
    EngineFixture fixture(GENERATE(retaining(), retaining(0)));
    const auto cache = fixture.add(0, "kv_cache", 8 * k_mib);
    fixture.make_even(cache, 0);
    const auto live = sim_live_objects().host_registrations;
    CHECK(sleep_at(fixture) == Costs{8 * k_mib, 0, 0});
    CHECK(fixture.host_bytes() == 0);
    CHECK(sim_live_objects().host_registrations == live);
    // New memory is not zero by itself: the last owner's bytes are in it.
    const auto neighbour = need(fixture.heap().allocate(0, fixture.ledger().tag_id("neighbour"), 8 * k_mib));
    sim_reset_counts();
    fixture.wake_whole();
    CHECK(sim_calls("cuLaunchKernel") == 1); // a block that had to be mended would be read once more

    fixture.fill(cache, {3 * k_mib, 2 * k_mib}, 9);
    fixture.change(cache, 8 * k_mib - 1); // one byte keeps its block
    CHECK(sleep_at(fixture, raw(level(1, {"kv_cache"}))) == Costs{8 * k_mib, 3 * k_mib, 3 * k_mib});
    CHECK(fixture.host_bytes() == 3 * k_mib);
    fixture.wake_whole();
    // Zero again: its place is given back.
    fixture.make_even(cache, 0);
    CHECK(sleep_at(fixture, level(1, {"kv_cache"})) == Costs{8 * k_mib, 0, 0});
    static_cast<void>(fixture.shrink());
    CHECK(fixture.host_bytes() == 0);
    fixture.wake_whole();
    REQUIRE(fixture.heap().free(neighbour));
}

TEST_CASE("Retained: a file has no zeros in it, and nothing of it is retained", "[retained]") {
    const Scratch scratch;
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    fixture.fill(weights, {k_mib, k_mib}, 0);
    const auto in_file = in_files(scratch);
    CHECK(sleep_at(fixture, in_file) == Costs{4 * k_mib, 3 * k_mib, 3 * k_mib});
    CHECK(fixture.file_bytes() < 4 * k_mib);
    fixture.wake_whole();
    CHECK(fixture.retained_bytes() == 0);
    CHECK(fixture.file_bytes() == 0);
    // What is retained is of no use to a file, and goes.
    CHECK(cycle(fixture).stored == 3 * k_mib);
    CHECK(fixture.retained_bytes() == 3 * k_mib);
    CHECK(sleep_at(fixture, in_file).copied == 3 * k_mib);
    CHECK(fixture.retained_bytes() == 0);
    CHECK(fixture.host_bytes() == 0);
    fixture.wake_whole();
    // No file at all for zeros alone.
    fixture.make_even(weights, 0);
    CHECK(sleep_at(fixture, in_file) == Costs{4 * k_mib, 0, 0});
    CHECK(std::filesystem::is_empty(in_file.directory));
    fixture.wake_whole();
}

TEST_CASE("Retained: what is dropped or freed is retained no longer", "[retained]") {
    EngineFixture fixture(retaining());
    fixture.add(0, "weights", 4 * k_mib);
    const auto cache = fixture.add(0, "kv_cache", 2 * k_mib);
    const auto freed = fixture.add(0, "weights", 2 * k_mib);
    CHECK(cycle(fixture).copied == 8 * k_mib);
    fixture.remove(freed);
    static_cast<void>(fixture.shrink());
    CHECK(fixture.retained_bytes() == 6 * k_mib);
    REQUIRE(fixture.sleep(level(2, {"kv_cache"})));
    static_cast<void>(fixture.shrink());
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    REQUIRE(fixture.wake());
    CHECK(fixture.read(cache) == std::vector<std::uint8_t>(2 * k_mib, 0));
    fixture.refill();
    static_cast<void>(fixture.shrink());
    CHECK(fixture.host_bytes() == 4 * k_mib);
    // A new range at the old address has nothing to do with what was there.
    const auto again = fixture.add(0, "weights", 2 * k_mib);
    CHECK(cycle(fixture).copied == 4 * k_mib);
    CHECK(fixture.is_intact(again));
}

TEST_CASE("Retained: preserved spans are used again while they are the same", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    auto& backing = *fixture.ledger().find(fixture.allocations()[weights].address);
    const auto expected = [&] {
        std::vector<std::uint8_t> bytes(4 * k_mib, 0);
        for (const auto& span : backing.preserved)
            std::copy_n(fixture.allocations()[weights].contents.begin() +
                            static_cast<std::ptrdiff_t>(span.offset),
                        span.bytes, bytes.begin() + static_cast<std::ptrdiff_t>(span.offset));
        return bytes;
    };
    ledger::Ledger::preserve(backing, {123, 2 * k_mib});
    for (const auto copied : {2 * k_mib, Bytes{0}}) {
        CHECK(sleep_at(fixture, level(2)).copied == copied);
        REQUIRE(fixture.wake());
        CHECK(fixture.read(weights) == expected());
        fixture.refill();
    }
    ledger::Ledger::preserve(backing, {3 * k_mib, 1000});
    CHECK(sleep_at(fixture, level(2)).copied == 2 * k_mib + 1000);
    REQUIRE(fixture.wake());
    CHECK(fixture.read(weights) == expected());
    CHECK(fixture.retained_bytes() == 2 * k_mib + 1024);
}

TEST_CASE("Retained: a later sleep that fails loses nothing; what it overwrote is given up", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    CHECK(cycle(fixture).copied == 4 * k_mib);
    fixture.add(0, "weights", 4 * k_mib);
    fixture.change(weights, 5);
    // What is new comes first: where it fails, nothing was overwritten.
    sim_fail("cuMemcpyDtoHAsync", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    REQUIRE_FALSE(fixture.sleep(level(1)));
    sim_clear();
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    sim_fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    REQUIRE_FALSE(fixture.sleep(level(1)));
    sim_clear();
    // A block of the first range was overwritten, and so all of it is given up.
    CHECK(fixture.retained_bytes() == 0);
    CHECK(fixture.all_intact());
    CHECK(cycle(fixture).copied == 8 * k_mib);
    // Nothing was overwritten: it is retained still.
    fixture.control().progress = [](const model::Progress& progress) {
        return progress.phase != model::Progress::Phase::release;
    };
    CHECK(fixture.sleep(level(1)).error().code == ErrorCode::cancelled);
    fixture.control() = {};
    sim_clear();
    CHECK(fixture.retained_bytes() == 8 * k_mib);
    CHECK(cycle(fixture).copied == 0);
}

TEST_CASE("Retained: a bit that flips there is noticed by the next wake", "[retained]") {
    EngineFixture fixture(retaining());
    const auto weights = fixture.add(0, "weights", 4 * k_mib);
    fixture.cycle();
    fixture.flip_kept_bit(weights, 2 * k_mib + 9, 4);
    SECTION("if the block has not changed") {
        CHECK(sleep_at(fixture).copied == 0);
        CHECK(fixture.wake().error().code == ErrorCode::damaged);
        CHECK(fixture.state() == State::damaged);
    }
    SECTION("unless the sleep checks its copies") {
        auto request = level(1);
        request.check_copies = true;
        CHECK(cycle(fixture, request).copied == 0);
        CHECK(cycle(fixture).copied == 0);
    }
    SECTION("and goes away with a change of the block") {
        fixture.change(weights, 3 * k_mib - 1);
        CHECK(cycle(fixture).copied == k_mib);
    }
}

TEST_CASE("Retained: a range that is another's now has nothing of what was retained before", "[retained]") {
    EngineFixture fixture(retaining());
    const auto first = fixture.add(0, "weights", 4 * k_mib);
    const auto neighbour = fixture.add(0, "weights", 2 * k_mib);
    const auto address = fixture.allocations()[first].address;
    fixture.cycle();
    fixture.remove(first);
    const auto [tag, bytes] = GENERATE(std::pair("weights", 4 * k_mib), std::pair("weights", 2 * k_mib),
                                       std::pair("kv_cache", 4 * k_mib));
    const auto again = fixture.add(0, tag, bytes);
    if (tag == std::string_view("weights") && bytes == 4 * k_mib)
        CHECK(fixture.allocations()[again].address == address); // of the same size and contents
    CHECK(sleep_at(fixture).copied == bytes);
    fixture.wake_whole();
    CHECK(fixture.is_intact(neighbour - 1));
}

TEST_CASE("Retained: a dry run says what would be copied at most", "[retained]") {
    EngineFixture fixture(retaining());
    fixture.add(0, "weights", 4 * k_mib);
    CHECK(sleep_at(fixture, dry(level(1))) == Costs{4 * k_mib, 4 * k_mib, 4 * k_mib});
    CHECK(cycle(fixture).copied == 4 * k_mib);
    CHECK(sleep_at(fixture, dry(level(1))) == Costs{4 * k_mib, 4 * k_mib, 4 * k_mib});
    CHECK(fixture.retained_bytes() == 4 * k_mib);
    CHECK(cycle(fixture).copied == 0);
}

TEST_CASE("Retained: random changes, with a budget that changes, lose nothing", "[retained]") {
    const int rounds = std::max(150, random_rounds());
    const auto seed = GENERATE(1U, 2U, 3U);
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t end) {
        return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
    };
    EngineFixture fixture(retaining(40 * k_mib));
    constexpr std::array k_tags{"weights", "kv_cache", "buffers"};
    const auto add = [&] {
        fixture.add(static_cast<int>(below(2)), k_tags[below(k_tags.size())],
                    (1 + below(5)) * k_mib - below(2) * 4321);
    };
    for (int i = 0; i < 6; ++i) add();
    for (int round = 0; round < rounds; ++round) {
        for (auto changes = below(4); changes > 0 && !fixture.allocations().empty(); --changes) {
            const auto index = below(fixture.allocations().size());
            const auto bytes = fixture.allocations()[index].contents.size();
            const auto begin = below(bytes);
            switch (below(5)) {
            case 0: fixture.change(index, begin); break;
            case 1: fixture.fill(index, {begin, 1 + below(bytes - begin)}, 0); break;
            case 2: fixture.fill(index, {0, bytes}, static_cast<std::uint8_t>(below(2))); break;
            case 3: fixture.remove(index); break;
            default: add(); break;
            }
        }
        if (below(6) == 0) fixture.engine().contents().trim_retained(below(30) * k_mib);
        if (below(2) == 0) fixture.engine().contents().limit_retained(below(41) * k_mib);
        if (below(3) == 0) static_cast<void>(fixture.shrink());
        if (below(4) == 0) // the driver's memory for a copy fails
            sim_fail("*", 1 + below(60), CUDA_ERROR_UNKNOWN, SIM_ONCE);
        std::vector<std::string> some;
        if (below(3) == 0 && fixture.ledger().find_tag(k_tags[0])) some.emplace_back(k_tags[0]);
        auto request = level(1, some);
        request.copy_all = below(10) == 0;
        static_cast<void>(fixture.sleep(request));
        sim_clear();
        REQUIRE(fixture.sleep(request));
        if (below(3) == 0 && !fixture.allocations().empty())
            fixture.remove(below(fixture.allocations().size()));
        if (below(3) == 0) static_cast<void>(fixture.shrink());
        if (below(4) == 0) fixture.engine().contents().trim_retained(below(3) * k_mib);
        fixture.wake_whole();
        REQUIRE(fixture.retained_bytes() <= 40 * k_mib);
    }
}
