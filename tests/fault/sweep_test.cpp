// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Every driver call of a transaction fails in turn. Afterwards all is awake or all is asleep, every byte is
// there, nothing is lost, and trying again succeeds.

#include "support/engine_fixture.hpp"
#include "support/scratch.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

using namespace gpu_sleep;
using namespace gpu_sleep::test;
using model::State;

namespace {

/// Two devices, neighbours, a gap, a second tag, a span, a range with a peer: a little of everything.
void populate(EngineFixture& fixture) {
    fixture.add(0, "weights", 3 * k_mib);
    fixture.add(0, "weights", 5 * k_mib);
    fixture.add(0, "weights", 2 * k_mib);
    fixture.add(0, "kv_cache", 4 * k_mib);
    fixture.add(0, "buffers", 70'000);
    fixture.add(1, "weights", 3 * k_mib);
    fixture.remove(1);
    REQUIRE(fixture.heap().allow_access(fixture.allocations()[0].address, 1));
    auto* backing = fixture.ledger().find(fixture.allocations()[1].address);
    ledger::Ledger::preserve(*backing, {123, 4567});
}

constexpr int k_most_calls = 2000;

/// How far apart the calls are that fail: 1, or GPU_SLEEP_SWEEP_STRIDE where a sanitizer makes each take
/// long.
int stride() {
    const char* const wanted = std::getenv("GPU_SLEEP_SWEEP_STRIDE");
    return std::max(1, wanted ? std::atoi(wanted) : 1);
}

/// What a transaction makes for itself. One of them stays when the call that fails is the one to take it
/// back.
std::uint64_t helpers(const sim_live& live) {
    return live.streams + live.events + live.modules + live.host_registrations + live.contexts;
}

/// A sleep at level 1, with `weights` in files if there is a directory for them.
model::SleepRequest request_for(const Scratch& scratch, bool in_files) {
    auto request = level(1);
    if (!in_files) return request;
    request.stores = {{"weights", model::Store::file}};
    request.directory = scratch.file("sleep");
    return request;
}

std::size_t files_in(const std::string& directory) {
    std::error_code ignored;
    const std::filesystem::directory_iterator files(directory, ignored);
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

} // namespace

TEST_CASE("Sweep: a sleep survives the failure of every driver call", "[sweep]") {
    const auto status = GENERATE(CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY);
    const bool in_files = GENERATE(false, true);
    const Scratch scratch;
    const auto request = request_for(scratch, in_files);
    EngineFixture fixture;
    populate(fixture);
    int failures = 0;
    int call = 1;
    for (; call < k_most_calls; call += stride()) {
        INFO("call " << call << " gives " << status << (in_files ? ", with files" : ""));
        const auto awake = sim_live_objects();
        sim_reset_counts();
        sim_fail("*", static_cast<std::uint64_t>(call), status, SIM_ONCE);
        const auto slept = fixture.sleep(request);
        const bool reached = sim_fault_counts().injected_failures != 0;
        sim_clear();
        if (!slept) CHECK(helpers(sim_live_objects()) <= helpers(awake) + 1);
        if (!slept) {
            ++failures;
            CHECK(fixture.state() == State::awake);
            CHECK(fixture.all_intact());
            CHECK(files_in(request.directory) == 0);
            CHECK(sim_live_objects().handles == awake.handles);
            CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes);
            REQUIRE(fixture.sleep(request));
        }
        CHECK(fixture.state() == State::asleep);
        CHECK(files_in(request.directory) == (in_files ? 2U : 0U));
        REQUIRE(fixture.wake());
        CHECK(fixture.all_intact());
        CHECK(files_in(request.directory) == 0);
        CHECK(sim_live_objects().handles == awake.handles);
        CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        if (!reached) break;
    }
    CHECK(call < k_most_calls);
    CHECK(failures > 10 / stride());
}

TEST_CASE("Sweep: a sleep that can be neither finished nor undone leaves asleep what it cannot map",
          "[sweep]") {
    const bool in_files = GENERATE(false, true);
    const char* const refused = GENERATE("cuMemMap", "cuMemSetAccess");
    const Scratch scratch;
    const auto request = request_for(scratch, in_files);
    EngineFixture fixture;
    populate(fixture);
    const auto awake = sim_live_objects();
    int partly = 0;
    for (std::uint64_t unmap = 2; unmap < 100; ++unmap) {
        INFO("unmap " << unmap << ", " << refused << (in_files ? ", with files" : ""));
        sim_reset_counts();
        sim_fail("cuMemUnmap", unmap, CUDA_ERROR_UNKNOWN, SIM_ONCE);
        sim_fail(refused, 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
        const auto slept = fixture.sleep(request);
        sim_clear();
        if (!slept) {
            ++partly;
            CHECK(slept.error().code == ErrorCode::driver_failed);
            CHECK(fixture.state() == State::partial);
        }
        REQUIRE(fixture.wake());
        CHECK(fixture.state() == State::awake);
        CHECK(fixture.all_intact());
        CHECK(files_in(request.directory) == 0);
        CHECK(sim_live_objects().handles == awake.handles);
        CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        if (slept) break;
    }
    CHECK(partly > 2);
}

TEST_CASE("Sweep: a wake survives the failure of every driver call", "[sweep]") {
    const auto status = GENERATE(CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY);
    const bool in_files = GENERATE(false, true);
    const Scratch scratch;
    const auto request = request_for(scratch, in_files);
    EngineFixture fixture;
    populate(fixture);
    int failures = 0;
    int call = 1;
    for (; call < k_most_calls; call += stride()) {
        INFO("call " << call << " gives " << status << (in_files ? ", with files" : ""));
        const auto awake = sim_live_objects();
        REQUIRE(fixture.sleep(request));
        const auto asleep = sim_live_objects();
        sim_reset_counts();
        sim_fail("*", static_cast<std::uint64_t>(call), status, SIM_ONCE);
        const auto woken = fixture.wake();
        const bool reached = sim_fault_counts().injected_failures != 0;
        sim_clear();
        if (!woken) CHECK(helpers(sim_live_objects()) <= helpers(asleep) + 1);
        if (!woken) {
            ++failures;
            CHECK(fixture.state() == State::asleep);
            CHECK(files_in(request.directory) == (in_files ? 2U : 0U));
            REQUIRE(fixture.wake());
        }
        CHECK(fixture.state() == State::awake);
        CHECK(fixture.all_intact());
        CHECK(files_in(request.directory) == 0);
        CHECK(sim_live_objects().handles == awake.handles);
        CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        if (!reached) break;
    }
    CHECK(call < k_most_calls);
    CHECK(failures > 10 / stride());
}
