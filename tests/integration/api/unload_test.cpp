// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Modules and libraries that the program unloads while its memory sleeps.

#include "support/gpu.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_unload_bytes = 4 * k_mib;

/// Whether a kernel of the module writes where it should.
bool works(CUmodule module, CUdeviceptr address, std::uint32_t value) {
    CUfunction fill = nullptr;
    std::uint32_t found = 0;
    return cuModuleGetFunction(&fill, module, "sim_fill") == CUDA_SUCCESS &&
           sim::testing::launch(fill, nullptr, address, std::uint64_t{1}, value) == CUDA_SUCCESS &&
           cuMemcpyDtoH(&found, address, sizeof found) == CUDA_SUCCESS && found == value;
}

} // namespace

TEST_CASE_METHOD(Gpu, "Unload: modules and libraries go while memory sleeps; those that stay work", "[api]") {
    const TaggedMemory weights("weights", k_unload_bytes);
    const TaggedMemory scratch("scratch", k_unload_bytes);
    const auto words = random_words(k_unload_bytes, 1);
    weights.write(words);
    CUmodule goes = nullptr, stays = nullptr;
    CUlibrary library = nullptr;
    check(cuModuleLoadData(&goes, "image"));
    check(cuModuleLoadData(&stays, "image"));
    check(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(works(goes, scratch.address(), 1));

    check(gpu_sleep_sleep(1, GENERATE(static_cast<const char*>(nullptr), "weights"), 0));
    const auto asleep = gpu_sleep_asleep_bytes();
    check(cuModuleUnload(goes));
    check(cuLibraryUnload(library));
    CHECK(cuModuleUnload(goes) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(gpu_sleep_asleep_bytes() == asleep);
    check(gpu_sleep_wake(nullptr, 0));

    CHECK(weights.read() == words);
    CHECK(works(stays, scratch.address(), 2));
    check(cuModuleLoadData(&goes, "image")); // perhaps under the number of the one that is gone
    CHECK(works(goes, scratch.address(), 3));
    check(cuModuleUnload(goes));
    check(cuModuleUnload(stays));
}
