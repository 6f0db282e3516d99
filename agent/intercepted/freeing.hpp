// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When freed memory goes: what waits for captures to end, what is on its way to be freed, and when pools give
// memory back.

#pragma once

#include "intercepted/calls.hpp"

#include <cuda.h>

#include <functional>
#include <optional>
#include <utility>

namespace gpu_sleep::agent::intercepted {

/// The program waited for some or all of its work: pools give back what exceeds their thresholds.
void synchronized() noexcept;
/// Pools give back what they owe since the last synchronise, if they have not since.
void give_back_due() noexcept;
/// Gives back every cached block that nobody uses: before a sleep, and when memory is short.
void trim() noexcept;
/// Frees an allocation, asleep or awake, as give_range() does. It may be a pool's, which keeps it as it keeps
/// what a synchronise left free.
void give_allocation(ProgramMemory& memory, const Allocation& allocation);
/// Takes an allocation that is not freed in a stream's order out of its pool's count.
void freed_from_pool(const Allocation& allocation);
/// The context has gone: frees what was known of it. What is not freed for want of memory is freed later.
void free_departed(ProgramMemory& memory, Departed departed) noexcept;

class PendingWork;

/// Frees plain allocations that wait for captures to end while one is open, for memory is short. Breaks none,
/// and waits as the driver's own free does in a thread whose mode is relaxed. Whether any was freed. The
/// caller holds no mutex.
[[nodiscard]] bool free_amid_captures(ProgramMemory& memory) noexcept;
/// Returns the result of `try_once`. If that `is_short` of GPU memory, tries again once pools have given back
/// unused memory, and a third time after free_amid_captures(). The caller holds no mutex.
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
/// Closes memory of another process.
void unmap_import(const driver::Api& api, const Import& import);
/// Notes the work for which the driver's free waits: that of the allocation's own device, not of others that
/// reach it. False as PendingWork::note(). The caller holds contexts.alive, until it has waited.
bool note_work(ProgramMemory& memory, const Allocation& allocation, PendingWork& work);
/// An allocation that is out of the index to be freed. Unless that is done by its end, it is freed with those
/// that wait for captures to end: also when it was memory that was short.
class Freeing {
public:
    explicit Freeing(Allocations::Record record) noexcept : record_(std::move(record)) {}
    Freeing& operator=(Freeing&&) = delete;
    ~Freeing() { free_later(); }

    explicit operator bool() const noexcept { return !record_.empty(); }
    const Allocation* operator->() const noexcept { return &record_.mapped(); }
    const Allocation& operator*() const noexcept { return record_.mapped(); }
    /// It is freed when the stream of the event, which is of that context, gets there.
    void free_in_order(CUevent done, CUcontext context) noexcept {
        record_.mapped().done = done;
        record_.mapped().freed_in = context;
        free_later();
    }
    /// It is freed, or somebody else's to free.
    void done() noexcept { record_ = {}; }
    /// It is not to be freed: puts it back into the index.
    void put_back() noexcept { books().allocations.put_back(std::move(record_)); }
    /// It is freed with those that wait for captures to end.
    void free_later() noexcept {
        if (!record_.empty()) books().later.add(std::move(record_));
    }

private:
    Allocations::Record record_;
};

/// Takes the allocation at `address` out of the index and has `free` free it. No answer where there is none
/// of ours, or it is a mapping of the program's own.
template <class Free>
Answer free_known(CUdeviceptr address, const Free& free) {
    // The record goes first: behind the free the address may at once be somebody else's.
    Freeing allocation(books().allocations.take(address));
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
