// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving what sleeps while memory runs out: every allocation of the moving thread fails once. A program of
// its own, for it has an operator new of its own.

#include "fault/moving.hpp"
#include "support/failing_new.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::Store;

TEST_CASE("Move: a move survives the failure of every allocation", "[move_memory]") {
    Sleeper sleeper(GENERATE(Store::host, Store::file));
    auto& engine = sleeper.fixture.engine();
    const auto request = sleeper.request_to(sleeper.other());
    int failures = 0;
    for_each_call([&](int call) {
        model::Report report;
        t_allocations_left = call - 1;
        const auto moved = guarded([&] { return engine.sleep(request, sleeper.fixture.control(), report); });
        const bool reached = t_allocations_left < 0;
        t_allocations_left = -1;
        static_cast<void>(engine.contents().reap());
        failures += !moved;
        if (!moved) {
            // A stream that lacks memory says only that it failed: /proc/self/stat is read by one.
            INFO(moved.error().message);
            const auto code = moved.error().code;
            CHECK((code == ErrorCode::out_of_host_memory || code == ErrorCode::io_failed));
        }
        CHECK(sleeper.is_in(moved ? sleeper.other() : sleeper.home));
        if (moved) REQUIRE(sleeper.move_back());
        return reached;
    });
    CHECK(failures > 30 / sweep_stride());
    sleeper.check_whole();
}
