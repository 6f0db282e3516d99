// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that stays on the GPU with the driver: managed, imported, arrays, behind handles of the driver, and
// what the least size, or a rule, leaves to it.

#pragma once

#include "base/guard.hpp"
#include "registry/allocations.hpp"

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <vector>

namespace gpu_sleep::agent::registry {

/// Reasons that decide what else can be done with the process.
inline constexpr char k_of_another_process[] = "it belongs to another process";
inline constexpr char k_exported[] = "shared with others";
inline constexpr char k_shared_by_ipc[] = "shared with other processes by CUDA IPC";
/// The kinds of what sleeps if all sleep who have it: by CUDA IPC, by descriptors.
inline constexpr char k_ipc[] = "ipc";
inline constexpr char k_shared[] = "shared";
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
inline void add_to_sum(std::vector<Residual>& sums, const Residual& row) {
    const auto same = std::find_if(sums.begin(), sums.end(), [&](const Residual& s) {
        return std::string_view(s.kind) == row.kind && s.device == row.device &&
               std::string_view(s.reason) == row.reason;
    });
    if (same == sums.end()) return sums.push_back(row);
    same->bytes += row.bytes;
    same->count += row.count;
}

/// Memory that the driver gave out, and which stays.
struct ResidualRecord {
    Bytes bytes = 0;
    const char* kind = nullptr;
    const char* reason = nullptr; ///< null: nobody counts it
    int device = 0;
    CUcontext context = nullptr; ///< whose end takes it; null: none that is known
    CUmemoryPool pool = nullptr; ///< of which it is, and then outlives all but primary contexts
};

/// The records of all such memory. One is lost where there is no memory to add it. Thread-safe.
class ResidualRecords {
public:
    void add(CUdeviceptr address, const ResidualRecord& record) noexcept {
        ignoring_errors([&] {
            auto& shard = shard_of(address);
            const MutexLock lock(shard.mutex);
            count_ += shard.records.insert_or_assign(address, record).second;
        });
    }
    [[nodiscard]] bool has_any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
    using Taken = std::map<CUdeviceptr, ResidualRecord>;
    /// Takes out the record of what begins at `address`, if there is one.
    Taken take(CUdeviceptr address) noexcept {
        Taken taken;
        auto& shard = shard_of(address);
        const MutexLock lock(shard.mutex);
        taken.insert(shard.records.extract(address));
        count_ -= taken.size();
        return taken;
    }
    /// Takes out all that are wanted.
    template <class Wanted>
    [[nodiscard]] Taken take(const Wanted& wanted) noexcept {
        Taken taken;
        for (auto& shard : shards_) {
            const MutexLock lock(shard.mutex);
            auto found = move_out(shard.records, [&](const auto& each) { return wanted(each.second); });
            count_ -= found.size();
            taken.merge(found);
        }
        return taken;
    }
    void put_back(Taken& records) noexcept {
        while (!records.empty()) {
            auto record = records.extract(records.begin());
            auto& shard = shard_of(record.key());
            const MutexLock lock(shard.mutex);
            count_ += shard.records.insert(std::move(record)).inserted;
        }
    }

    /// The driver gave out a handle that is none of ours, of memory on the host or of another process, or one
    /// more reference to it; or is about to take one back.
    void handle_taken(CUmemGenericAllocationHandle handle) noexcept {
        ignoring_errors([&] {
            const MutexLock lock(mutex_);
            ++foreign_[handle].references;
        });
    }
    void handle_released(CUmemGenericAllocationHandle handle) noexcept {
        const MutexLock lock(mutex_);
        const auto found = foreign_.find(handle);
        if (found == foreign_.end()) return;
        if (found->second.references != 0) --found->second.references;
        forget_if_unused(handle);
    }
    /// The memory of such a handle is shared with other processes: `how` is k_exported or
    /// k_of_another_process.
    void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept {
        ignoring_errors([&] {
            const MutexLock lock(mutex_);
            foreign_[handle].shared = how;
        });
    }
    /// The driver mapped memory behind such a handle. Whether it is of another process.
    bool mapped(CUdeviceptr address, CUmemGenericAllocationHandle handle) noexcept {
        bool is_imported = false;
        ignoring_errors([&] {
            const MutexLock lock(mutex_);
            auto& foreign = foreign_[handle];
            foreign_mappings_.insert_or_assign(address, handle);
            ++foreign.mappings;
            is_imported = foreign.shared == k_of_another_process;
        });
        return is_imported;
    }
    /// It unmapped whatever was there.
    void unmapped(CUdeviceptr address, std::size_t bytes) noexcept {
        while (const auto at = take_mapping(address, bytes)) take(*at);
    }

    /// Adds all to the sums. May throw for want of memory.
    void add_to(std::vector<Residual>& sums) const {
        {
            const MutexLock lock(mutex_);
            // On the host, or not mapped: it takes nothing of a GPU, and decides what the driver can do.
            for (const auto& [handle, foreign] : foreign_)
                if (foreign.shared && (foreign.shared == k_exported || foreign.mappings == 0))
                    add_to_sum(sums, {"virtual", 0, 0, 1, foreign.shared});
        }
        for (const auto& shard : shards_) {
            const MutexLock lock(shard.mutex);
            for (const auto& [address, one] : shard.records)
                add_to_sum(sums, {one.kind, one.device, one.bytes, 1, one.reason});
        }
    }

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
        Taken records GPU_SLEEP_GUARDED_BY(mutex);
    };
    Shard& shard_of(CUdeviceptr address) noexcept {
        constexpr unsigned k_granularity_bits = 9; // of what the driver gives out
        return shards_[(address >> k_granularity_bits) % shards_.size()];
    }
    /// Forgets the handle once nothing holds its memory: the driver may give it out again.
    void forget_if_unused(CUmemGenericAllocationHandle handle) GPU_SLEEP_REQUIRES(mutex_) {
        const auto found = foreign_.find(handle);
        if (found != foreign_.end() && found->second.references == 0 && found->second.mappings == 0)
            foreign_.erase(found);
    }
    /// Takes the first mapping in these bytes out.
    std::optional<CUdeviceptr> take_mapping(CUdeviceptr address, std::size_t bytes) noexcept {
        const MutexLock lock(mutex_);
        const auto first = foreign_mappings_.lower_bound(address);
        if (first == foreign_mappings_.end() || first->first >= address + bytes) return std::nullopt;
        const auto [at, handle] = *first;
        foreign_mappings_.erase(first);
        --foreign_.at(handle).mappings;
        forget_if_unused(handle);
        return at;
    }

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUmemGenericAllocationHandle, Foreign> foreign_ GPU_SLEEP_GUARDED_BY(mutex_);
    /// And whose they are.
    std::map<CUdeviceptr, CUmemGenericAllocationHandle> foreign_mappings_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::array<Shard, 16> shards_;
    std::atomic<std::size_t> count_{0}; ///< in all shards
};

} // namespace gpu_sleep::agent::registry
