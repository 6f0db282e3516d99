// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The life of the driver in this process, and the frame around its functions.

#include "support/simulated_driver/entry.hpp"

#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <pthread.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <type_traits>

namespace gpu_sleep::sim {
namespace {

std::atomic<Life> current_life{Life::uninitialised};
thread_local bool in_host_function = false;

void after_fork_in_child() {
    if (current_life == Life::ready) current_life = Life::forked;
}

// The unwinder that is linked into this library knows the registers from its first use on; a thread that is
// cancelled here brings the C library's.
__attribute__((constructor)) void make_unwinder_ready() {
    _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
}

// The driver refuses calls once the process has begun to exit and its own destructors ran.
__attribute__((destructor)) void end_life() {
    if (current_life == Life::ready) current_life = Life::exiting;
}

/// Why this call may not go on; CUDA_SUCCESS if it may. Not initialised, forked, exiting, inside a host
/// function, or failed on request. Delays calls that are to be delayed.
CUresult admit(Entry entry) {
    const auto& point = entry_point(entry);
    if (point.trait != Trait::early && point.trait != Trait::apart) {
        if (current_life == Life::exiting) return CUDA_ERROR_DEINITIALIZED;
        if (current_life != Life::ready) return CUDA_ERROR_NOT_INITIALIZED;
        if (in_host_function) return CUDA_ERROR_NOT_PERMITTED;
    }
    SIM_TRY(Faults::instance().next_failure(entry));
    if (point.trait == Trait::queued) return CUDA_SUCCESS;
    if (const auto time = Faults::instance().delay_of(entry); time.count() > 0)
        std::this_thread::sleep_for(time);
    Faults::instance().await_file(entry, false);
    return CUDA_SUCCESS;
}

/// Runs the `body` of a driver function: CUresult(Call&).
template <class Body>
CUresult call(Entry entry, Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    ++Counts::instance().calls[static_cast<std::size_t>(entry)];
    const auto status = without_exceptions([&]() -> CUresult {
        SIM_TRY(admit(entry));
        const auto trait = entry_point(entry).trait;
        if (trait == Trait::early || trait == Trait::apart) {
            Call unlocked{entry, Driver::instance(), {}};
            return body(unlocked);
        }
        const CallUnderWay under_way(entry);
        Call locked{entry, Driver::instance(), std::unique_lock(Driver::instance().mutex)};
        if (under_way.is_first_after_restore()) part_from_others(locked.driver);
        if (trait == Trait::unsafe) SIM_TRY(refuse_during_capture(locked.driver));
        return body(locked);
    });
    const auto time = std::chrono::steady_clock::now() - begin;
    Counts::instance().nanoseconds_inside += static_cast<std::uint64_t>(time.count());
    trace_call(entry, status, time);
    return status;
}

/// What an entry point's symbol leads to.
template <Entry entry, class Function>
struct Exported;
template <Entry entry, class... Arguments>
struct Exported<entry, CUresult(Arguments...)> {
    template <auto& body>
    static CUresult call(Arguments... arguments) {
        return sim::call(entry, [&](Call& c) -> CUresult {
            if constexpr (std::is_invocable_v<decltype(body), Call&, Arguments...>) {
                return body(c, arguments...);
            } else {
                std::shared_ptr<Context> context;
                SIM_TRY(current_context(c.driver, context));
                return body(c, *context, arguments...);
            }
        });
    }
};

} // namespace

Life life() noexcept {
    return current_life;
}

CUresult begin_life() {
    static std::once_flag once;
    if (current_life == Life::forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (current_life == Life::exiting) return CUDA_ERROR_DEINITIALIZED;
    if (settings().devices == 0) return CUDA_ERROR_NO_DEVICE;
    std::call_once(once, [] {
        ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
        SharedState::instance(); // from here on others see this process
        current_life = Life::ready;
    });
    return CUDA_SUCCESS;
}

HostFunctionScope::HostFunctionScope() noexcept {
    in_host_function = true;
}

HostFunctionScope::~HostFunctionScope() {
    in_host_function = false;
}

std::span<const EntryPoint> entry_points() noexcept {
// Two steps, so that cuda.h's renaming macros are applied before the name becomes a string.
#define GPU_SLEEP_SIM_STRING(name) #name
#define GPU_SLEEP_SIM_SYMBOL(name) GPU_SLEEP_SIM_STRING(name)
#define GPU_SLEEP_SIM_ROW(name, version, trait)                                                              \
    EntryPoint{#name, GPU_SLEEP_SIM_SYMBOL(name), reinterpret_cast<void*>(&::name), version, Trait::trait},
    static const std::array k_rows = {GPU_SLEEP_SIM_ENTRY_POINTS(GPU_SLEEP_SIM_ROW)};
    return k_rows;
}

Driver& Driver::instance() {
    static Driver& driver = *new Driver;
    return driver;
}

Driver::Driver() : primaries(static_cast<std::size_t>(settings().devices)) {
    for (int device = 0; device < settings().devices; ++device) {
        pools.push_back(std::make_unique<PhysicalPool>(device));
        const auto pool = std::make_shared<MemoryPool>();
        pool->device = device;
        pool->handle = memory_pools.insert(pool);
        default_pools.push_back(pool);
        current_pools.push_back(pool);
    }
}

} // namespace gpu_sleep::sim

#define SIM_DEFINE_ENTRY(name, version, trait) SIM_DEFINE_ENTRY_NOW(name)
#define SIM_DEFINE_ENTRY_NOW(symbol)                                                                         \
    SIM_EXPORT(symbol, gpu_sleep::sim::Exported<gpu_sleep::sim::Entry::symbol,                               \
                                                decltype(::symbol)>::call<gpu_sleep::sim::entries::symbol>)
GPU_SLEEP_SIM_ENTRY_POINTS(SIM_DEFINE_ENTRY)
