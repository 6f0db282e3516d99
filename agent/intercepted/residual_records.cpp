// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory is recorded so that it can be told what stays on the GPU. Of arrays the driver alone knows where
// they lie. Small allocations are frequent: each takes a short look at one of several tables.

#include "intercepted/residual_records.hpp"

#include "base/guard.hpp"
#include "base/memory.hpp"
#include "common/lock_order.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/pool_table.hpp"
#include "intercepted/state.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>

namespace gpu_sleep::agent::intercepted {

namespace {

struct ResidualRecords {
    struct Record {
        Bytes bytes;
        const char* kind;
        const char* reason;
        int device;
        CUcontext context; ///< whose end takes it; null: none that is known
    };
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Record> by_address GPU_SLEEP_GUARDED_BY(mutex);
    /// A handle of the driver's that is none of ours: of memory on the host, or of another process.
    struct Foreign {
        unsigned references = 0;
        unsigned mappings = 0;
        const char* shared = nullptr; ///< with other processes, and how
    };
    std::map<CUmemGenericAllocationHandle, Foreign> foreign GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdeviceptr, CUmemGenericAllocationHandle>
        foreign_mappings GPU_SLEEP_GUARDED_BY(mutex); ///< and whose they are
};

/// Calls `use` with the records, under their mutex. Lets nothing cross.
template <class Use>
void with_records(const Use& use) noexcept {
    // Clang does not see that the mutex which `use` requires is that of the records it is given.
    ignoring_errors([&]() GPU_SLEEP_UNCHECKED {
        auto& records = immortal<ResidualRecords>();
        const MutexLock lock(records.mutex);
        use(records);
    });
}

void add_record(CUdeviceptr address, ResidualRecords::Record record) noexcept {
    if (const auto with = memory()) record.device = current_device(*with).value_or(0);
    with_records([&](ResidualRecords& records) GPU_SLEEP_REQUIRES(records.mutex) {
        records.by_address.insert_or_assign(address, record);
    });
}

/// Forgets the handle once nothing holds its memory: the driver may give it out again.
void forget_if_unused(ResidualRecords& records, CUmemGenericAllocationHandle handle)
    GPU_SLEEP_REQUIRES(records.mutex) {
    const auto found = records.foreign.find(handle);
    if (found != records.foreign.end() && found->second.references == 0 && found->second.mappings == 0)
        records.foreign.erase(found);
}

constexpr Bytes k_bits = 8; // of a byte

/// Bits of a channel, or of a whole element where the format says how many channels it has. Zero for formats
/// whose elements share planes: how large those are the driver alone knows.
Bytes bits_of_channel(CUarray_format format) noexcept {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 8;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 16;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 32;
    default: return 0;
    }
}

Bytes bits_of_element(const CUDA_ARRAY3D_DESCRIPTOR& array) noexcept {
    switch (array.Format) {
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM: return 4;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1: return 8;
    case CU_AD_FORMAT_NV12: return 12;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1: return 16;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2: return 32;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4: return 64;
    default: return bits_of_channel(array.Format) * array.NumChannels;
    }
}

Bytes bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) noexcept {
    const bool is_layered = (array.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    Bytes elements = 0;
    for (unsigned level = 0; level < levels; ++level) {
        const auto side = [=](std::size_t whole) { return std::max<Bytes>(whole >> level, 1); };
        elements += side(array.Width) * side(array.Height) *
                    (is_layered ? std::max<Bytes>(array.Depth, 1) : side(array.Depth));
    }
    return elements * bits_of_element(array) / k_bits;
}

struct DriverAllocation {
    Bytes bytes = 0;
    ResidualCause cause;
};
using DriverAllocations = std::unordered_map<CUdeviceptr, DriverAllocation>;

/// One of several, by the address, so that threads seldom wait for each other.
struct Shard {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    DriverAllocations allocations GPU_SLEEP_GUARDED_BY(mutex);
};

struct Shards {
    static constexpr unsigned k_granularity_bits = 9; ///< of what the driver gives out
    std::array<Shard, 16> all;
    std::atomic<std::size_t> count{0};

    Shard& of(CUdeviceptr address) noexcept { return all[(address >> k_granularity_bits) % all.size()]; }
};

using Node = DriverAllocations::node_type;

void put_back(Node record) noexcept {
    auto& shards = immortal<Shards>();
    auto& shard = shards.of(record.key());
    ignoring_errors([&] {
        const MutexLock lock(shard.mutex);
        shards.count += shard.allocations.insert(std::move(record)).inserted;
    });
}

} // namespace

void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        CUcontext context = nullptr;
        if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS)
            context = owner_of_memory_in(context);
        add_record(address, {bytes, kind, reason, 0, context});
    });
}

void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept {
    stays_in_context(address, bytes, "managed", "the driver moves it between host and device itself");
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    add_record(address, {bytes, kind, k_of_another_process, 0, nullptr});
}

void forget_residual(CUdeviceptr address) noexcept {
    with_records([&](ResidualRecords& records)
                     GPU_SLEEP_REQUIRES(records.mutex) { records.by_address.erase(address); });
}

void handle_taken(CUmemGenericAllocationHandle handle) noexcept {
    with_records([&](ResidualRecords& records)
                     GPU_SLEEP_REQUIRES(records.mutex) { ++records.foreign[handle].references; });
}

void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept {
    with_records([&](ResidualRecords& records)
                     GPU_SLEEP_REQUIRES(records.mutex) { records.foreign[handle].shared = how; });
}

