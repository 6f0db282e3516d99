// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Passes of the gate: who holds one or shares one, and what of it is left to the next thread in a seat.

#include "gate_fixture.hpp"

using namespace gpu_sleep::test;
using gate::Pass;
using gate::Passage;
using gate::Touch;
using model::OnTouch;

TEST_CASE_METHOD(OpenGate, "Gate: who holds a pass passes, and is not waited for") {
    fall_asleep(rule(OnTouch::fail));
    {
        const Pass pass;
        CHECK(passes(Touch::submits));
        const Passage passage(Touch::submits, "cuTouch");
        CHECK(passage.admitted());
        std::thread([] { CHECK(the_gate().close(after(k_patience), goes_on)); }).join();
        the_gate().keep_shut(rule(OnTouch::fail));
    }
    CHECK_FALSE(passes(Touch::submits));
}

TEST_CASE_METHOD(OpenGate, "Gate: who shares a pass passes, until it stops or the pass ends") {
    fall_asleep(rule(OnTouch::fail));
    Holder holder;
    CHECK_FALSE(passes(Touch::submits));
    the_gate().share_pass(holder.number());
    CHECK(passes(Touch::submits));
    CHECK(the_gate().unshare_pass());
    CHECK_FALSE(passes(Touch::submits));
    CHECK_FALSE(the_gate().unshare_pass());
    the_gate().share_pass(holder.number());
    holder.end();
    CHECK_FALSE(passes(Touch::submits));
    const Holder next;
    CHECK_FALSE(passes(Touch::submits));
    CHECK(the_gate().unshare_pass());
}

TEST_CASE_METHOD(OpenGate, "Gate: who holds a pass is refused what sleeps, and waits for nothing") {
    auto part = rule(OnTouch::wait);
    part.sleeping = {{1'000, 2'000}, {3'000, 4'000}};
    const Names sleeping({{500, 600}, {1'999, 2'001}});
    const Names woken({{3'500, 3'600}});
    const Names awake({{2'000, 3'000}});
    const Names unknown({}, false);
    const Pass pass;
    fall_asleep(part);
    const auto check_all = [&](bool is_woken) {
        CHECK_FALSE(passes(Touch::submits, &sleeping));
        CHECK_FALSE(passes(Touch::takes, &sleeping));
        CHECK(passes(Touch::takes));
        CHECK(passes(Touch::submits, &woken) == is_woken);
        for (const Names* names : {&awake, &unknown}) CHECK(passes(Touch::submits, names));
        CHECK(passes(Touch::submits));
    };
    check_all(false);
    REQUIRE(the_gate().close(after(k_patience), goes_on)); // a wake begins
    check_all(false);
    auto less = part;
    less.sleeping.pop_back();
    the_gate().let_allocate(less);
    check_all(true);
    the_gate().keep_shut(std::move(less));
    check_all(true);
    the_gate().open();
    CHECK(passes(Touch::submits, &sleeping));
}

TEST_CASE_METHOD(OpenGate, "Gate: what was freed asleep may be touched again while callbacks run") {
    auto part = rule(OnTouch::wait);
    part.sleeping = {{1'000, 2'000}};
    fall_asleep(part);
    the_gate().let_allocate(std::move(part));
    const Names names({{1'000, 1'001}});
    const Pass pass;
    CHECK_FALSE(passes(Touch::submits, &names));
    the_gate().forget({1'000, 2'000});
    CHECK(passes(Touch::submits, &names));
    CHECK(the_gate().phase() == gate::Gate::Phase::mapped);
}

TEST_CASE_METHOD(OpenGate, "Gate: who shares a pass is waited for after its end, and not before") {
    fall_asleep(rule(OnTouch::fail));
    Holder holder;
    the_gate().share_pass(holder.number());
    const Passage inside(Touch::submits, "cuTouch");
    REQUIRE(inside.admitted());
    std::thread([] { CHECK(the_gate().close(after(k_patience), goes_on)); }).join();
    holder.end();
    std::thread([] { CHECK_FALSE(the_gate().close(after(k_moment), goes_on)); }).join();
    CHECK(the_gate().unshare_pass());
}

TEST_CASE_METHOD(OpenGate, "Gate: a thread that ends takes no pass to the next in its seat") {
    fall_asleep(rule(OnTouch::fail));
    Holder holder;
    gate::Seat* first = nullptr;
    gate::Seat* second = nullptr;
    std::thread([&] {
        first = &gate::Seats::own();
        the_gate().share_pass(holder.number());
        CHECK(passes(Touch::submits));
    }).join();
    std::thread([&] {
        second = &gate::Seats::own();
        CHECK_FALSE(passes(Touch::submits));
    }).join();
    CHECK(first == second);
}

TEST_CASE_METHOD(OpenGate, "Gate: a call within a call that passed passes") {
    {
        const Passage passage(Touch::submits, "cuTouch");
        REQUIRE(passage.admitted());
        the_gate().keep_shut(rule(OnTouch::fail));
        CHECK(passes(Touch::submits));
    }
    CHECK_FALSE(passes(Touch::submits));
}

TEST_CASE_METHOD(OpenGate, "Gate: every touch counts, also within another and where it is held") {
    const auto touches = [] { return the_gate().activity().touches; };
    const auto before = touches();
    CHECK(passes(Touch::submits));
    CHECK(touches() == before + 1);
    {
        const Passage passage(Touch::submits, "cuTouch");
        CHECK(the_gate().activity().is_inside);
        CHECK(passes(Touch::takes));
        CHECK(the_gate().activity().is_inside);
        CHECK(touches() == before + 3);
    }
    CHECK_FALSE(the_gate().activity().is_inside);
    fall_asleep(rule(OnTouch::wait));
    {
        HeldToucher held;
        CHECK(touches() == before + 4);
        CHECK_FALSE(the_gate().activity().is_inside);
        the_gate().open();
        REQUIRE(held.gets_in());
        CHECK(the_gate().activity().is_inside);
        CHECK(touches() == before + 4);
    }
    CHECK(touches() == before + 4); // of a thread that has ended, too
    CHECK_FALSE(the_gate().activity().is_inside);
}

TEST_CASE_METHOD(OpenGate, "Gate: who has a pass touches for an operation, and does not count") {
    const auto before = the_gate().activity().touches;
    const auto check_unchanged = [&] {
        CHECK(the_gate().activity().touches == before);
        CHECK_FALSE(the_gate().activity().is_inside);
    };
    {
        Pass pass;
        {
            const Passage passage(Touch::submits, "cuTouch");
            check_unchanged();
        }
        check_unchanged();
        pass.end();
        check_unchanged();
        pass.end();
    }
    check_unchanged();
    {
        const gate::Exemption exempt;
        CHECK(passes(Touch::submits));
        check_unchanged();
    }
    check_unchanged();
    {
        Holder holder;
        the_gate().share_pass(holder.number());
        CHECK(passes(Touch::submits));
        check_unchanged();
        CHECK(the_gate().unshare_pass());
        check_unchanged();
        the_gate().share_pass(holder.number());
        holder.end();
    }
    CHECK(passes(Touch::submits));
    CHECK(the_gate().unshare_pass());
    CHECK(the_gate().activity().touches == before + 1); // it was the program's work again
}
