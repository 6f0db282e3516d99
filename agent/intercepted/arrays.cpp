// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arrays and mipmapped arrays: the driver alone knows where they lie, so they stay, and are counted.

#include "intercepted/arrays.hpp"

#include "intercepted/residents.hpp"
#include <algorithm>

namespace gpu_sleep::agent::intercepted {
namespace {

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

void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept {
    constexpr unsigned k_without_memory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if ((wanted.Flags & k_without_memory) != 0) return; // what is mapped into them is counted itself
    stays_in_context(reinterpret_cast<CUdeviceptr>(array), bytes_of(wanted, levels), "array",
                     "the driver alone knows where an array lies");
}

} // namespace gpu_sleep::agent::intercepted
