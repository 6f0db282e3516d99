// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate where memory runs out.

#include "gate_fixture.hpp"
#include "support/failing_new.hpp"

using namespace gpu_sleep::test;
using gate::Touch;

namespace {

/// While it lives, all seats that nobody has are somebody's.
class AllSeatsTaken : NotCopied {
public:
    AllSeatsTaken() {
        for (auto* seat = gate::Seats::first(); seat; seat = seat->next)
            if (!seat->taken.exchange(true)) taken_.push_back(seat);
    }
    ~AllSeatsTaken() {
        for (auto* const seat : taken_) seat->taken = false;
    }

private:
    std::vector<gate::Seat*> taken_;
};

} // namespace

TEST_CASE_METHOD(OpenGate, "Gate: a thread without memory for a seat is seen inside") {
    const AllSeatsTaken taken;
    std::atomic<bool> may_leave{false}, is_inside{false};
    std::thread thread([&] {
        for (int i = 0; i < 2; ++i) { // the seat stays nobody's own
            t_allocations_left = 0;
            const gate::Passage passage(Touch::submits, "cuTouch");
            is_inside = true;
            while (!may_leave) std::this_thread::sleep_for(Milliseconds(1));
        }
    });
    REQUIRE(becomes_true([&] { return is_inside.load(); }));
    CHECK_FALSE(the_gate().close(after(k_moment), goes_on));
    may_leave = true;
    CHECK(the_gate().close(after(k_patience), goes_on));
    the_gate().open();
    thread.join();
}

TEST_CASE_METHOD(OpenGate, "Gate: a touch whose waker finds no memory asks again") {
    std::atomic<int> asked{0};
    the_gate().set_waker([&asked] {
        if (++asked == 1) throw std::bad_alloc();
        the_gate().open();
    });
    gate::HoldRule rule;
    rule.on_touch = model::OnTouch::wake;
    the_gate().keep_shut(std::move(rule));
    {
        const gate::Passage passage(Touch::submits, "cuTouch");
        CHECK(passage.admitted());
    }
    CHECK(asked == 2);
}
