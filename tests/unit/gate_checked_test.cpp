// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate while a part sleeps, and while callbacks run: what names no sleeping address passes.

#include "gate_fixture.hpp"

using namespace gpu_sleep::test;
using gate::Gate;
using gate::Named;
using gate::Passage;
using gate::Touch;
using model::OnTouch;

TEST_CASE_METHOD(OpenGate, "Gate: checked, it holds what names a sleeping address or may name any") {
    auto checked = rule(OnTouch::fail);
    checked.checked = true;
    checked.sleeping = {{1'000, 2'000}, {5'000, 6'000}};
    fall_asleep(std::move(checked));
    CHECK(the_gate().is_checked());
    const auto is_let_through = [](std::vector<Named::Span> spans) {
        const Names names(std::move(spans));
        return passes(Touch::submits, &names);
    };
    CHECK(is_let_through({}));
    CHECK(is_let_through({{0, 1'000}}));
    CHECK(is_let_through({{2'000, 5'000}, {6'000, 9'000}}));
    CHECK_FALSE(is_let_through({{999, 1'001}}));
    CHECK_FALSE(is_let_through({{1'500, 1'501}}));
    CHECK_FALSE(is_let_through({{0, 10'000}}));
    CHECK_FALSE(is_let_through({{3'000, 4'000}, {5'999, 6'001}}));
    CHECK_FALSE(is_let_through({{4'000, 5'001}}));
    const Names unknown({}, false);
    CHECK_FALSE(passes(Touch::submits, &unknown));
    CHECK_FALSE(passes(Touch::submits));
    CHECK(passes(Touch::takes));
    CHECK(passes(Touch::captures));
    CHECK(passes(Touch::nests));
    CHECK_FALSE(passes(Touch::shares, &unknown));
}

TEST_CASE_METHOD(OpenGate, "Gate: checked, it looks at a call with no signal blocked") {
    auto checked = rule(OnTouch::fail);
    checked.checked = true;
    checked.sleeping = {{1'000, 2'000}};
    fall_asleep(std::move(checked));
    struct Looks final : gate::Inspector {
        [[nodiscard]] Named inspect() const override {
            sigset_t blocked;
            ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
            return {{}, sigismember(&blocked, SIGUSR1) == 0}; // else what it waits for might wait for us
        }
    };
    const Looks looks;
    CHECK(passes(Touch::submits, &looks));
}

TEST_CASE_METHOD(OpenGate, "Gate: draining in part asleep, it lets nothing through that may touch sleepers") {
    auto part = rule(OnTouch::wait);
    part.sleeping = {{1'000, 2'000}};
    fall_asleep(std::move(part));
    const Names sleeping({{1'500, 1'600}});
    const Names awake({{3'000, 4'000}});
    const HeldToucher oldest(Touch::submits, &sleeping);
    const HeldToucher unknown(Touch::submits);
    HeldToucher other(Touch::submits, &awake);
    REQUIRE(the_gate().close(after(k_patience), goes_on)); // the next sleep begins
    CHECK(becomes_true([&] {
        the_gate().release_oldest();
        return other.is_inside();
    }));
    for (int i = 0; i < 5; ++i) the_gate().release_oldest();
    CHECK(oldest.stays_out());
    CHECK(unknown.stays_out());
    other.leave();
}

TEST_CASE_METHOD(OpenGate, "Gate: with memory back and callbacks under way, what takes memory passes") {
    fall_asleep(rule(OnTouch::fail));
    the_gate().let_allocate(rule(OnTouch::fail));
    CHECK(passes(Touch::takes));
    Toucher submits, captures(Touch::captures);
    REQUIRE(waits(2));
    CHECK(submits.stays_out());
    the_gate().open();
    CHECK(submits.gets_in());
    CHECK(captures.gets_in());
}

TEST_CASE_METHOD(OpenGate, "Gate: while callbacks run, what takes memory is held where it names sleepers") {
    auto part = rule(OnTouch::fail);
    part.sleeping = {{1'000, 2'000}};
    fall_asleep(part);
    the_gate().let_allocate(part);
    const Names awake({{2'000, 3'000}});
    CHECK(passes(Touch::takes, &awake));
    CHECK(passes(Touch::takes));
    const Names sleeping({{1'999, 2'001}});
    HeldToucher takes(Touch::takes, &sleeping);
    CHECK(takes.stays_out());
    the_gate().forget({1'000, 2'000});
    CHECK(takes.stays_out()); // nobody is told: the callbacks' end does that
    the_gate().open();
    CHECK(takes.gets_in());
}
