// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plain memory: cuMemAlloc and its like. Source: CUDA Driver API, Memory Management.

#pragma once

#include "intercepted/allocations.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/taken.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

class PendingWork;

[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, Left& left) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes, Left& left) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;
/// Takes out the allocations that wait to be freed and die with the context.
[[nodiscard]] Taken take_waiting_of(ProgramMemory& memory, const std::function<bool(const Known&)>& dies);
/// Frees plain allocations that wait for captures to end while one is open, for memory is short. Breaks none,
/// and waits as the driver's own free does in a thread whose mode is relaxed. Whether any was freed. The
/// caller holds no mutex.
[[nodiscard]] bool free_amid_captures(ProgramMemory& memory) noexcept;
/// Frees the allocations, and closes the memory of other processes, that waited for captures to end.
void free_waiting() noexcept;
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
