// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Tensor by tensor, each step waited for.

#include "bench/per_tensor.hpp"

namespace gpu_sleep::bench {
namespace {

CUmemAllocationProp properties() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
}

/// Gives the tensor memory at its address.
Result<void> make(PerTensor::Tensor& tensor) {
    const auto kind = properties();
    const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GPU_SLEEP_TRY(check(cuMemCreate(&tensor.handle, tensor.size, &kind, 0), "cuMemCreate"));
    GPU_SLEEP_TRY(check(cuMemMap(tensor.address, tensor.size, 0, tensor.handle, 0), "cuMemMap"));
    return check(cuMemSetAccess(tensor.address, tensor.size, &access, 1), "cuMemSetAccess");
}

} // namespace

Result<void> check(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return {};
    const char* reason = "an unknown error";
    cuGetErrorString(status, &reason);
    return make_error(ErrorCode::driver_failed, "{}: {}", call, reason);
}

Result<CUdeviceptr> PerTensor::add(Bytes bytes, Contents contents) {
    const auto kind = properties();
    std::size_t granularity = 0;
    GPU_SLEEP_TRY(check(cuMemGetAllocationGranularity(&granularity, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                        "cuMemGetAllocationGranularity"));
    auto& tensor = tensors_.emplace_back();
    tensor.bytes = bytes;
    tensor.size = round_up(bytes, granularity);
    tensor.is_kept = contents == Contents::kept;
    GPU_SLEEP_TRY(check(cuMemAddressReserve(&tensor.address, tensor.size, 0, 0, 0), "cuMemAddressReserve"));
    GPU_SLEEP_TRY(make(tensor));
    return tensor.address;
}

Result<void> PerTensor::sleep() {
    for (auto& tensor : tensors_) {
        if (tensor.is_kept) {
            if (!tensor.host)
                GPU_SLEEP_TRY(check(cuMemHostAlloc(&tensor.host, tensor.bytes, 0), "cuMemHostAlloc"));
            GPU_SLEEP_TRY(check(cuMemcpyDtoH(tensor.host, tensor.address, tensor.bytes), "cuMemcpyDtoH"));
        }
        GPU_SLEEP_TRY(check(cuMemUnmap(tensor.address, tensor.size), "cuMemUnmap"));
        GPU_SLEEP_TRY(check(cuMemRelease(tensor.handle), "cuMemRelease"));
    }
    return {};
}

Result<void> PerTensor::wake() {
    for (auto& tensor : tensors_) {
        GPU_SLEEP_TRY(make(tensor));
        if (!tensor.host) continue;
        GPU_SLEEP_TRY(check(cuMemcpyHtoD(tensor.address, tensor.host, tensor.bytes), "cuMemcpyHtoD"));
        if (host_ == HostMemory::retained) continue;
        GPU_SLEEP_TRY(check(cuMemFreeHost(tensor.host), "cuMemFreeHost"));
        tensor.host = nullptr;
    }
    return check(cuCtxSynchronize(), "cuCtxSynchronize");
}

} // namespace gpu_sleep::bench
