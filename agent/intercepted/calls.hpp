// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common frame of intercepted calls: finding the books and the program's memory, and giving the answer.

#pragma once

#include "base/guard.hpp"
#include "base/log.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"
#include "program_memory/program_memory.hpp"
#include "registry/registry.hpp"

/// All functions of this module are thread-safe, and what intercepted calls call lets nothing cross: what
/// fails inside returns a status of the driver. None needs the agent to run; without it everything is left to
/// the driver.

namespace gpu_sleep::agent::intercepted {

using namespace registry; // which all here is about

/// The status to return, or nothing: the call is the driver's.
using Answer = std::optional<CUresult>;
/// The status of a call that needs sleeping memory and cannot wait for it.
inline constexpr CUresult k_sleeps = CUDA_ERROR_SYSTEM_NOT_READY;

/// The status of an intercepted call that the gate refuses: as the driver's own when the process ends. Apart,
/// so that hooks stay small.
[[nodiscard, gnu::noinline]] inline CUresult refused() noexcept {
    return gate::Gate::instance().is_abandoned() ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_SYSTEM_NOT_READY;
}

/// The program's memory; null before CUDA is in use, or when the process is ending.
[[nodiscard]] inline ProgramMemory* memory() noexcept {
    return ProgramMemory::in_use();
}

/// Whether memory of the device or of the host was short: then the driver is not asked, whose memory stays.
[[nodiscard]] inline bool is_shortage(const Error& error) noexcept {
    return error.code == ErrorCode::out_of_device_memory || error.code == ErrorCode::out_of_host_memory;
}

/// Runs what may throw for want of memory, and turns that into a status.
template <class Body>
[[nodiscard]] Answer answered(Body&& body) noexcept {
    const auto answer = guarded([&]() -> Result<Answer> { return body(); });
    return answer ? *answer : Answer(CUDA_ERROR_OUT_OF_MEMORY);
}

/// The same of what needs the program's memory, and is given it: where there is none, as in a child of
/// fork(), the call is the driver's.
template <class Body>
[[nodiscard]] Answer answered_with_memory(Body&& body) noexcept {
    return answered([&] {
        auto* const with = memory();
        return with ? Answer(body(*with)) : Answer();
    });
}

/// Calls `use` with the program's memory, if there is any. Lets nothing cross.
template <class Use>
void with_memory(Use&& use) noexcept {
    ignoring_errors([&] {
        if (auto* const with = memory()) use(*with);
    });
}

/// Whether it is a device, for which a DeviceMask has a bit.
[[nodiscard]] inline bool is_device(const CUmemLocation& location) noexcept {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
           location.id < driver::k_max_devices;
}
/// Notes in `access` what the driver granted to such a device.
inline void note_access(driver::DeviceMask& access, int device, unsigned long long flags) noexcept {
    const auto bit = driver::DeviceMask{1} << device;
    access = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? access | bit : access & ~bit;
}

/// Frees what ProgramMemory::allocate() gave, asleep or awake. No work may still use it.
inline void give_range(ProgramMemory& memory, CUdeviceptr address) {
    if (const auto freed = memory.free(address); !freed)
        log::warning("range {:#x} could not be freed: {}", address, freed.error().message);
}

} // namespace gpu_sleep::agent::intercepted
