// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory of other kinds: plain, managed, page-locked.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(Session, "Driver: plain allocations", "[driver_rules]") {
    auto address = allocate(1000);
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    REQUIRE(cuMemGetAddressRange(&begin, &bytes, address + 999) == CUDA_SUCCESS);
    CHECK(begin == address);
    CHECK(bytes == 1000);
    CHECK(cuMemGetAddressRange(&begin, &bytes, address + 1000) == CUDA_ERROR_NOT_FOUND);
    if (const auto* sim = simulated()) {
        CHECK(sim->live_objects().plain_bytes == 1000);
        CHECK(sim->live_objects().mappings == 0);
    }
    CHECK(cuMemUnmap(address, 4096) == CUDA_ERROR_INVALID_VALUE);
    CUcontext owner = nullptr;
    REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
    CHECK(owner == context);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree(0) == CUDA_SUCCESS);
    CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_ERROR_INVALID_VALUE);
    std::size_t pitch = 0;
    REQUIRE(cuMemAllocPitch(&address, &pitch, 700, 3, 4) == CUDA_SUCCESS);
    CHECK(pitch == 1024);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(
    Session,
    "Driver: a thread without a current context frees memory and asks what a pointer is, and no more",
    "[driver_rules]") {
    CUdeviceptr large = 0;
    CUdeviceptr small = 0;
    CUdeviceptr kept = 0;
    REQUIRE(cuMemAlloc(&large, 32 * k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc(&small, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc(&kept, 32 * k_granularity) == CUDA_SUCCESS);
    std::thread([=] {
        CUcontext current = nullptr;
        CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
        CHECK(current == nullptr);
        CHECK(cuMemFree(large) == CUDA_SUCCESS);
        CHECK(cuMemFree(small) == CUDA_SUCCESS);
        CUdeviceptr address = 0;
        std::size_t bytes = 0;
        std::size_t total = 0;
        std::uint32_t word = 0;
        int device = -1;
        CHECK(cuMemGetAddressRange(&address, &bytes, kept) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, kept) == CUDA_SUCCESS);
        CHECK(device == 0);
        CHECK(cuMemAlloc(&address, 4096) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemcpyDtoH(&word, kept, sizeof word) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemsetD32(kept, 1, 4) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemGetInfo(&bytes, &total) == CUDA_ERROR_INVALID_CONTEXT);
    }).join();
    CHECK(cuMemFree(large) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemFree(kept) == CUDA_SUCCESS);
}

// The work then fails, or uses what is allocated there next: a program has to wait for it.
TEST_CASE("Driver: a free does not wait for another device's work on the memory", "[driver_rules]") {
    if (!has_two_devices()) return;
    const Session owner;
    const Session other(1);
    CUdeviceptr address = 0;
    REQUIRE(cuCtxSetCurrent(owner.context) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc(&address, k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(other.context) == CUDA_SUCCESS);
    REQUIRE(cuCtxEnablePeerAccess(owner.context, 0) == CUDA_SUCCESS);
    const auto fill = kernel("sim_fill");
    const auto stream = make_stream();
    const Gate gate(stream);
    const auto used = allocate(k_granularity);
    REQUIRE(launch(fill, stream, used, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    auto freed = std::async(std::launch::async, [&] {
        const auto entered = cuCtxSetCurrent(owner.context);
        return entered == CUDA_SUCCESS ? cuMemFree(address) : entered;
    });
    CHECK(freed.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
    gate.release();
    CHECK(freed.get() == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemFree(used) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: managed memory is for every device and the host", "[driver_rules]") {
    const auto last = device_count() - 1;
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocManaged(&address, k_granularity, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocManaged(&none, k_granularity, 0) == CUDA_ERROR_INVALID_VALUE);
    auto* const words = reinterpret_cast<std::uint32_t*>(address);
    words[0] = 40;
    {
        const Session other(last);
        REQUIRE(launch(kernel("sim_add"), nullptr, address, std::uint64_t{1}, 2U) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    CHECK(words[0] == 42);
    unsigned managed = 0;
    REQUIRE(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS);
    CHECK(managed == 1);
    const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, last};
    CHECK(cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there) == CUDA_SUCCESS);
    CHECK(cuMemPrefetchAsync(address, 4096, there, 0, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemPrefetchAsync(address, 2 * k_granularity, there, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(Session, "Driver: page-locked memory", "[driver_rules]") {
    constexpr std::size_t k_page = 4096;
    alignas(k_page) static std::byte pages[4 * k_page];
    const std::span memory(pages, 3 * k_page); // the fourth is not registered
    CHECK(cuMemHostUnregister(memory.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    REQUIRE(cuMemHostRegister(memory.data(), memory.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS);
    CHECK(cuMemHostRegister(memory.data() + 5000, 10, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    for (const std::size_t within : {std::size_t{5000}, k_page})
        CHECK(cuMemHostUnregister(memory.data() + within) == CUDA_ERROR_INVALID_VALUE);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().host_bytes == memory.size());
    // A copy may not cross the border of a registration.
    const Range range;
    CHECK(cuMemcpyHtoDAsync(range.address, memory.data() + 2 * k_page, 2 * k_page, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
    CHECK(cuMemHostUnregister(memory.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(cuMemHostRegister(reinterpret_cast<void*>(4096), 4096, 0) == CUDA_ERROR_INVALID_VALUE);
    void* allocated = nullptr;
    REQUIRE(cuMemHostAlloc(&allocated, 5000, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    CHECK(cuMemHostUnregister(allocated) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemFreeHost(allocated) == CUDA_SUCCESS);
    CHECK(cuMemFreeHost(allocated) == CUDA_ERROR_INVALID_VALUE);
}
