// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads that work for a callback: they pass the gate as it does, as long as it runs.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

#include <pthread.h>

using namespace gpu_sleep::test;

namespace {

/// A kernel and a copy, for any thread. Call only what is thread-safe: Catch2 is not.
class Work {
public:
    Work() : fill_(sim::testing::kernel("sim_fill")) { check(cuCtxGetCurrent(&context_)); }

    /// Writes `value` to the memory's word of that number, and reads it back. False if anything fails.
    [[nodiscard]] bool done(std::uint32_t value) const {
        const auto address = memory_.address() + value * sizeof value;
        std::uint32_t found = 0;
        return cuCtxSetCurrent(context_) == CUDA_SUCCESS &&
               sim::testing::launch(fill_, nullptr, address, std::uint64_t{1}, value) == CUDA_SUCCESS &&
               cuMemcpyDtoH(&found, address, sizeof found) == CUDA_SUCCESS && found == value;
    }
    /// The same on a thread of its own.
    [[nodiscard]] std::future<bool> start(std::uint32_t value) const {
        return std::async(std::launch::async, [=, this] { return done(value); });
    }

private:
    Gpu gpu_{0};
    TaggedMemory memory_{"weights", 4 * k_mib};
    CUcontext context_ = nullptr;
    CUfunction fill_;
};

} // namespace

TEST_CASE("Enlisting: who works for a callback uses the GPU while everybody else waits", "[api]") {
    const Work work;
    std::vector<std::future<bool>> workers;
    std::future<bool> stranger;
    bool all_worked = true, stranger_waited = false;
    const Callbacks callbacks({}, [&](const gpu_sleep_event* event) {
        stranger = work.start(1);
        for (const std::uint32_t value : {2, 3})
            workers.push_back(std::async(std::launch::async, [&, event, value] {
                return gpu_sleep_enlist(event) == GPU_SLEEP_OK && work.done(value) &&
                       gpu_sleep_discharge() == GPU_SLEEP_OK;
            }));
        for (auto& worker : workers) all_worked = all_worked && ends(worker) && worker.get();
        stranger_waited = waits(stranger);
    });
    cycle();
    CHECK(all_worked);
    CHECK(stranger_waited);
    CHECK(stranger.get());
}

TEST_CASE("Enlisting: it ends with the callback, and so does its event", "[api]") {
    const Work work;
    const gpu_sleep_event* stale = nullptr;
    std::promise<bool> has_worked;
    std::promise<void> first_is_over;
    std::future<bool> worker;
    bool worker_waited = false;
    auto late = GPU_SLEEP_OK;
    const Callbacks first({}, [&](const gpu_sleep_event* event) {
        stale = event;
        worker = std::async(std::launch::async, [&, event] {
            has_worked.set_value(gpu_sleep_enlist(event) == GPU_SLEEP_OK && work.done(1));
            first_is_over.get_future().wait();
            return work.done(2) && gpu_sleep_discharge() == GPU_SLEEP_OK;
        });
        return has_worked.get_future().get() ? 0 : 1;
    });
    const Callbacks second({}, [&] {
        late = gpu_sleep_enlist(stale);
        first_is_over.set_value();
        worker_waited = waits(worker);
    });
    cycle();
    CHECK(worker.get());
    CHECK(worker_waited);
    CHECK(late == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_enlist(stale) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_enlist(nullptr) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_discharge() == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("Enlisting: a thread that was discharged, or came after one that ended, waits", "[api]") {
    const Work work;
    std::array<std::future<bool>, 2> strangers;
    std::array<bool, 2> waited{};
    bool has_worked = false;
    const Callbacks callbacks({}, [&](const gpu_sleep_event* event) {
        std::thread([&] { has_worked = gpu_sleep_enlist(event) == GPU_SLEEP_OK && work.done(1); }).join();
        strangers[0] = work.start(2);
        strangers[1] = std::async(std::launch::async, [&, event] {
            return gpu_sleep_enlist(event) == GPU_SLEEP_OK && gpu_sleep_discharge() == GPU_SLEEP_OK &&
                   work.done(3);
        });
        for (std::size_t i = 0; i < strangers.size(); ++i) waited[i] = waits(strangers[i]);
    });
    cycle();
    CHECK(has_worked);
    CHECK(waited[0]);
    CHECK(waited[1]);
    CHECK(strangers[0].get());
    CHECK(strangers[1].get());
}

TEST_CASE("Enlisting: it ends with a callback that ends its thread", "[api]") {
    const Work work;
    std::promise<bool> has_worked;
    std::promise<void> sleeps;
    std::future<bool> worker;
    {
        const Callbacks callbacks([&](const gpu_sleep_event* event) {
            worker = std::async(std::launch::async, [&, event] {
                has_worked.set_value(gpu_sleep_enlist(event) == GPU_SLEEP_OK && work.done(1));
                sleeps.get_future().wait();
                return work.done(2) && gpu_sleep_discharge() == GPU_SLEEP_OK;
            });
            if (has_worked.get_future().get()) ::pthread_exit(nullptr);
        });
        CHECK(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_ERROR_REFUSED);
    }
    sleep();
    sleeps.set_value();
    CHECK(waits(worker));
    wake();
    CHECK(worker.get());
}

TEST_CASE("Enlisting: the calls of an enlisted thread are as from the callback", "[api]") {
    const Work work;
    std::array<gpu_sleep_status, 5> statuses{};
    bool has_ended = false;
    std::future<void> worker;
    int own_id = 0;
    const Callbacks callbacks({}, [&](const gpu_sleep_event* event) {
        worker = std::async(std::launch::async, [&, event] {
            if (gpu_sleep_enlist(event) != GPU_SLEEP_OK) return;
            statuses = {gpu_sleep_sleep(1, nullptr, 0), gpu_sleep_wake(nullptr, 0), gpu_sleep_hold(),
                        gpu_sleep_resume(), gpu_sleep_remove_callback(own_id)};
        });
        has_ended = ends(worker);
    });
    own_id = callbacks.id();
    cycle();
    CHECK(has_ended);
    CHECK(statuses == std::array{GPU_SLEEP_ERROR_REFUSED, GPU_SLEEP_ERROR_REFUSED, GPU_SLEEP_OK, GPU_SLEEP_OK,
                                 GPU_SLEEP_OK});
}

TEST_CASE("Enlisting: the callback's own thread may, and loses nothing by its discharge", "[api]") {
    const Work work;
    bool has_worked = false;
    auto not_enlisted = GPU_SLEEP_OK;
    const Callbacks callbacks({}, [&](const gpu_sleep_event* event) {
        not_enlisted = gpu_sleep_discharge();
        has_worked =
            gpu_sleep_enlist(event) == GPU_SLEEP_OK && gpu_sleep_discharge() == GPU_SLEEP_OK && work.done(1);
    });
    cycle();
    CHECK(has_worked);
    CHECK(not_enlisted == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
}
