// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frees that wait for captures to end, and what is on its way to be freed.

#pragma once

#include "intercepted/allocations.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/pending_removal.hpp"
#include "intercepted/state.hpp"
#include "intercepted/trimming.hpp"

#include <cuda.h>

#include <functional>
#include <optional>
#include <utility>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

class PendingWork;

/// Takes out the allocations that wait to be freed and die with the context.
[[nodiscard]] PendingRemoval take_waiting_of(ProgramMemory& memory,
                                             const std::function<bool(const Allocation&)>& dies);
/// Frees plain allocations that wait for captures to end while one is open, for memory is short. Breaks none,
/// and waits as the driver's own free does in a thread whose mode is relaxed. Whether any was freed. The
/// caller holds no mutex.
[[nodiscard]] bool free_amid_captures(ProgramMemory& memory) noexcept;
/// What `try_once` returns, which is called again where it `is_short` of GPU memory: once pools have given
/// back what nobody uses, and once more after free_amid_captures(). The caller holds no mutex.
template <class Try, class IsShort>
auto try_for_memory(ProgramMemory& memory, Try&& try_once, const IsShort& is_short) {
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
/// Notes all work that may use the allocation, for which the driver's free waits: that of other devices that
/// reach it, too. False as PendingWork::note(). The caller holds contexts_mutex(), until it has waited.
bool note_work(ProgramMemory& memory, const Allocation& allocation, PendingWork& work);
/// An allocation that is out of the index to be freed. Unless that is done by its end, it is freed with those
/// that wait for captures to end: also when it was memory that was short.
class Freeing {
public:
    explicit Freeing(Allocations::Record record) noexcept : record_(std::move(record)) {}
    Freeing(const Freeing&) = delete;
    Freeing& operator=(const Freeing&) = delete;
    ~Freeing() { free_later(); }

    explicit operator bool() const noexcept { return !record_.empty(); }
    const Allocation* operator->() const noexcept { return &record_.mapped(); }
    const Allocation& operator*() const noexcept { return record_.mapped(); }
    /// It is freed, or somebody else's to free.
    void done() noexcept { record_ = {}; }
    /// It is not to be freed: puts it back into the index.
    void put_back() { immortal<Allocations>().put_back(std::move(record_)); }
    /// It is freed with those that wait for captures to end.
    void free_later() noexcept;

private:
    Allocations::Record record_;
};

/// Takes the allocation at `address` out of the index and has `free` free it. No answer where there is none
/// of ours, or it is a mapping of the program's own.
template <class Free>
Answer free_known(CUdeviceptr address, const Free& free) {
    // The record goes first: behind the free the address may at once be somebody else's.
    Freeing allocation(immortal<Allocations>().extract(address));
    if (!allocation) return std::nullopt;
    if (allocation->is_virtual) {
        allocation.put_back();
        return std::nullopt;
    }
    if (auto* const with = memory()) return free(*with, allocation);
    allocation.done(); // the process is ending: the driver takes everything back
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::agent::intercepted
