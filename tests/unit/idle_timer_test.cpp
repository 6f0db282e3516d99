// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process's own timer, which is set anew while a sleep goes on that it began before.

#include "lifecycle/idle_timer.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using agent::lifecycle::IdleTimer;

namespace {

model::TimerRequest deep_after(Milliseconds time) {
    model::TimerRequest request;
    request.after = time;
    request.deep = true;
    return request;
}

const model::Failure k_refused{make_error(ErrorCode::driver_failed, "no checkpoint"), model::State::awake};

} // namespace

TEST_CASE("Idle timer: a sleep that fails is noted, and its next try is not deep", "[idle_timer]") {
    IdleTimer timer;
    timer.set(deep_after(Milliseconds(1'000)));
    timer.note_end(k_refused, timer.next());
    CHECK(timer.note(true).ends_with("no checkpoint"));
    CHECK(timer.is_due(1));
    CHECK_FALSE(timer.next().request.sleep.deep);
}

TEST_CASE("Idle timer: the end of an older timer's sleep says nothing of the one set since", "[idle_timer]") {
    IdleTimer timer;
    timer.set(deep_after(Milliseconds(1'000)));
    const auto begun = timer.next();
    timer.set(deep_after(Milliseconds(2'000)));
    timer.note_end(k_refused, begun);
    CHECK(timer.note(true).ends_with("(--idle)"));
    CHECK(timer.next().request.sleep.deep);
    timer.note_end(model::Failure{make_error(ErrorCode::refused, "held"), model::State::awake}, begun);
    CHECK(timer.is_due(2));
}
