// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies between the caught memory of two devices.

#include "devices.hpp"

#include <functional>
#include <vector>

using namespace gpu_sleep::test;

namespace {

/// Copies `bytes` in a stream of the first device's.
using Copy = std::function<CUresult(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream)>;

CUresult copy_batch(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    return cuMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first, 1, stream);
}

CUresult copy_batch_of_rows(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    CUDA_MEMCPY3D_BATCH_OP copy{};
    copy.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copy.src.op.ptr.ptr = from;
    copy.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copy.dst.op.ptr.ptr = to;
    copy.extent = {bytes / 2, 2, 1};
    copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return cuMemcpy3DBatchAsync(1, &copy, 0, stream);
}

} // namespace

TEST_CASE("Peers: every kind of copy reaches another device's memory", "[lifetimes]") {
    Devices devices;
    const auto copy_peer = [&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
        return cuMemcpyPeerAsync(to, devices.contexts[0], from, devices.contexts[1], bytes, stream);
    };
    for (const auto& copy : {Copy(copy_batch), Copy(copy_batch_of_rows), Copy(copy_peer)}) {
        const auto here = allocate();
        REQUIRE(cuCtxSetCurrent(devices.contexts[1]) == CUDA_SUCCESS);
        const auto there = allocate();
        const auto words = random_bytes(k_bytes);
        REQUIRE(cuMemcpyHtoD(there, words.data(), k_bytes) == CUDA_SUCCESS);
        REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
        const auto stream = make_stream();
        CHECK(copy(here, there, k_bytes, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        std::vector<std::byte> copied(k_bytes);
        REQUIRE(cuMemcpyDtoH(copied.data(), here, k_bytes) == CUDA_SUCCESS);
        CHECK(copied == words);
        CHECK(copy(here, there, 2 * k_bytes, stream) == CUDA_ERROR_INVALID_VALUE); // not for want of access
        CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
        CHECK(cuMemFree(here) == CUDA_SUCCESS);
        CHECK(cuMemFree(there) == CUDA_SUCCESS);
    }
}
