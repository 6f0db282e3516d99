// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Noting what stays, and asking all parts for it. Of arrays the driver alone knows where they lie.

#include "intercepted/memory.hpp"

#include "common/interception.hpp"
#include "intercepted/pool_table.hpp"
#include "model/model.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr Bytes k_bits = 8; // of a byte

/// Zero for formats whose elements share planes: how large those are the driver alone knows.
Bytes bits_of_element(const CUDA_ARRAY3D_DESCRIPTOR& array) noexcept {
    switch (array.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return Bytes{8} * array.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return Bytes{16} * array.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return Bytes{32} * array.NumChannels;
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
    default: return 0;
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

/// Adds the memory that the driver holds for the memory nodes of graphs.
void add_graph_memory(std::vector<Residual>& sums) {
    const auto with = memory();
    if (!with || !with->may_call_driver() || !with->api().cuDeviceGetGraphMemAttribute) return;
    int devices = 0;
    if (with->api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return;
    for (int device = 0; device < devices; ++device) {
        cuuint64_t bytes = 0;
        if (!driver::is_primary_active(with->api(), device)) continue;
        if (with->api().cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                     &bytes) == CUDA_SUCCESS &&
            bytes != 0)
            add_to_sum(sums, {"graph", device, bytes, 1, "the driver owns graph node memory"});
    }
}

/// Adds ranges and handles of the program whose memory cannot sleep.
void add_memory_that_stays(const LockedMemory& locked, std::vector<Residual>& sums) {
    if (!memory()) return; // the process is ending
    for (const auto& [address, backing] : locked.ledger().backings())
        if (backing.stay_reason)
            add_to_sum(sums, {backing.host_backed                      ? model::k_residual_of_host
                              : backing.stay_reason == k_shared_by_ipc ? "ipc"
                                                                       : "pinned",
                              backing.device, backing.bytes, 1, backing.stay_reason});
    add_handles_that_stay(sums);
}

} // namespace

void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        CUcontext context = nullptr;
        if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS)
            context = books().contexts.owner_of_memory_in(context);
        const auto device = with ? current_device(*with).value_or(0) : 0;
        books().residual.add(address, {bytes, kind, reason, device, context});
    });
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    const auto with = memory();
    const auto device = with ? current_device(*with).value_or(0) : 0;
    books().residual.add(address, {bytes, kind, k_of_another_process, device, nullptr});
}

void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept {
    if (books().residual.mapped(address, handle)) imported(address, bytes, "virtual");
}

void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept {
    constexpr unsigned k_without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if ((wanted.Flags & k_without_memory) != 0) return; // what is mapped into them is counted itself
    stays_in_context(reinterpret_cast<CUdeviceptr>(array), bytes_of(wanted, levels), "array",
                     "the driver alone knows where an array lies");
}

void allocated_by_driver(CUdeviceptr address, std::size_t bytes, ResidualRecord residual) noexcept {
    if (!residual.reason) return;
    if (residual.pool) note_mixed_pool(residual.pool);
    residual.bytes = bytes;
    books().residual.add(address, residual);
}

CUresult free_by_driver(CUdeviceptr address, const std::function<CUresult()>& free) noexcept {
    auto& records = books().residual;
    if (!records.has_any()) return free();
    // The record goes first: behind the free the address may at once be somebody else's.
    auto record = records.take(address);
    const auto status = free();
    if (status != CUDA_SUCCESS && !record.empty()) records.put_back(std::move(record));
    return status;
}

std::vector<Residual> residual(const LockedMemory& locked) noexcept {
    std::vector<Residual> sums;
    ignoring_errors([&] {
        books().residual.add_to(sums);
        add_memory_that_stays(locked, sums);
        if (intercepts()) add_graph_memory(sums);
    });
    return sums;
}

} // namespace gpu_sleep::agent::intercepted
