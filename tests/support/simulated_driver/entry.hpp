// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The frame around every driver function: it counts, fails, delays, times and traces the call, and takes the
// lock.

#pragma once

#include "support/not_copied.hpp"
#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry_points.hpp"

#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

/// Begins the definition of an entry point: its trait, and the CUDA version, as cuGetProcAddress counts, from
/// which on the symbol that cuda.h's macros give is what the name means. The lists of them are made of these.
#define SIM_ENTRY(trait, version) CUresult CUDAAPI
/// The same for a symbol that programs still ask for though cuda.h does not use it for the name. It is a call
/// of the entry point that it calls.
#define SIM_OLDER(version) extern "C" CUresult CUDAAPI

namespace gpu_sleep::sim {

/// One call under way, with the driver's lock held.
struct Call {
    Entry entry;
    Driver& driver;
    std::unique_lock<std::mutex> lock;
};

/// Notes that a call began, and on the way out how it ended.
class CallRecord {
public:
    explicit CallRecord(Entry entry) noexcept;
    /// Why this call may not go on; CUDA_SUCCESS if it may. Not initialised, forked, exiting, inside a host
    /// function, or failed on request. Delays calls that are to be delayed.
    [[nodiscard]] CUresult admit() const;
    CUresult finish(CUresult status) const noexcept;

private:
    Entry entry_;
    std::chrono::steady_clock::time_point begin_;
};

/// Whether the driver can be used in this process: from cuInit on, until the process exits or (in a child)
/// forks.
enum class Life : int { uninitialised, ready, forked, exiting };
[[nodiscard]] Life life() noexcept;
/// cuInit.
CUresult begin_life();

/// The context that is current to the calling thread. CONTEXT_IS_DESTROYED if it is gone, its sticky error if
/// it has one, INVALID_CONTEXT if none is current.
CUresult current_context(Driver& driver, std::shared_ptr<Context>& context);

/// Marks the calling thread as running a host function, from which no driver function may be called.
class HostFunctionScope : test::NotCopied {
public:
    HostFunctionScope() noexcept;
    ~HostFunctionScope();
};

/// CUDA_SUCCESS, or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when captures under way forbid an unsafe call to
/// the calling thread; it breaks them. Source: CUDA Driver API, cuThreadExchangeStreamCaptureMode.
CUresult refuse_during_capture(Driver& driver);

/// The status for what `body` throws where memory or threads run out: nothing crosses the C interface, but
/// the unwinding of a thread that is cancelled while it waits, as it does in the driver.
template <class Body>
CUresult without_exceptions(Body&& body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::system_error&) { // a thread, a lock
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception&) {
        return CUDA_ERROR_UNKNOWN;
    }
}

/// Runs the `body` of a driver function: CUresult(Call&).
template <class Body>
CUresult call(Entry entry, Body&& body) {
    const CallRecord record(entry);
    return record.finish(without_exceptions([&]() -> CUresult {
        if (const auto refusal = record.admit(); refusal != CUDA_SUCCESS) return refusal;
        const auto trait = entry_point(entry).trait;
        if (trait == Trait::early || trait == Trait::apart) {
            Call unlocked{entry, Driver::instance(), {}};
            return body(unlocked);
        }
        const CallUnderWay under_way(entry);
        Call locked{entry, Driver::instance(), std::unique_lock(Driver::instance().mutex)};
        if (under_way.is_first_after_restore()) part_from_others(locked.driver);
        if (trait == Trait::unsafe)
            if (const auto refusal = refuse_during_capture(locked.driver); refusal != CUDA_SUCCESS)
                return refusal;
        return body(locked);
    }));
}

/// The same for a function that needs a current context: CUresult(Call&, Context&).
template <class Body>
CUresult call_in_context(Entry entry, Body&& body) {
    return call(entry, [&](Call& c) -> CUresult {
        std::shared_ptr<Context> context;
        if (const auto status = current_context(c.driver, context); status != CUDA_SUCCESS) return status;
        return body(c, *context);
    });
}

/// The same for a function about a device: CUresult(Call&).
template <class Body>
CUresult call_with_device(Entry entry, CUdevice device, Body&& body) {
    return call(entry, [&](Call& c) -> CUresult {
        return c.driver.has_device(device) ? body(c) : CUDA_ERROR_INVALID_DEVICE;
    });
}

} // namespace gpu_sleep::sim
