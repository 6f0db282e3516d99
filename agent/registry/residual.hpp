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
#include <cstdint>
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

/// Why an allocation stays with the driver: the least size, or a rule, says so.
struct ResidualCause {
    const char* reason = nullptr; ///< null for any other: nobody counts it
    CUcontext context = nullptr;
    int device = 0;
    CUmemoryPool pool = nullptr; ///< of which it is; null: plain memory
};

/// Records of memory that is only told of: a record is lost where memory is short. Thread-safe.
class ResidualRecords {
public:
    struct Record {
        Bytes bytes;
        const char* kind;
        const char* reason;
        int device;
        CUcontext context; ///< whose end takes it; null: none that is known
    };
    void add(CUdeviceptr address, const Record& record) noexcept;
    void forget(CUdeviceptr address) noexcept;

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

    /// The driver allocated it, as the least size, or a rule, has it.
    struct OfDriver {
        Bytes bytes = 0;
        ResidualCause cause;
    };
    using OfDriverRecord = std::unordered_map<CUdeviceptr, OfDriver>::node_type;
    void add(CUdeviceptr address, const OfDriver& allocation) noexcept;
    [[nodiscard]] bool has_any_of_driver() const noexcept {
        return count_.load(std::memory_order_relaxed) != 0;
    }
    [[nodiscard]] OfDriverRecord take(CUdeviceptr address) noexcept;
    void put_back(OfDriverRecord record) noexcept;

    struct Taken {
        std::map<CUdeviceptr, Record> records;
        std::vector<OfDriverRecord> of_driver;
    };
    /// Takes out what ends with the context.
    [[nodiscard]] Taken take(CUcontext context, bool is_primary) noexcept;
    void put_back(Taken& taken) noexcept;

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
        std::unordered_map<CUdeviceptr, OfDriver> allocations GPU_SLEEP_GUARDED_BY(mutex);
    };
    Shard& shard_of(CUdeviceptr address) noexcept;
    /// Forgets the handle once nothing holds its memory: the driver may give it out again.
    void forget_if_unused(CUmemGenericAllocationHandle handle) GPU_SLEEP_REQUIRES(mutex_);

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Record> by_address_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::map<CUmemGenericAllocationHandle, Foreign> foreign_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::map<CUdeviceptr, CUmemGenericAllocationHandle>
        foreign_mappings_ GPU_SLEEP_GUARDED_BY(mutex_); ///< and whose they are
    std::array<Shard, 16> shards_;
    std::atomic<std::size_t> count_{0}; ///< in all shards
};

} // namespace gpu_sleep::agent::registry
