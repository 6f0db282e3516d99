// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Freed blocks of pools and who may have them: what backs a block keeps its tag, and may have to stay.

#include "devices.hpp"

#include "gpu_sleep/gpu_sleep.h"

using namespace gpu_sleep::test;

namespace {

/// Pools keep what is freed, as PyTorch and others have it.
void keep_all() {
    cuuint64_t threshold = ~cuuint64_t{0};
    REQUIRE(cuMemPoolSetAttribute(default_pool(0), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
            CUDA_SUCCESS);
}

CUdeviceptr allocate_as(const char* tag, CUstream stream) {
    REQUIRE(gpu_sleep_push_tag(tag) == GPU_SLEEP_OK);
    const auto address = allocate_async(stream);
    REQUIRE(gpu_sleep_pop_tag() == GPU_SLEEP_OK);
    return address;
}

} // namespace

TEST_CASE_METHOD(Devices, "Tags: a freed block is given out again under its own tag alone", "[lifetimes]") {
    keep_all();
    REQUIRE(gpu_sleep_set_policy("kv_cache", GPU_SLEEP_DISCARD, 1) == GPU_SLEEP_OK);
    auto* const stream = make_stream();
    const auto cache = allocate_as("kv_cache", stream);
    CHECK(cuMemFreeAsync(cache, stream) == CUDA_SUCCESS);
    const auto weights = allocate_as("weights", stream);
    CHECK(weights != cache);
    CHECK(allocate_as("kv_cache", stream) == cache);
    const auto words = random_bytes(k_bytes);
    REQUIRE(cuMemcpyHtoDAsync(weights, words.data(), k_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync(cache, words.data(), k_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
    REQUIRE(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    std::vector<std::byte> copy(k_bytes);
    REQUIRE(cuMemcpyDtoH(copy.data(), weights, k_bytes) == CUDA_SUCCESS);
    CHECK(std::equal(copy.begin(), copy.end(), words.begin()));
    REQUIRE(cuMemcpyDtoH(copy.data(), cache, k_bytes) == CUDA_SUCCESS);
    CHECK(std::count(copy.begin(), copy.end(), std::byte{0}) == k_bytes);
    for (const auto address : {cache, weights}) CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Tags: a freed block that has to stay on the GPU is given out no more",
                 "[lifetimes]") {
    keep_all();
    const auto pinned = allocate_async(nullptr);
    const unsigned yes = 1;
    REQUIRE(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pinned) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pinned, nullptr) == CUDA_SUCCESS);
    const auto next = allocate_async(nullptr);
    CHECK(next != pinned);
    CHECK(cuMemFreeAsync(next, nullptr) == CUDA_SUCCESS);
    CHECK(allocate_async(nullptr) == next);
    CHECK(cuMemFreeAsync(next, nullptr) == CUDA_SUCCESS);
}
