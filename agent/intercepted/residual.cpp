// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Noting what stays, and asking all parts for it. Of arrays the driver alone knows where they lie.

#include "intercepted/memory.hpp"

#include "common/interception.hpp"
#include "intercepted/virtual_memory.hpp"
#include "model/model.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr Bytes k_bits = 8; // of a byte

/// Formats that have so many bits.
struct Formats {
    Bytes bits = 0;
    std::initializer_list<CUarray_format> all;
};
constexpr Formats k_by_channel[] = {
    {8, {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8}},
    {16, {CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_HALF}},
    {32, {CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_FLOAT}}};
constexpr Formats k_by_element[] = {
    {4,
     {CU_AD_FORMAT_BC1_UNORM, CU_AD_FORMAT_BC1_UNORM_SRGB, CU_AD_FORMAT_BC4_UNORM, CU_AD_FORMAT_BC4_SNORM}},
    {8,
     {CU_AD_FORMAT_BC2_UNORM, CU_AD_FORMAT_BC2_UNORM_SRGB, CU_AD_FORMAT_BC3_UNORM,
      CU_AD_FORMAT_BC3_UNORM_SRGB, CU_AD_FORMAT_BC5_UNORM, CU_AD_FORMAT_BC5_SNORM, CU_AD_FORMAT_BC6H_UF16,
      CU_AD_FORMAT_BC6H_SF16, CU_AD_FORMAT_BC7_UNORM, CU_AD_FORMAT_BC7_UNORM_SRGB, CU_AD_FORMAT_UNORM_INT8X1,
      CU_AD_FORMAT_SNORM_INT8X1}},
    {12, {CU_AD_FORMAT_NV12}},
    {16,
     {CU_AD_FORMAT_UNORM_INT8X2, CU_AD_FORMAT_SNORM_INT8X2, CU_AD_FORMAT_UNORM_INT16X1,
      CU_AD_FORMAT_SNORM_INT16X1}},
    {32,
     {CU_AD_FORMAT_UNORM_INT8X4, CU_AD_FORMAT_SNORM_INT8X4, CU_AD_FORMAT_UNORM_INT16X2,
      CU_AD_FORMAT_SNORM_INT16X2}},
    {64, {CU_AD_FORMAT_UNORM_INT16X4, CU_AD_FORMAT_SNORM_INT16X4}}};

/// Zero for a format that is not among them.
Bytes bits_of(CUarray_format format, std::span<const Formats> among) noexcept {
    for (const auto& [bits, all] : among)
        if (std::ranges::find(all, format) != all.end()) return bits;
    return 0;
}

/// Zero for formats whose elements share planes: how large those are the driver alone knows.
Bytes bits_of_element(const CUDA_ARRAY3D_DESCRIPTOR& array) noexcept {
    return bits_of(array.Format, k_by_channel) * array.NumChannels + bits_of(array.Format, k_by_element);
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

/// The device of the current context; the first without one.
int device_or_first() noexcept {
    const auto with = memory();
    return with ? driver::current_device(with->api()).value_or(0) : 0;
}

/// Adds the memory that the driver holds for the memory nodes of graphs.
void add_graph_memory(const driver::Api& api, std::vector<Residual>& sums) {
    if (!api.cuDeviceGetGraphMemAttribute) return;
    const auto devices = driver::device_count(api);
    for (int device = 0; devices && device < *devices; ++device) {
        cuuint64_t bytes = 0;
        if (driver::is_primary_active(api, device) &&
            api.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) ==
                CUDA_SUCCESS &&
            bytes != 0)
            add_to_sum(sums, {"graph", device, bytes, 1, "the driver owns graph node memory"});
    }
}

} // namespace

void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept {
    const auto with = memory();
    CUcontext context = nullptr;
    if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS)
        context = books().contexts.owner_of_memory_in(context);
    books().residual.add(address, {bytes, kind, reason, device_or_first(), context});
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    books().residual.add(address, {bytes, kind, k_of_another_process, device_or_first(), nullptr});
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
    if (status != CUDA_SUCCESS) records.put_back(record);
    return status;
}

std::vector<Residual> residual(const LockedMemory& locked) noexcept {
    std::vector<Residual> sums;
    ignoring_errors([&] {
        books().residual.add_to(sums);
        const auto* const with = memory();
        if (!with) return; // the process is ending
        for (const auto& [address, backing] : locked.ledger().backings()) {
            if (!backing.stay_reason) continue;
            const auto* const kind = backing.host_backed ? model::k_residual_of_host
                                     : !backing.imported && !backing.stays_in_common ? "pinned"
                                     : has_mappings_in(address, backing.bytes)       ? k_shared
                                                                                     : k_ipc;
            add_to_sum(sums, {kind, backing.device, backing.bytes, 1, backing.stay_reason});
        }
        add_handles_that_stay(sums);
        if (intercepts() && with->may_call_driver()) add_graph_memory(with->api(), sums);
    });
    return sums;
}

} // namespace gpu_sleep::agent::intercepted
