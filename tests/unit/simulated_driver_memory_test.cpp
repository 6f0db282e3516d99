// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Device memory: virtual, plain and shared between processes.

#include "support/simulated_driver/testing.hpp"

#include <algorithm>
#include <chrono>
#include <unistd.h>

using namespace gpu_sleep::sim::testing;

namespace {

template <class Element>
std::vector<Element> read(CUdeviceptr address, std::size_t count) {
    std::vector<Element> out(count);
    REQUIRE(cuMemcpyDtoH(out.data(), address, count * sizeof(Element)) == CUDA_SUCCESS);
    return out;
}

} // namespace

TEST_CASE("Simulated driver: granularity is 2 MiB, and sizes that do not fit it are refused",
          "[simulated_driver]") {
    const Session session;
    const auto properties = properties_on(0);
    std::size_t granularity = 0;
    REQUIRE(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
            CUDA_SUCCESS);
    CHECK(granularity == k_granularity);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, 0, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 4096, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr address = 0;
    CHECK(cuMemAddressReserve(&address, 4096, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    auto elsewhere = properties_on(9);
    CHECK(cuMemCreate(&handle, granularity, &elsewhere, 0) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("Simulated driver: a reservation keeps its address through release and creation",
          "[simulated_driver]") {
    const Session session;
    Range range(4 * k_granularity);
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    CHECK(read<std::byte>(range.address, range.bytes) == bytes);
    range.take_away();
    range.bring_back();
    CHECK(read<std::byte>(range.address, range.bytes) != bytes);
    CUdeviceptr taken = 0;
    REQUIRE(cuMemAddressReserve(&taken, range.bytes, 0, range.address, 0) == CUDA_SUCCESS);
    CHECK(taken != range.address);
    CHECK(taken % k_granularity == 0);
    REQUIRE(cuMemAddressFree(taken, range.bytes) == CUDA_SUCCESS);
}

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

TEST_CASE("Simulated driver: memory lives as long as its handle or a mapping", "[simulated_driver]") {
    const Session session;
    Range range;
    REQUIRE(cuMemsetD8(range.address, 42, range.bytes) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle retained = 0;
    REQUIRE(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range.address + 5)) ==
            CUDA_SUCCESS);
    CHECK(retained == range.handle());
    REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
    CHECK(cuMemRelease(retained) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_live_objects().handles == 0);
    CHECK(read<unsigned char>(range.address, 1).front() == 42);
    CHECK(sim_live_objects().physical_bytes == range.bytes);
    // A handle for memory that only a mapping holds is a new one.
    REQUIRE(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range.address)) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(range.address, range.bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(range.address, range.bytes, 0, retained, 0) == CUDA_SUCCESS);
    REQUIRE(grant(range.address, range.bytes, 0) == CUDA_SUCCESS);
    CHECK(read<unsigned char>(range.address, 1).front() == 42);
    REQUIRE(cuMemUnmap(range.address, range.bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
    range.bring_back();
}

TEST_CASE("Simulated driver: one handle mapped twice shows the same bytes", "[simulated_driver]") {
    const Session session;
    const Range range;
    CUdeviceptr second = 0;
    REQUIRE(cuMemAddressReserve(&second, range.bytes, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(second, range.bytes, 0, range.handle(), 0) == CUDA_SUCCESS);
    REQUIRE(grant(second, range.bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32(range.address, 0x01020304, 8) == CUDA_SUCCESS);
    CHECK(read<std::uint32_t>(second, 8) == std::vector<std::uint32_t>(8, 0x01020304));
    unsigned long long flags = 0;
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    REQUIRE(cuMemGetAccess(&flags, &here, second) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
    REQUIRE(cuMemUnmap(second, range.bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(second, range.bytes) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: spans must be whole mappings without holes", "[simulated_driver]") {
    const Session session;
    constexpr std::size_t k_parts = 4;
    CUdeviceptr base = 0;
    REQUIRE(cuMemAddressReserve(&base, k_parts * k_granularity, 0, 0, 0) == CUDA_SUCCESS);
    const auto at = [&](std::size_t part) { return base + part * k_granularity; };
    std::vector<CUmemGenericAllocationHandle> handles;
    for (std::size_t part = 0; part < k_parts; ++part) handles.push_back(create(k_granularity));
    for (const std::size_t part : {0, 1, 3})
        REQUIRE(cuMemMap(at(part), k_granularity, 0, handles[part], 0) == CUDA_SUCCESS);

    CHECK(cuMemMap(at(1), k_granularity, 0, handles[2], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(at(4), k_granularity, 0, handles[2], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(grant(base, 4 * k_granularity, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(base, 4 * k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(at(2), k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(base, k_parts * k_granularity) == CUDA_ERROR_INVALID_VALUE);

    REQUIRE(cuMemMap(at(2), k_granularity, 0, handles[2], 0) == CUDA_SUCCESS);
    REQUIRE(grant(base, k_parts * k_granularity, 0) == CUDA_SUCCESS);
    const auto bytes = random_bytes(k_parts * k_granularity);
    REQUIRE(cuMemcpyHtoD(base, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    CHECK(read<std::byte>(base, bytes.size()) == bytes);
    REQUIRE(cuMemUnmap(at(1), 2 * k_granularity) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD(base, bytes.data(), bytes.size()) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemUnmap(at(0), k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(at(3), k_granularity) == CUDA_SUCCESS);
    for (const auto handle : handles) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(base, k_parts * k_granularity) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a handle that shows in two places is a whole mapping in each",
          "[simulated_driver]") {
    const Session session;
    const Range range(2 * k_granularity);
    CHECK(cuMemUnmap(range.address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(grant(range.address + k_granularity, k_granularity, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: a device can be full", "[simulated_driver]") {
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

TEST_CASE("Simulated driver: an exported handle is the same memory when it is imported",
          "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    int fd = -1;
    REQUIRE(cuMemExportToShareableHandle(&fd, range.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    CHECK(read<std::byte>(range.address, range.bytes) == bytes);
    CUmemGenericAllocationHandle imported = 0;
    REQUIRE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
    CHECK(imported == range.handle());
    REQUIRE(cuMemRelease(imported) == CUDA_SUCCESS);
    ::close(fd);
    CHECK(cuMemImportFromShareableHandle(&imported, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: plain allocations", "[simulated_driver]") {
    const Session session;
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, 1000) == CUDA_SUCCESS);
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    REQUIRE(cuMemGetAddressRange(&begin, &bytes, address + 999) == CUDA_SUCCESS);
    CHECK(begin == address);
    CHECK(bytes == 1000);
    CHECK(cuMemGetAddressRange(&begin, &bytes, address + 1000) == CUDA_ERROR_NOT_FOUND);
    CHECK(sim_live_objects().plain_bytes == 1000);
    CHECK(sim_live_objects().mappings == 0);
    CHECK(cuMemUnmap(address, 4096) == CUDA_ERROR_INVALID_VALUE);
    CUcontext owner = nullptr;
    REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
    CHECK(owner == session.context);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree(0) == CUDA_SUCCESS);
    CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_ERROR_INVALID_VALUE);
    std::size_t pitch = 0;
    REQUIRE(cuMemAllocPitch(&address, &pitch, 700, 3, 4) == CUDA_SUCCESS);
    CHECK(pitch == 1024);
}

TEST_CASE("Simulated driver: managed memory is for every device and the host", "[simulated_driver]") {
    const Session session;
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocManaged(&address, k_granularity, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuMemAllocManaged(&address, k_granularity, 0) == CUDA_ERROR_INVALID_VALUE);
    auto* const words = reinterpret_cast<std::uint32_t*>(address);
    words[0] = 40;
    {
        const Session other(1);
        REQUIRE(launch(kernel("sim_add"), nullptr, address, std::uint64_t{1}, 2U) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    CHECK(words[0] == 42);
    unsigned managed = 0;
    REQUIRE(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS);
    CHECK(managed == 1);
    const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CHECK(cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there) == CUDA_SUCCESS);
    CHECK(cuMemPrefetchAsync(address, 4096, there, 0, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemPrefetchAsync(address, 2 * k_granularity, there, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: an address is known while memory is mapped there", "[simulated_driver]") {
    const Session session;
    Range range;
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    int device = -1;
    REQUIRE(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range.address + 7) ==
            CUDA_SUCCESS);
    CHECK(device == 0);
    REQUIRE(cuMemGetAddressRange(&begin, &bytes, range.address + 7) == CUDA_SUCCESS);
    CHECK(begin == range.address);
    CHECK(bytes == range.bytes);
    CUipcMemHandle shared{};
    CHECK(cuIpcGetMemHandle(&shared, range.address) == CUDA_ERROR_INVALID_VALUE);
    range.take_away();
    CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range.address) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetAddressRange(&begin, &bytes, range.address) != CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD(range.address, &device, sizeof device) == CUDA_ERROR_INVALID_VALUE);
    range.bring_back();
}

TEST_CASE("Simulated driver: page-locked memory", "[simulated_driver]") {
    const Session session;
    std::vector<std::byte> memory(10'000);
    REQUIRE(cuMemHostRegister(memory.data(), memory.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS);
    CHECK(cuMemHostRegister(memory.data() + 5000, 10, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(cuMemHostUnregister(memory.data() + 5000) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    unsigned flags = 0;
    REQUIRE(cuMemHostGetFlags(&flags, memory.data() + 9999) == CUDA_SUCCESS);
    CHECK(flags == CU_MEMHOSTREGISTER_PORTABLE);
    CHECK(sim_live_objects().host_bytes == 10'000);
    // A copy may not cross the border of a registration.
    const Range range;
    CHECK(cuMemcpyHtoDAsync(range.address, memory.data() + 9000, 2000, nullptr) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
    CHECK(cuMemHostRegister(reinterpret_cast<void*>(4096), 4096, 0) == CUDA_ERROR_INVALID_VALUE);
    void* allocated = nullptr;
    REQUIRE(cuMemHostAlloc(&allocated, 5000, 0) == CUDA_SUCCESS);
    CHECK(cuMemHostUnregister(allocated) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr same = 0;
    REQUIRE(cuMemHostGetDevicePointer(&same, allocated, 0) == CUDA_SUCCESS);
    CHECK(same == reinterpret_cast<CUdeviceptr>(allocated));
    REQUIRE(cuMemFreeHost(allocated) == CUDA_SUCCESS);
    CHECK(cuMemFreeHost(allocated) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: thousands of small handles are quick", "[simulated_driver]") {
    const Session session;
    // As many as the default device holds, nearly.
    constexpr std::size_t k_count = 3500;
    CUdeviceptr base = 0;
    REQUIRE(cuMemAddressReserve(&base, k_count * k_granularity, 0, 0, 0) == CUDA_SUCCESS);
    std::vector<CUmemGenericAllocationHandle> handles(k_count);
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < k_count; ++i) {
            handles[i] = create(k_granularity);
            REQUIRE(cuMemMap(base + i * k_granularity, k_granularity, 0, handles[i], 0) == CUDA_SUCCESS);
        }
        REQUIRE(grant(base, k_count * k_granularity, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemUnmap(base, k_count * k_granularity) == CUDA_SUCCESS);
        for (const auto handle : handles) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(seconds.count() < 2.0);
    REQUIRE(cuMemAddressFree(base, k_count * k_granularity) == CUDA_SUCCESS);
}
