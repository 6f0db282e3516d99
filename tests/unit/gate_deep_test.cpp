// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate of a deep sleep: no call passes it, touch or question.

#include "gate_fixture.hpp"

using namespace gpu_sleep::test;
using gate::HoldRule;
using gate::Passage;
using gate::Question;
using gate::Touch;

namespace {

/// Ends a deep sleep before the gate opens.
class DeepGate {
public:
    ~DeepGate() { the_gate().leave_deep(); }

    [[nodiscard]] static Result<void> go_deep(model::OnTouch on_touch = model::OnTouch::wait,
                                              Milliseconds patience = k_patience) {
        HoldRule rule;
        rule.on_touch = on_touch;
        rule.checked = true;
        return the_gate().go_deep(std::move(rule), after(patience), goes_on);
    }

private:
    OpenGate open_;
};

/// A thread that asks once, in a touch or not, and stays inside until it is told to leave.
class Asker : public Toucher {
public:
    explicit Asker(bool touches = false)
        : Toucher([touches](const Stay& stay) {
              const Question question("cuAsk");
              if (!question.admitted()) return false;
              if (!touches) return stay();
              const Passage passage(Touch::takes, "cuTouch");
              return passage.admitted() && stay();
          }) {}
    ~Asker() {
        let_leave();
        the_gate().leave_deep(); // a test may end with it so
    }
};

} // namespace

TEST_CASE_METHOD(OpenGate, "Gate: a question passes a shut gate, and is no touch") {
    REQUIRE(the_gate().close(after(k_patience), goes_on));
    const auto touches = the_gate().activity().touches;
    Asker asker;
    CHECK(asker.comes_to(Asker::At::inside));
    CHECK(the_gate().activity().touches == touches);
    CHECK(the_gate().wait_empty(after(k_patience), goes_on));
}

TEST_CASE_METHOD(DeepGate, "Gate: a deep sleep waits for questions, and holds what comes then") {
    Asker first;
    REQUIRE(first.comes_to(Asker::At::inside));
    CHECK(error_of(DeepGate::go_deep(model::OnTouch::wait, k_moment)).code == ErrorCode::timed_out);
    first.let_leave();
    REQUIRE(DeepGate::go_deep());
    Asker second;
    Toucher third(Touch::ends);
    CHECK(second.stays_out());
    CHECK(third.stays_out()); // also where the rule is to look at names
    the_gate().leave_deep();
    CHECK(second.comes_to(Asker::At::inside));
}

TEST_CASE_METHOD(DeepGate, "Gate: in a deep sleep a question is answered if nobody waits for its thread") {
    bool was_inside = false;
    const auto is_answered = [&] {
        const Question question("cuAsk", [&] {
            was_inside = gpu_sleep::gate::t_seat->questions.is_inside();
            return true;
        });
        return question.is_answered();
    };
    CHECK_FALSE(is_answered()); // by the driver
    REQUIRE(DeepGate::go_deep(model::OnTouch::fail));
    CHECK(is_answered());
    CHECK_FALSE(was_inside);
    CHECK_FALSE(gpu_sleep::gate::t_seat->questions.is_inside());
    CHECK_FALSE(Question("cuAsk", [] { return false; }).admitted());
    the_gate().leave_deep();
}

TEST_CASE_METHOD(DeepGate, "Gate: who touches within a question and waits is not waited for") {
    HoldRule rule;
    rule.sleeping = {{0x1000, 0x2000}};
    the_gate().keep_shut(rule);
    Asker asker(true);
    CHECK(asker.stays_out());
    CHECK(DeepGate::go_deep());
    the_gate().leave_deep();
    the_gate().open();
    CHECK(asker.comes_to(Asker::At::inside));
}

TEST_CASE_METHOD(DeepGate, "Gate: in a deep sleep questions fail where touches do") {
    REQUIRE(DeepGate::go_deep(model::OnTouch::fail));
    Asker asker;
    CHECK(asker.comes_to(Asker::At::refused));
}

TEST_CASE_METHOD(DeepGate, "Gate: in a deep sleep no pass lets anybody through") {
    REQUIRE(DeepGate::go_deep(model::OnTouch::fail));
    const gate::Pass pass;
    const Passage passage(Touch::submits, "cuTouch");
    CHECK_FALSE(passage.admitted());
}