void handle_released(CUmemGenericAllocationHandle handle) noexcept {
    auto& records = immortal<ResidualRecords>();
    const MutexLock lock(records.mutex);
    const auto found = records.foreign.find(handle);
    if (found == records.foreign.end()) return;
    if (found->second.references != 0) --found->second.references;
    forget_if_unused(records, handle);
}

void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept {
    bool is_imported = false;
    with_records([&](ResidualRecords& records) GPU_SLEEP_REQUIRES(records.mutex) {
        auto& foreign = records.foreign[handle];
        records.foreign_mappings.insert_or_assign(address, handle);
        ++foreign.mappings;
        is_imported = foreign.shared == k_of_another_process;
    });
    if (is_imported) imported(address, bytes, "virtual");
}

void unmapped_by_driver(CUdeviceptr address, std::size_t bytes) noexcept {
    auto& records = immortal<ResidualRecords>();
    const MutexLock lock(records.mutex);
    records.by_address.erase(records.by_address.lower_bound(address),
                             records.by_address.lower_bound(address + bytes));
    auto& mappings = records.foreign_mappings;
    for (auto at = mappings.lower_bound(address); at != mappings.end() && at->first < address + bytes;) {
        const auto handle = at->second;
        at = mappings.erase(at);
        --records.foreign[handle].mappings;
        forget_if_unused(records, handle);
    }
}

PutBack take_managed_of(CUcontext context) {
    const auto taken = std::make_shared<decltype(ResidualRecords::by_address)>();
    PutBack put_back = [taken] {
        auto& records = immortal<ResidualRecords>();
        const MutexLock lock(records.mutex);
        records.by_address.merge(*taken);
    };
    auto& records = immortal<ResidualRecords>();
    const MutexLock lock(records.mutex);
    *taken = move_out(records.by_address, [=](const auto& each) { return each.second.context == context; });
    return put_back;
}

void add_to_sum(std::vector<Residual>& sums, const Residual& row) {
    const auto same = std::find_if(sums.begin(), sums.end(), [&](const Residual& s) {
        return std::string_view(s.kind) == row.kind && s.device == row.device &&
               std::string_view(s.reason) == row.reason;
    });
    if (same == sums.end()) return sums.push_back(row);
    same->bytes += row.bytes;
    same->count += row.count;
}

void add_residual_records(std::vector<Residual>& sums) {
    auto& records = immortal<ResidualRecords>();
    const MutexLock lock(records.mutex);
    for (const auto& [address, record] : records.by_address)
        add_to_sum(sums, {record.kind, record.device, record.bytes, 1, record.reason});
    // On the host, or not mapped: it takes nothing of a GPU, and decides what the driver can do.
    for (const auto& [handle, foreign] : records.foreign)
        if (foreign.shared && (foreign.shared == k_exported || foreign.mappings == 0))
            add_to_sum(sums, {"virtual", 0, 0, 1, foreign.shared});
}

void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept {
    constexpr unsigned k_without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if ((wanted.Flags & k_without_memory) != 0) return; // what is mapped into them is counted itself
    stays_in_context(reinterpret_cast<CUdeviceptr>(array), bytes_of(wanted, levels), "array",
                     "the driver alone knows where an array lies");
}

void allocated_by_driver(CUdeviceptr address, std::size_t bytes, const ResidualCause& cause) noexcept {
    if (!cause.reason) return;
    if (cause.pool) note_mixed_pool(cause.pool);
    ignoring_errors([&] {
        auto& shards = immortal<Shards>();
        auto& shard = shards.of(address);
        const MutexLock lock(shard.mutex);
        shards.count += shard.allocations.insert_or_assign(address, DriverAllocation{bytes, cause}).second;
    });
}

CUresult free_by_driver(CUdeviceptr address, const std::function<CUresult()>& free) noexcept {
    auto& shards = immortal<Shards>();
    if (shards.count.load(std::memory_order_relaxed) == 0) return free();
    // The record goes first: behind the free the address may at once be somebody else's.
    Node record;
    {
        auto& shard = shards.of(address);
        const MutexLock lock(shard.mutex);
        record = shard.allocations.extract(address);
        shards.count -= !record.empty();
    }
    const auto status = free();
    if (status != CUDA_SUCCESS && !record.empty()) put_back(std::move(record));
    return status;
}

PutBack take_allocations_of_driver(CUcontext context, bool is_primary) {
    auto taken = std::make_shared<std::vector<Node>>();
    PutBack put_all_back = [taken] {
        for (auto& record : *taken) put_back(std::move(record));
    };
    auto& shards = immortal<Shards>();
    for (auto& shard : shards.all) {
        const MutexLock lock(shard.mutex);
        for (auto next = shard.allocations.begin(); next != shard.allocations.end();) {
            const auto here = next++;
            const auto& cause = here->second.cause;
            // Memory of pools outlives contexts, but for the device's primary one.
            if (cause.context != context || (cause.pool && !is_primary)) continue;
            taken->emplace_back();
            taken->back() = shard.allocations.extract(here);
            --shards.count;
        }
    }
    return put_all_back;
}

void add_allocations_of_driver(std::vector<Residual>& sums) {
    for (auto& shard : immortal<Shards>().all) {
        const MutexLock lock(shard.mutex);
        for (const auto& [address, one] : shard.allocations) {
            const auto* const kind = one.cause.pool ? "pool" : "plain";
            add_to_sum(sums, {kind, one.cause.device, one.bytes, 1, one.cause.reason});
        }
    }
}

} // namespace gpu_sleep::agent::intercepted
