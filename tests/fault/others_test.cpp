// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep, a wake or a move that is ready and waits for other processes: they cannot go on, or they can and
// the asker has gone, with every driver call that follows failing in turn.

#include "support/engine_fixture.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;

namespace {

/// Two tags on two devices, asleep if asked, and what the others say when all is ready.
struct Ready {
    EngineFixture fixture;
    int waits = 0;

    explicit Ready(bool asleep) {
        fixture.add(0, "weights", 3 * k_mib);
        fixture.add(0, "kv_cache", 70'000);
        fixture.add(1, "weights", 2 * k_mib);
        if (asleep) REQUIRE(fixture.sleep(level(1)));
    }
    /// `others` answer; the asker hears of nothing from there on.
    template <class Others>
    void have(Others others) {
        auto& control = fixture.control();
        control.wait_for_others = [this, others] {
            ++waits;
            return Result<bool>(others());
        };
        control.progress = [this](const model::Progress&) { return waits == 0; };
    }
    [[nodiscard]] Result<void> run(bool wakes) { return wakes ? fixture.wake() : fixture.sleep(level(1)); }
};

} // namespace

TEST_CASE("Others: one that is ready goes back when the others cannot go on", "[others]") {
    const bool wakes = GENERATE(false, true);
    const auto code = GENERATE(ErrorCode::cancelled, ErrorCode::timed_out);
    Ready ready(wakes);
    const auto before = sim_live_objects();
    ready.have([=]() -> Result<bool> { return make_error(code, "the others cannot"); });
    CHECK(error_of(ready.run(wakes)).code == code);
    CHECK(ready.waits == 1);
    CHECK(ready.fixture.state() == (wakes ? State::asleep : State::awake));
    CHECK(sim_live_objects().mapped_bytes == before.mapped_bytes);
    ready.fixture.control() = {};
    if (!wakes) CHECK(ready.fixture.all_intact());
    if (!wakes) REQUIRE(ready.fixture.sleep(level(1)));
    ready.fixture.wake_whole();
}

TEST_CASE("Others: one that was told to go on goes on, though its asker has gone", "[others]") {
    const bool wakes = GENERATE(false, true);
    Ready ready(wakes);
    ready.have([] { return true; });
    REQUIRE(ready.run(wakes));
    CHECK(ready.fixture.state() == (wakes ? State::awake : State::asleep));
    ready.fixture.control() = {};
    if (!wakes) REQUIRE(ready.fixture.wake());
    CHECK(ready.fixture.all_intact());
}

TEST_CASE("Others: time that is over while one waits for them does not count", "[others]") {
    Ready ready(false);
    auto& control = ready.fixture.control();
    control.wait_for_others = [&control] {
        control.deadline = Clock::now();
        return Result<bool>(true);
    };
    REQUIRE(ready.run(false));
    CHECK(ready.fixture.state() == State::asleep);
}

TEST_CASE("Others: going back survives the failure of every driver call after the wait", "[others]") {
    const bool wakes = GENERATE(false, true);
    Ready ready(wakes);
    int failures = 0;
    for_each_call([&](int call) {
        ready.waits = 0;
        ready.have([call]() -> Result<bool> {
            sim_reset_counts();
            sim_fail("*", static_cast<std::uint64_t>(call), CUDA_ERROR_UNKNOWN, SIM_ONCE);
            return make_error(ErrorCode::cancelled, "the others cannot");
        });
        const auto done = ready.run(wakes);
        const bool reached = sim_fault_counts().injected_failures != 0;
        sim_clear();
        ready.fixture.control() = {};
        CHECK_FALSE(done);
        failures += reached;
        if (wakes) {
            CHECK(ready.fixture.state() == State::asleep);
            REQUIRE(ready.fixture.wake());
        }
        CHECK(ready.fixture.all_intact());
        CHECK(sim_fault_counts().illegal_accesses == 0);
        if (wakes) REQUIRE(ready.fixture.sleep(level(1)));
        return reached;
    });
    CHECK((failures > 2 || sweep_stride() > 1));
}

TEST_CASE("Others: a move that is ready waits for them too, and goes back", "[others]") {
    const Scratch scratch;
    Ready ready(true);
    ready.have([]() -> Result<bool> { return make_error(ErrorCode::cancelled, "the others cannot"); });
    CHECK_FALSE(ready.fixture.sleep(in_files(scratch, true)));
    CHECK(ready.waits == 1);
    CHECK(ready.fixture.file_bytes() == 0);
    ready.fixture.control() = {};
    ready.fixture.wake_whole();
}
