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
