// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The frame around every driver function: it counts, fails, delays, times and traces the call, and takes the
// lock.

#pragma once

#include "freestanding/trampolines.hpp"
#include "support/not_copied.hpp"
#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry_points.hpp"
#include "support/simulated_driver/tries.hpp"

#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <type_traits>

/// Begins the definition of an entry point: its trait, and the CUDA version, as cuGetProcAddress counts, from
/// which on the symbol that cuda.h's macros give is what the name means. Its parameters are the call, the
/// current context if there has to be one, and what the program gives. The lists of them are made of these.
#define SIM_ENTRY(trait, version) CUresult gpu_sleep::sim::entries::
/// The same for a symbol that programs still ask for though cuda.h does not use it for the name. It is a call
/// of the entry point that it calls.
#define SIM_OLDER(version) extern "C" CUresult CUDAAPI

/// Defines a symbol of the library: it leads to the function.
#define SIM_EXPORT(symbol, ...)                                                                              \
    extern "C" __attribute__((visibility("hidden"), used)) void* const sim_slot_##symbol =                   \
        reinterpret_cast<void*>(&__VA_ARGS__);                                                               \
    GPU_SLEEP_EXPORTED_JUMP(symbol, sim_slot_##symbol)

namespace gpu_sleep::sim {

/// One call under way, with the driver's lock held.
struct Call {
    Entry entry;
    Driver& driver;
    std::unique_lock<std::mutex> lock;
};

namespace entries {
GPU_SLEEP_SIM_DECLARATIONS
}

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

/// Answers a program through its pointer.
template <class T>
CUresult give(T* to, const std::type_identity_t<T>& value) {
    if (!to) return CUDA_ERROR_INVALID_VALUE;
    *to = value;
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim
