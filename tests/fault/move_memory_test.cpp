// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving what sleeps while memory runs out: every allocation of the moving thread fails once. A program of
// its own, for it has an operator new of its own.

#include "base/guard.hpp"
#include "support/engine_fixture.hpp"
#include "support/failing_new.hpp"
#include "support/files_of.hpp"
#include "support/scratch.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test;
using model::State;
using model::Store;

namespace {

/// One range in each of two tags, which sleep.
struct Sleeper {
    Sleeper() : fixture({2, 0}) {
        fixture.add(0, "weights", 4 * k_mib);
        fixture.add(0, "kv_cache", 2 * k_mib);
    }
    [[nodiscard]] model::SleepRequest request_to(Store store) const {
        auto request = level(1);
        request.store = store;
        request.store_is_named = true;
        if (store == Store::file) request.directory = scratch.file("sleep");
        return request;
    }
    [[nodiscard]] bool is_in(Store store) {
        const auto count = files_in(scratch.file("sleep")).size();
        const bool is_file = store == Store::file;
        return fixture.state() == State::asleep && (fixture.host_bytes() == 0) == is_file &&
               (fixture.file_bytes() == 0) != is_file && count == (is_file ? 2U : 0U);
    }
    /// Runs the move with the `call`-th allocation failing. Sets whether there was one.
    [[nodiscard]] Result<void> move_to(Store store, int call, bool& reached) {
        const auto request = request_to(store);
        model::Report report;
        t_allocations_left = call - 1;
        auto moved = guarded([&] { return fixture.engine().sleep(request, fixture.control(), report); });
        reached = t_allocations_left < 0;
        t_allocations_left = -1;
        static_cast<void>(fixture.engine().contents().reap());
        return moved;
    }

    Scratch scratch;
    EngineFixture fixture;
};

} // namespace

TEST_CASE("Move: a move survives the failure of every allocation", "[move_memory]") {
    const auto from = GENERATE(Store::host, Store::file);
    const auto to = from == Store::host ? Store::file : Store::host;
    Sleeper sleeper;
    REQUIRE(sleeper.fixture.sleep(sleeper.request_to(from)));
    int failures = 0;
    for_each_call([&](int call) {
        bool reached = false;
        const auto moved = sleeper.move_to(to, call, reached);
        failures += !moved;
        if (!moved) {
            // A stream that lacks memory says only that it failed: /proc/self/stat is read by one.
            INFO(moved.error().message);
            const auto code = moved.error().code;
            CHECK((code == ErrorCode::out_of_host_memory || code == ErrorCode::io_failed));
        }
        CHECK(sleeper.is_in(moved ? to : from));
        if (moved) REQUIRE(sleeper.fixture.sleep(sleeper.request_to(from)));
        return reached;
    });
    CHECK(failures > 30 / sweep_stride());
    REQUIRE(sleeper.fixture.wake());
    CHECK(sleeper.fixture.all_intact());
}
