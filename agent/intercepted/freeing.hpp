// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When freed memory goes: what waits for captures to end, what is on its way to be freed, and when pools give
// memory back.

#pragma once

#include "intercepted/calls.hpp"
#include "intercepted/pending_work.hpp"

namespace gpu_sleep::agent::intercepted {

/// The program waited for some or all of its work: pools give back what exceeds their thresholds.
void synchronized() noexcept;
/// Pools give back what they owe since the last synchronise, if they have not since.
void give_back_due() noexcept;
/// Gives back every cached block that nobody uses: before a sleep, and when memory is short.
void trim() noexcept;
/// The context has gone: frees its memory. What is not freed for want of memory is freed later.
void free_departed(ProgramMemory& memory, Departed departed) noexcept;

/// Frees plain allocations that wait for captures to end while one is open, for memory is short. Breaks none,
/// and waits as the driver's own free does in a thread whose mode is relaxed. Whether any was freed. The
/// caller holds no mutex.
[[nodiscard]] bool free_amid_captures(ProgramMemory& memory) noexcept;
/// Whether GPU memory was short.
[[nodiscard]] inline bool is_short(Answer tried) noexcept {
    return tried == CUDA_ERROR_OUT_OF_MEMORY;
}
template <class Value>
[[nodiscard]] bool is_short(const Result<Value>& tried) noexcept {
    return !tried && tried.error().code == ErrorCode::out_of_device_memory;
}
/// Returns the result of `try_once`. If memory was short, tries again once pools have given back unused
/// memory, and a third time after free_amid_captures(). The caller holds no mutex.
template <class Try>
auto try_for_memory(ProgramMemory& memory, Try&& try_once) {
    auto result = try_once();
    if (is_short(result)) {
        trim();
        result = try_once();
    }
    if (is_short(result) && free_amid_captures(memory)) result = try_once();
    return result;
}
/// Frees the allocations, and closes the memory of other processes, that waited for captures to end.
void free_waiting() noexcept;

/// What is out of the index to be freed or closed. What is not by the end of this, for want of memory
/// perhaps, is freed later.
struct Due {
    Allocations::Taken allocations;
    Due& operator=(Due&&) = delete;
    ~Due() { free_later(); }
    void free_later() noexcept { books().later.add(allocations); }
    /// Frees and closes all of it. No work may still use it.
    void give_back(ProgramMemory& memory);
};
/// Waits for the work that may use what is due, and frees that; unless that would break a capture. Returns
/// what went wrong with the work. The caller holds contexts.alive.
CUresult free_due(ProgramMemory& memory, Due& due, PendingWork::Way way = PendingWork::Way::best);

/// Takes the allocation at `address` out of the index and calls `free` with what is due and the allocation in
/// that. No answer where there is none of ours, or it is a mapping of the program's own.
template <class Free>
Answer free_known(CUdeviceptr address, const Free& free) {
    auto& imports = books().imports;
    if (imports.has_had_any_of_pools && imports.close_once(address, true).value_or(0) != 0)
        return CUDA_SUCCESS;
    // The record goes first: behind the free the address may at once be somebody else's.
    Due due{books().allocations.take(address, false)};
    if (due.allocations.empty()) return std::nullopt;
    const auto& known = due.allocations.begin()->second;
    if (auto* const with = memory()) return free(*with, due, known);
    due.allocations.clear(); // the process is ending: the driver takes everything back
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::agent::intercepted
