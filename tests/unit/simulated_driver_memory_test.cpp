// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Device memory: what it reads when it is new, how much there is, how fast it comes.

#include "support/simulated_driver/testing.hpp"

#include <algorithm>
#include <ctime>

using namespace gpu_sleep::sim::testing;

namespace {

template <class Element>
std::vector<Element> read(CUdeviceptr address, std::size_t count) {
    std::vector<Element> out(count);
    REQUIRE(cuMemcpyDtoH(out.data(), address, count * sizeof(Element)) == CUDA_SUCCESS);
    return out;
}

} // namespace

TEST_CASE("Simulated driver: fresh memory is not zero", "[simulated_driver]") {
    const Session session;
    for (int round = 0; round < 2; ++round) {
        const Range range;
        const auto words = read<std::uint64_t>(range.address, range.bytes / 8);
        CHECK(std::none_of(words.begin(), words.end(), [](std::uint64_t word) { return word == 0; }));
        REQUIRE(cuMemsetD8(range.address, 0, range.bytes) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
}

TEST_CASE("Simulated driver: a device can be full to the last byte", "[simulated_driver]") {
    const Session session;
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    REQUIRE(cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS);
    CHECK(free_bytes == sim_free_bytes(0));
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle big = 0;
    CUmemGenericAllocationHandle more = 0;
    const auto rounded = free_bytes / k_granularity * k_granularity;
    CHECK(cuMemCreate(&big, rounded + k_granularity, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemCreate(&big, rounded, &properties, 0) == CUDA_SUCCESS);
    CHECK(cuMemCreate(&more, k_granularity, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemRelease(big) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(0) == free_bytes);
}

TEST_CASE("Simulated driver: one of thousands of small handles costs what one of a few does",
          "[simulated_driver]") {
    const Session session;
    const auto processor_time_of = [](std::size_t count) {
        CUdeviceptr base = 0;
        REQUIRE(cuMemAddressReserve(&base, count * k_granularity, 0, 0, 0) == CUDA_SUCCESS);
        std::vector<CUmemGenericAllocationHandle> handles(count);
        const auto begin = std::clock();
        for (std::size_t i = 0; i < count; ++i) {
            handles[i] = create(k_granularity);
            REQUIRE(cuMemMap(base + i * k_granularity, k_granularity, 0, handles[i], 0) == CUDA_SUCCESS);
        }
        REQUIRE(grant(base, count * k_granularity, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemUnmap(base, count * k_granularity) == CUDA_SUCCESS);
        for (const auto handle : handles) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
        const auto end = std::clock();
        REQUIRE(cuMemAddressFree(base, count * k_granularity) == CUDA_SUCCESS);
        return static_cast<double>(end - begin) / static_cast<double>(count);
    };
    (void)processor_time_of(350);
    const double few = std::min({processor_time_of(350), processor_time_of(350), processor_time_of(350)});
    CHECK(std::min(processor_time_of(3500), processor_time_of(3500)) <
          4 * few); // 3,500 are what the default device holds, nearly; by squares it were ten
}
