// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that stays on the GPU with the driver: managed, imported, arrays, behind handles of the driver, and
// what the least size, or a rule, leaves to it.

#pragma once

#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

namespace gpu_sleep::agent::registry {

/// Reasons that decide what else can be done with the process.
inline constexpr char k_of_another_process[] = "it belongs to another process";
inline constexpr char k_exported[] = "shared with others";
inline constexpr char k_shared_by_ipc[] = "shared with other processes by CUDA IPC";
inline constexpr char k_in_multicast_group[] = "bound to a multicast group";

/// One kind of memory that stays, on one device.
struct Residual {
    const char* kind;
    int device;
    Bytes bytes;
    std::uint64_t count;
    const char* reason;
};

/// Adds `row` to the one of its kind, device and reason.
void add_to_sum(std::vector<Residual>& sums, const Residual& row);

/// Memory that the driver gave out, and which stays.
struct ResidualRecord {
    Bytes bytes = 0;
    const char* kind = nullptr;
    const char* reason = nullptr; ///< null: nobody counts it
    int device = 0;
    CUcontext context = nullptr; ///< whose end takes it; null: none that is known
    CUmemoryPool pool = nullptr; ///< of which it is, and then outlives all but primary contexts
};

/// The records of all such memory. A record is lost where memory is short. Thread-safe.
class ResidualRecords {
public:
    void add(CUdeviceptr address, const ResidualRecord& record) noexcept;
    [[nodiscard]] bool has_any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
    using Node = std::unordered_map<CUdeviceptr, ResidualRecord>::node_type;
    Node take(CUdeviceptr address) noexcept;
    void put_back(Node record) noexcept;
    /// Takes out what ends with the context.
    using Taken = std::vector<Node>;
    [[nodiscard]] Taken take(CUcontext context, bool is_primary) noexcept;

    /// The driver gave out a handle that is none of ours, of memory on the host or of another process, or one
    /// more reference to it; or is about to take one back.
    void handle_taken(CUmemGenericAllocationHandle handle) noexcept;
    void handle_released(CUmemGenericAllocationHandle handle) noexcept;
    /// The memory of such a handle is shared with other processes: `how` is k_exported or
    /// k_of_another_process.
    void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept;
    /// The driver mapped memory behind such a handle. Whether it is of another process.
    bool mapped(CUdeviceptr address, CUmemGenericAllocationHandle handle) noexcept;
    /// It unmapped whatever was there.
    void unmapped(CUdeviceptr address, std::size_t bytes) noexcept;

    /// Adds all to the sums. May throw for want of memory.
    void add_to(std::vector<Residual>& sums) const;

private:
    struct Foreign {
        unsigned references = 0;
        unsigned mappings = 0;
        const char* shared = nullptr; ///< with other processes, and how
    };
    /// One of several, by the address, so that threads seldom wait for each other: small allocations are
    /// frequent.
    struct Shard {
        mutable Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
        std::unordered_map<CUdeviceptr, ResidualRecord> records GPU_SLEEP_GUARDED_BY(mutex);
    };
    Shard& shard_of(CUdeviceptr address) noexcept;
    /// Forgets the handle once nothing holds its memory: the driver may give it out again.
    void forget_if_unused(CUmemGenericAllocationHandle handle) GPU_SLEEP_REQUIRES(mutex_);
    /// Takes the first mapping in these bytes out.
    std::optional<CUdeviceptr> take_mapping(CUdeviceptr address, std::size_t bytes) noexcept;

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUmemGenericAllocationHandle, Foreign> foreign_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::map<CUdeviceptr, CUmemGenericAllocationHandle>
        foreign_mappings_ GPU_SLEEP_GUARDED_BY(mutex_); ///< and whose they are
    std::array<Shard, 16> shards_;
    std::atomic<std::size_t> count_{0}; ///< in all shards
};

} // namespace gpu_sleep::agent::registry
