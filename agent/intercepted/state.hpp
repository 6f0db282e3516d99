// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Access to the program's memory for the files of this module. Internal to it.

#pragma once

#include "base/guard.hpp"
#include "base/log.hpp"
#include "intercepted/answer.hpp"
#include "program_memory/program_memory.hpp"

#include <functional>
#include <optional>
#include <utility>

namespace gpu_sleep::agent::intercepted {

/// The program's memory; null before CUDA is in use, or when the process is ending.
[[nodiscard]] inline ProgramMemory* memory() noexcept {
    return ProgramMemory::in_use();
}

/// The status that the driver would have given for `error`.
[[nodiscard]] CUresult to_status(const Error& error) noexcept;

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

/// Whether the device has a primary context in use; false also where the driver does not say.
[[nodiscard]] bool is_primary_active(const driver::Api& api, int device) noexcept;

/// The device of the current context; nothing without one.
[[nodiscard]] inline std::optional<int> current_device(ProgramMemory& memory) noexcept {
    return driver::current_device(memory.api());
}

/// Frees what ProgramMemory::allocate() gave, asleep or awake. No work may still use it.
void give_range(ProgramMemory& memory, CUdeviceptr address);

/// The context of a stream: the current one for the default streams, null where there is no such stream.
[[nodiscard]] CUcontext context_of(ProgramMemory& memory, CUstream stream);

} // namespace gpu_sleep::agent::intercepted
