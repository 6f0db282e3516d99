// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the files of this module share. Internal to it.

#pragma once

#include "base/guard.hpp"
#include "base/log.hpp"
#include "intercepted/allocations.hpp"
#include "program_memory/program_memory.hpp"

#include <functional>
#include <shared_mutex>
#include <utility>

namespace gpu_sleep::agent::intercepted {

/// The program's memory; null before CUDA is in use, or when the process is ending.
[[nodiscard]] inline ProgramMemory* memory() noexcept {
    return ProgramMemory::in_use();
}

/// The status that the driver would have given for `error`.
[[nodiscard]] CUresult to_status(const Error& error) noexcept;

/// Runs what may throw for want of memory, and turns that into a status.
template <class Body>
[[nodiscard]] Answer answered(Body&& body) noexcept {
    auto answer = guarded([&]() -> Result<Answer> { return body(); });
    return answer ? *answer : Answer(CUDA_ERROR_OUT_OF_MEMORY);
}

/// The device of the current context; nothing without one.
[[nodiscard]] std::optional<int> current_device(ProgramMemory& memory) noexcept;

/// Allocates a range or a part of one, and gives back caches before it gives up. Errors: those of
/// Heap::allocate; refused (not to be intercepted: `left` says why).
[[nodiscard]] Result<driver::DeviceAddress> take_range(ProgramMemory& memory, int device, std::size_t bytes,
                                                       Left& left);
/// Frees what take_range() gave, asleep or awake. No work may still use it.
void give_range(ProgramMemory& memory, CUdeviceptr address);

/// The same for an allocation, which may be a pool's: that keeps it as it keeps what a synchronise left free.
void give_allocation(ProgramMemory& memory, const Known& allocation);

/// What the rules say of the calling code. Made before any mutex is taken: finding out who calls may need the
/// loader's lock, which a thread that waits for a mutex of ours may hold.
class TagChoice {
public:
    TagChoice();
    /// The tag of an allocation of this size; nothing when it is not to be intercepted.
    [[nodiscard]] std::optional<std::string> operator()(std::size_t bytes) const;
    /// Why not.
    [[nodiscard]] static const char* why_not(std::size_t bytes);

private:
    std::vector<std::string_view> callers_;
    std::string_view scope_;
};

/// Grants the devices that may reach memory of `device` access to what was allocated there, and is in the
/// index: who lets a device at all of it grants what the index has.
void grant_peers(ProgramMemory& memory, int device, CUdeviceptr address);

/// The context of a stream: the current one for the default streams, null where there is no such stream.
[[nodiscard]] CUcontext context_of(ProgramMemory& memory, CUstream stream);

/// The context whose end takes what is allocated in `context`: the primary one of a green one, else itself.
[[nodiscard]] CUcontext owner_of_memory_in(CUcontext context);

/// Whether the program holds the device's primary context, so that its end is seen.
[[nodiscard]] bool holds_primary(int device);

/// What was taken out of the books because its context may go.
struct Taken {
    std::function<void()> gone;  ///< frees it
    std::function<void()> stays; ///< puts it back
};
/// The captures of its streams.
[[nodiscard]] Taken take_captures_of(CUcontext context);
/// The freed blocks whose last use was in the context, and the events made there.
[[nodiscard]] Taken take_pools_of(ProgramMemory& memory, CUcontext context);
/// What was left to the driver in the context, to be counted.
[[nodiscard]] Taken take_left_of(CUcontext context, bool is_primary);
/// What it has of managed memory and arrays, to be counted.
[[nodiscard]] Taken take_managed_of(CUcontext context);
/// The allocations of free_later() that die with the context.
[[nodiscard]] Taken take_waiting_of(ProgramMemory& memory, const std::function<bool(const Known&)>& dies);
/// Blocks that were freed in the stream's order wait for their events from now on.
void forget_order_of(CUstream stream);
/// The same for all streams of a green context; their events are its primary context's.
void forget_order_of(CUcontext green, CUcontext primary);

/// Takes an allocation that is not freed in a stream's order out of its pool's count.
void freed_from_pool(const Known& allocation);
/// After the driver allocated of the pool, which may be one of which we have memory, too.
void pool_left_to_driver(CUmemoryPool pool) noexcept;

/// Held shared from the look for captures until a context's work is noted (PendingWork), which would break
/// one; alone while a capture is noted, before it begins. Nobody waits under it: a capture must not begin any
/// later for what other threads do. Comes after the contexts' mutex.
[[nodiscard]] std::shared_mutex& capture_order() noexcept;

/// Frees plain allocations that wait for captures to end while one is open, for memory is short. Breaks none,
/// and waits as the driver's own free does in a thread whose mode is relaxed. Whether any was freed. The
/// caller holds no mutex.
[[nodiscard]] bool free_amid_captures(ProgramMemory& memory) noexcept;
/// Frees the allocations, and closes the memory of other processes, that waited for captures to end.
void free_waiting() noexcept;
/// The latter.
void close_waiting() noexcept;
class PendingWork;
/// Notes all work on the device. The caller holds capture_order(), with no capture open, and contexts_mutex()
/// until it has waited.
void note_work_on(ProgramMemory& memory, int device, PendingWork& work);

/// An allocation that is out of the index to be freed. Unless that is done by its end, it is freed with those
/// that wait for captures to end: also when it was memory that was short.
class Leaving {
public:
    explicit Leaving(Allocations::Record record) noexcept : record_(std::move(record)) {}
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;
    ~Leaving() { wait(); }

    explicit operator bool() const noexcept { return !record_.empty(); }
    const Known* operator->() const noexcept { return &record_.mapped(); }
    const Known& operator*() const noexcept { return record_.mapped(); }
    /// It is freed, or somebody else's to free.
    void done() noexcept { record_ = {}; }
    /// It is not to be freed: puts it back into the index.
    void stay() { Allocations::instance().put_back(std::move(record_)); }
    /// It is freed later.
    void wait() noexcept;

private:
    Allocations::Record record_;
};

} // namespace gpu_sleep::agent::intercepted
