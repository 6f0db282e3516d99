// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of such memory, and of the driver's handles. Of arrays the driver alone knows where they lie, so
// they stay, and are counted.

#include "intercepted/residents.hpp"

#include "base/memory.hpp"
#include "common/lock_order.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/state.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

namespace gpu_sleep::agent::intercepted {
namespace {

struct Residents {
    struct Resident {
        Bytes bytes;
        const char* kind;
        const char* reason;
        int device;
        CUcontext context; ///< whose end takes it; null: none that is known
    };
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Resident> by_address GPU_SLEEP_GUARDED_BY(mutex);
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

void add_resident(CUdeviceptr address, Residents::Resident resident) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        if (with) resident.device = current_device(*with).value_or(0);
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        residents.by_address.insert_or_assign(address, resident);
    });
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

} // namespace

void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        CUcontext context = nullptr;
        if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS)
            context = owner_of_memory_in(context);
        add_resident(address, {bytes, kind, reason, 0, context});
    });
}

void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept {
    stays_in_context(address, bytes, "managed", "the driver moves it between host and device itself");
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    add_resident(address, {bytes, kind, k_of_another_process, 0, nullptr});
}

void forget_residual(CUdeviceptr address) noexcept {
    ignoring_errors([&] {
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        residents.by_address.erase(address);
    });
}

namespace {

/// Forgets the handle once nothing holds its memory: the driver may give it out again.
void forget_if_unused(Residents& residents, CUmemGenericAllocationHandle handle)
    GPU_SLEEP_REQUIRES(residents.mutex) {
    const auto found = residents.foreign.find(handle);
    if (found != residents.foreign.end() && found->second.references == 0 && found->second.mappings == 0)
        residents.foreign.erase(found);
}

} // namespace

void handle_taken(CUmemGenericAllocationHandle handle) noexcept {
    ignoring_errors([&] {
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        ++residents.foreign[handle].references;
    });
}

void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept {
    ignoring_errors([&] {
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        residents.foreign[handle].shared = how;
    });
}

void handle_released(CUmemGenericAllocationHandle handle) noexcept {
    auto& residents = immortal<Residents>();
    const MutexLock lock(residents.mutex);
    const auto found = residents.foreign.find(handle);
    if (found == residents.foreign.end()) return;
    if (found->second.references != 0) --found->second.references;
    forget_if_unused(residents, handle);
}

void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept {
    bool is_imported = false;
    ignoring_errors([&] {
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        auto& foreign = residents.foreign[handle];
        residents.foreign_mappings.insert_or_assign(address, handle);
        ++foreign.mappings;
        is_imported = foreign.shared == k_of_another_process;
    });
    if (is_imported) imported(address, bytes, "virtual");
}

void unmapped_by_driver(CUdeviceptr address, std::size_t bytes) noexcept {
    auto& residents = immortal<Residents>();
    const MutexLock lock(residents.mutex);
    residents.by_address.erase(residents.by_address.lower_bound(address),
                               residents.by_address.lower_bound(address + bytes));
    auto& mappings = residents.foreign_mappings;
    for (auto at = mappings.lower_bound(address); at != mappings.end() && at->first < address + bytes;) {
        const auto handle = at->second;
        at = mappings.erase(at);
        --residents.foreign[handle].mappings;
        forget_if_unused(residents, handle);
    }
}

PutBack take_managed_of(CUcontext context) {
    const auto taken = std::make_shared<decltype(Residents::by_address)>();
    PutBack put_back = [taken] {
        auto& residents = immortal<Residents>();
        const MutexLock lock(residents.mutex);
        residents.by_address.merge(*taken);
    };
    auto& residents = immortal<Residents>();
    const MutexLock lock(residents.mutex);
    *taken = move_out(residents.by_address, [=](const auto& each) { return each.second.context == context; });
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

void add_residents(std::vector<Residual>& rows) {
    auto& residents = immortal<Residents>();
    const MutexLock lock(residents.mutex);
    for (const auto& [address, resident] : residents.by_address)
        rows.push_back({resident.kind, resident.device, resident.bytes, 1, resident.reason});
    // On the host, or not mapped: it takes nothing of a GPU, and decides what the driver can do.
    for (const auto& [handle, foreign] : residents.foreign)
        if (foreign.shared && (foreign.shared == k_exported || foreign.mappings == 0))
            rows.push_back({"virtual", 0, 0, 1, foreign.shared});
}

void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept {
    constexpr unsigned k_without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if ((wanted.Flags & k_without_memory) != 0) return; // what is mapped into them is counted itself
    stays_in_context(reinterpret_cast<CUdeviceptr>(array), bytes_of(wanted, levels), "array",
                     "the driver alone knows where an array lies");
}

} // namespace gpu_sleep::agent::intercepted
