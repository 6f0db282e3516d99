// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arrays and mipmapped arrays: plain memory that only copies reach, row by row, by a handle that is its
// address.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/plain_memory.hpp"

#include "base/units.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_level_alignment = 4096;

std::uint64_t bytes_of_element(const CUDA_ARRAY3D_DESCRIPTOR& array) noexcept {
    switch (array.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return array.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return std::uint64_t{2} * array.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return std::uint64_t{4} * array.NumChannels;
    default: return 0;
    }
}

std::uint64_t bytes_of_level(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level) noexcept {
    const auto side = [=](std::size_t whole) { return std::max<std::uint64_t>(whole >> level, 1); };
    return side(array.Width) * side(array.Height) * side(array.Depth) * bytes_of_element(array);
}

/// Where `level` begins, or the end of all levels.
std::uint64_t offset_of_level(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level) noexcept {
    std::uint64_t offset = 0;
    for (unsigned i = 0; i < level; ++i) offset += round_up(bytes_of_level(array, i), k_level_alignment);
    return offset;
}

CUresult make(Driver& driver, const Context& context, const CUDA_ARRAY3D_DESCRIPTOR* array, unsigned levels,
              CUdeviceptr& address) {
    if (!array || levels == 0 || array->Width == 0 || bytes_of_element(*array) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    const auto bytes = offset_of_level(*array, levels);
    auto memory = Physical::create(driver.pool(context.device), bytes);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    return add_plain_memory(driver, context, std::move(memory), bytes, PlainAllocation::Kind::array, address);
}

CUresult destroy(Call& c, const Context& context, CUdeviceptr address) {
    const auto found = c.driver.plain.find(address);
    if (found == c.driver.plain.end() || found->second.kind != PlainAllocation::Kind::array)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(wait_for(c, context, all_work(context)));
    free_plain_memory(c.driver, address);
    return CUDA_SUCCESS;
}

template <class Handle>
CUdeviceptr address_of(Handle handle) noexcept {
    return reinterpret_cast<CUdeviceptr>(handle);
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(unsafe, 3020)
cuArrayCreate(Call& c, Context& context, CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) {
    if (!array || !wanted) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR whole{wanted->Width,  wanted->Height,      0,
                                        wanted->Format, wanted->NumChannels, 0};
    CUdeviceptr address = 0;
    const auto status = make(c.driver, context, &whole, 1, address);
    if (status == CUDA_SUCCESS) *array = reinterpret_cast<CUarray>(address);
    return status;
}

SIM_ENTRY(unsafe, 3020)
cuArray3DCreate(Call& c, Context& context, CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
    CUdeviceptr address = 0;
    const auto status = array ? make(c.driver, context, wanted, 1, address) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS) *array = reinterpret_cast<CUarray>(address);
    return status;
}

SIM_ENTRY(unsafe, 2000) cuArrayDestroy(Call& c, Context& context, CUarray array) {
    return destroy(c, context, address_of(array));
}

SIM_ENTRY(unsafe, 5000)
cuMipmappedArrayCreate(Call& c, Context& context, CUmipmappedArray* array,
                       const CUDA_ARRAY3D_DESCRIPTOR* wanted, unsigned levels) {
    CUdeviceptr address = 0;
    const auto status = array ? make(c.driver, context, wanted, levels, address) : CUDA_ERROR_INVALID_VALUE;
    if (status == CUDA_SUCCESS) *array = reinterpret_cast<CUmipmappedArray>(address);
    return status;
}

SIM_ENTRY(unsafe, 5000) cuMipmappedArrayDestroy(Call& c, Context& context, CUmipmappedArray array) {
    return destroy(c, context, address_of(array));
}
