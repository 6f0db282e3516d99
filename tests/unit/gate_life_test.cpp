// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate as threads and processes end: the seats that threads leave, a process that is ending, a child of
// fork().

#include "gate_fixture.hpp"
#include "support/child.hpp"

using namespace gpu_sleep::test;
using gate::Gate;
using gate::Touch;
using model::OnTouch;

namespace {

/// Every key for thread-specific data that is left, until the end, with a value on this thread.
class AllKeys : NotCopied {
public:
    AllKeys() {
        for (pthread_key_t key = 0; ::pthread_key_create(&key, nullptr) == 0;) {
            keys_.push_back(key);
            REQUIRE(::pthread_setspecific(key, this) == 0);
        }
    }
    ~AllKeys() {
        for (const auto key : keys_) ::pthread_key_delete(key);
    }

    [[nodiscard]] bool are_as_before() const {
        return std::all_of(keys_.begin(), keys_.end(),
                           [this](pthread_key_t key) { return ::pthread_getspecific(key) == this; });
    }

private:
    std::vector<pthread_key_t> keys_;
};

} // namespace

TEST_CASE_METHOD(OpenGate, "Gate: a thread's seat is the next one's after its end") {
    const auto* const mine = &gate::Seats::own();
    gate::Seat* first = nullptr;
    gate::Seat* second = nullptr;
    std::thread([&] { first = &gate::Seats::own(); }).join();
    std::thread([&] { second = &gate::Seats::own(); }).join();
    CHECK(first == second);
    CHECK(first != mine);
}
// Run by itself: the gate takes its key once.
TEST_CASE("Gate: where all keys are taken, it uses none, and seats are left", "[.][gate_without_keys]") {
    const AllKeys keys;
    auto* const others = ::pthread_getspecific(0); // whoever made it
    CHECK(passes(Touch::submits));
    CHECK(keys.are_as_before());
    CHECK(::pthread_getspecific(0) == others);
    gate::Seat* first = nullptr;
    gate::Seat* second = nullptr;
    std::thread([&] { first = &gate::Seats::own(); }).join();
    std::thread([&] { second = &gate::Seats::own(); }).join();
    CHECK(first == second);
    CHECK(first != &gate::Seats::own());
}

TEST_CASE_METHOD(OpenGate, "Gate: abandoned while awake, it is open for good") {
    CHECK(holds_in_child([] {
        the_gate().reset_in_child();
        the_gate().abandon();
        the_gate().hold_captures();
        const auto closed = the_gate().close(after(k_moment), goes_on);
        the_gate().keep_shut(rule(OnTouch::wait));
        return passes(Touch::submits) && passes(Touch::captures);
    }));
}

TEST_CASE_METHOD(OpenGate, "Gate: abandoned while asleep, every touch fails, those that wait too") {
    CHECK(holds_in_child([] {
        the_gate().reset_in_child();
        if (!the_gate().close(after(k_patience), goes_on)) return false;
        the_gate().keep_shut(rule(OnTouch::wait));
        Toucher waiter;
        if (!waits(1)) return false;
        the_gate().abandon();
        return waiter.is_refused() && !passes(Touch::submits) && !passes(Touch::takes) && passes(Touch::ends);
    }));
}

TEST_CASE_METHOD(OpenGate, "Gate: a child of fork has a gate that nobody has passed") {
    Toucher inside;
    REQUIRE(inside.gets_in());
    std::thread closer([&] { static_cast<void>(the_gate().close(after(k_patience), goes_on)); });
    REQUIRE(becomes_true([] { return the_gate().phase() == Gate::Phase::draining; }));
    HeldToucher waiter;
    CHECK(holds_in_child([] {
        the_gate().reset_in_child();
        const auto waiting = the_gate().waiting();
        if (the_gate().phase() != Gate::Phase::open || waiting.held_now != 0 || !passes(Touch::submits))
            return false;
        if (!the_gate().close(after(k_moment), goes_on)) return false; // the parent's threads are not here
        the_gate().keep_shut(rule(OnTouch::fail));
        Toucher first, second; // in the seats of those that were inside
        if (!first.is_refused() || !second.is_refused()) return false;
        the_gate().open();
        Toucher toucher;
        return toucher.gets_in();
    }));
    inside.leave();
    closer.join();
    the_gate().open();
    CHECK(waiter.gets_in());
}
