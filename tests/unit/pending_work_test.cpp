// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for the work in contexts, and the events that it takes.

#include "intercepted/pending_work.hpp"

#include "support/failing_new.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::sim::testing;
using agent::intercepted::PendingWork;
using agent::registry::Contexts;

namespace {

constexpr std::chrono::milliseconds k_moment{50};
constexpr std::chrono::seconds k_patience{20};

driver::Api load() {
    return test::need(driver::Api::load());
}

/// A driver before 12.5.
driver::Api load_old() {
    auto api = load();
    api.cuCtxRecordEvent = nullptr;
    return api;
}

unsigned g_event_flags = 0; ///< of the last one

/// One that notes with which flags events are made.
driver::Api load_noting() {
    auto api = load();
    api.cuEventCreate = [](CUevent* event, unsigned flags) {
        g_event_flags = flags;
        return ::cuEventCreate(event, flags);
    };
    return api;
}

std::vector<CUevent> take_events_of(CUcontext context) {
    auto record = agent::registry::books().contexts.take(context);
    return record ? record.mapped().events : std::vector<CUevent>();
}

/// A context of the test's own, current only while it is made.
class OwnContext : test::NotCopied {
public:
    explicit OwnContext(unsigned flags = 0) {
        CUctxCreateParams parameters{};
        REQUIRE(cuCtxCreate(&handle, &parameters, flags, 0) == CUDA_SUCCESS);
        CUcontext popped = nullptr;
        REQUIRE(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    }
    ~OwnContext() {
        take_events_of(handle); // they go with it
        cuCtxDestroy(handle);
    }

    CUcontext handle = nullptr;
};

std::uint64_t events_made() {
    return sim_calls("cuEventCreate");
}

} // namespace

TEST_CASE_METHOD(Session, "Events: waiting for an event is as its context's flags say") {
    const auto api = load_noting();
    const auto flags = GENERATE(CU_CTX_SCHED_AUTO, CU_CTX_SCHED_SPIN, CU_CTX_SCHED_YIELD,
                                CU_CTX_SCHED_BLOCKING_SYNC, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST);
    const OwnContext own(static_cast<unsigned>(flags));
    auto& contexts = agent::registry::books().contexts;
    auto* const event = agent::intercepted::take_event(api, own.handle);
    REQUIRE(event);
    const bool blocks = (static_cast<unsigned>(flags) & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
    CHECK(g_event_flags ==
          (blocks ? CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC : CU_EVENT_DISABLE_TIMING));
    contexts.give_event(own.handle, event);
    CHECK(agent::intercepted::take_event(api, own.handle) == event);
}

TEST_CASE_METHOD(Session, "Events: an event that comes back after its context's end is nobody's") {
    const auto api = load();
    auto& contexts = agent::registry::books().contexts;
    const OwnContext own;
    auto* const event = agent::intercepted::take_event(api, own.handle);
    auto* const other = agent::intercepted::take_event(api, own.handle);
    contexts.give_event(own.handle, other);
    CHECK(contexts.take(own.handle).mapped().events == std::vector<CUevent>{other});
    contexts.give_event(own.handle, event);
    CHECK_FALSE(contexts.take(own.handle));
}

TEST_CASE("Pending work: where memory is short one event is lost, and no other") {
    static_assert(noexcept(std::declval<Contexts&>().give_event(nullptr, nullptr)));
    const Session session;
    const auto api = load();
    const OwnContext first;
    const OwnContext second;
    auto made = events_made();
    {
        PendingWork work(api);
        work.note(first.handle);
        work.note(second.handle);
        work.wait();
        CHECK(events_made() == made + 2);
        test::t_allocations_left = 0; // in the cache, where the first is given back
    }
    CHECK(test::t_allocations_left < 0);
    made = events_made();
    PendingWork work(api);
    work.note(second.handle);
    CHECK(events_made() == made);
    work.note(first.handle);
    CHECK(events_made() == made + 1);
}

TEST_CASE_METHOD(Session, "Pending work: captures begin while it waits, on drivers of any age") {
    const auto api = GENERATE(false, true) ? load_old() : load();
    auto* const busy = make_stream();
    auto* const captured = make_stream();
    const auto before = sim_live_objects().plain_bytes;
    const Gate gate(busy);
    PendingWork work(api);
    auto notes = std::async(std::launch::async, [&] { work.note(context); });
    const bool is_noted = notes.wait_for(k_patience) == std::future_status::ready;
    CHECK(is_noted); // without waiting
    if (!is_noted) gate.release();
    notes.get();
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    auto waits = std::async(std::launch::async, [&] { work.wait(); });
    if (is_noted) CHECK(waits.wait_for(k_moment) == std::future_status::timeout);
    gate.release();
    waits.get();
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    CHECK(sim_fault_counts().broken_captures == 0);
    CHECK(sim_live_objects().plain_bytes == before);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Pending work: without memory on the device it waits at once") {
    const auto api = load_old();
    sim_fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY, SIM_ONCE);
    const auto waits = sim_calls("cuCtxSynchronize");
    PendingWork work(api);
    work.note(context);
    CHECK(sim_calls("cuCtxSynchronize") == waits + 1);
}

TEST_CASE_METHOD(Session, "Pending work: what was noted and not waited for leaves nothing behind") {
    const auto api = load_old();
    const auto before = sim_live_objects().plain_bytes;
    PendingWork(api).note(context);
    CHECK(sim_live_objects().plain_bytes == before);
}

TEST_CASE_METHOD(Session, "Pending work: who only looks waits for nothing, and breaks no later capture") {
    const auto api = load();
    auto* const busy = make_stream();
    auto* const captured = make_stream();
    const Gate gate(busy);
    take_events_of(context); // of an earlier session
    PendingWork work(api, PendingWork::Way::to_look);
    REQUIRE(work.note(context));
    CHECK_FALSE(work.is_done());
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK_FALSE(work.is_done());
    gate.release();
    const auto deadline = std::chrono::steady_clock::now() + k_patience;
    while (!work.is_done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    CHECK(work.is_done());
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    CHECK(sim_fault_counts().broken_captures == 0);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Pending work: a driver before 12.5 cannot be looked at, and is not waited for") {
    const auto api = load_old();
    const auto before = sim_live_objects().plain_bytes;
    const auto waits = sim_calls("cuCtxSynchronize");
    PendingWork work(api, PendingWork::Way::to_look);
    CHECK_FALSE(work.note(context));
    CHECK(sim_live_objects().plain_bytes == before);
    CHECK(sim_calls("cuCtxSynchronize") == waits);
}
