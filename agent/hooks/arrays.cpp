// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of arrays and mipmapped arrays, which stay with the driver: a few lines each, no policy.

#include "intercepted/arrays.hpp"
#include "hooks/driver_table.hpp"
#include "intercepted/residents.hpp"

namespace gpu_sleep::hooks::own {

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) {
    const auto status = real<Entry::cuArrayCreate_v2>()(array, wanted);
    if (status == CUDA_SUCCESS && intercepts())
        agent::intercepted::array_created(
            *array, {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0}, 1);
    return status;
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
    const auto status = real<Entry::cuArray3DCreate_v2>()(array, wanted);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::array_created(*array, *wanted, 1);
    return status;
}

CUresult cuArrayDestroy(CUarray array) {
    const auto status = real<Entry::cuArrayDestroy>()(array);
    if (status == CUDA_SUCCESS && intercepts())
        agent::intercepted::forget_residual(reinterpret_cast<CUdeviceptr>(array));
    return status;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                                unsigned levels) {
    const auto status = real<Entry::cuMipmappedArrayCreate>()(array, wanted, levels);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::array_created(*array, *wanted, levels);
    return status;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    const auto status = real<Entry::cuMipmappedArrayDestroy>()(array);
    if (status == CUDA_SUCCESS && intercepts())
        agent::intercepted::forget_residual(reinterpret_cast<CUdeviceptr>(array));
    return status;
}

} // namespace gpu_sleep::hooks::own
