// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Virtual memory.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(Session, "Driver: granularity is 2 MiB, and sizes that do not fit it are refused",
                 "[driver_rules]") {
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
    const auto elsewhere = properties_on(device_count());
    CHECK(cuMemCreate(&handle, granularity, &elsewhere, 0) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE_METHOD(Session, "Driver: a reservation keeps its address through release and creation",
                 "[driver_rules]") {
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

TEST_CASE_METHOD(OnRange, "Driver: memory lives as long as its handle or a mapping", "[driver_rules]") {
    REQUIRE(cuMemsetD8(range.address, 42, range.bytes) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle retained = 0;
    REQUIRE(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range.address + 5)) ==
            CUDA_SUCCESS);
    CHECK(retained == range.handle());
    REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(retained) == CUDA_SUCCESS);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().handles == 0);
    CHECK(read<unsigned char>(range.address, 1).front() == 42);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().physical_bytes == range.bytes);
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

TEST_CASE_METHOD(OnRange, "Driver: one handle mapped twice shows the same bytes", "[driver_rules]") {
    const auto second = reserve(range.bytes);
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

TEST_CASE_METHOD(Session, "Driver: spans may have holes, but cut no mapping", "[driver_rules]") {
    constexpr std::size_t k_parts = 4;
    const auto base = reserve(k_parts * k_granularity);
    const auto at = [&](std::size_t part) { return base + part * k_granularity; };
    std::vector<CUmemGenericAllocationHandle> handles;
    for (std::size_t part = 0; part < k_parts; ++part) handles.push_back(create(k_granularity));
    for (const std::size_t part : {0, 1, 3})
        REQUIRE(cuMemMap(at(part), k_granularity, 0, handles[part], 0) == CUDA_SUCCESS);

    CHECK(cuMemMap(at(1), k_granularity, 0, handles[2], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(at(4), k_granularity, 0, handles[2], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(base, k_parts * k_granularity) == CUDA_SUCCESS);
    CHECK(cuMemUnmap(base, k_parts * k_granularity) == CUDA_SUCCESS); // where nothing is
    CHECK(cuMemUnmap(at(3), 2 * k_granularity) == CUDA_SUCCESS);      // nor reserved, behind the first half
    CHECK(cuMemUnmap(at(1234), k_granularity) == CUDA_ERROR_INVALID_VALUE);

    for (std::size_t part = 0; part < k_parts; ++part) // so nothing was left
        REQUIRE(cuMemMap(at(part), k_granularity, 0, handles[part], 0) == CUDA_SUCCESS);
    REQUIRE(grant(base, k_parts * k_granularity, 0) == CUDA_SUCCESS);
    const auto bytes = random_bytes(k_parts * k_granularity);
    REQUIRE(cuMemcpyHtoD(base, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    CHECK(read<std::byte>(base, bytes.size()) == bytes);
    REQUIRE(cuMemUnmap(at(1), 2 * k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(at(0), k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(at(3), k_granularity) == CUDA_SUCCESS);
    for (const auto handle : handles) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(base, k_parts * k_granularity) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(
    Session, "Driver: access to a span ends at its first hole, and is refused where one begins or ends it",
    "[driver_rules]") {
    // m: mapped, .: a hole. What is granted: nothing, or all that lies before the first hole.
    const std::string layout = GENERATE("m.", ".m", "m.m", "mm.m", "..", ".m.", "m..");
    const bool is_granted_before = GENERATE(false, true);
    INFO(layout << ", access before: " << is_granted_before);
    const auto bytes = layout.size() * k_granularity;
    const auto base = reserve(bytes);
    std::vector<CUmemGenericAllocationHandle> handles;
    for (std::size_t part = 0; part < layout.size(); ++part) handles.push_back(create(k_granularity));
    const auto map_all = [&] {
        for (std::size_t part = 0; part < layout.size(); ++part)
            if (layout[part] == 'm')
                CHECK(cuMemMap(base + part * k_granularity, k_granularity, 0, handles[part], 0) ==
                      CUDA_SUCCESS);
    };
    map_all();
    for (std::size_t part = 0; is_granted_before && part < layout.size(); ++part)
        if (layout[part] == 'm')
            REQUIRE(grant(base + part * k_granularity, k_granularity, 0) == CUDA_SUCCESS);

    const bool is_taken = layout.front() == 'm' && layout.back() == 'm';
    CHECK(grant(base, bytes, 0) == (is_taken ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
    for (std::size_t part = 0; part < layout.size(); ++part) {
        const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
        unsigned long long flags = 0;
        const auto status = cuMemGetAccess(&flags, &here, base + part * k_granularity);
        CHECK(status == (layout[part] == 'm' ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
        if (layout[part] != 'm') continue;
        const bool has_access = is_granted_before || (is_taken && part < layout.find('.'));
        CHECK(flags == (has_access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE));
    }
    CHECK(cuMemUnmap(base, bytes) == CUDA_SUCCESS);
    map_all(); // so nothing was left
    CHECK(cuMemUnmap(base, bytes) == CUDA_SUCCESS);
    for (const auto handle : handles) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(base, bytes) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: addresses are not freed while memory is mapped there", "[driver_rules]") {
    CHECK(cuMemAddressFree(range.address, range.bytes) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemsetD32(range.address, 77, 1) == CUDA_SUCCESS);
    CHECK(first_word(range.address) == 77);
}

TEST_CASE_METHOD(Session, "Driver: a copy over a hole is refused", "[driver_rules]") {
    constexpr std::size_t k_parts = 3;
    const auto base = reserve(k_parts * k_granularity);
    const auto handle = create(k_granularity);
    const auto last = base + 2 * k_granularity;
    for (const auto address : {base, last}) {
        REQUIRE(cuMemMap(address, k_granularity, 0, handle, 0) == CUDA_SUCCESS);
        REQUIRE(grant(address, k_granularity, 0) == CUDA_SUCCESS);
    }
    const auto bytes = random_bytes(k_parts * k_granularity);
    CHECK(cuMemcpyHtoD(base, bytes.data(), bytes.size()) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    for (const auto address : {base, last}) REQUIRE(cuMemUnmap(address, k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(base, k_parts * k_granularity) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: a handle that shows in two places is a whole mapping in each",
                 "[driver_rules]") {
    const Range range(2 * k_granularity);
    CHECK(cuMemUnmap(range.address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(grant(range.address + k_granularity, k_granularity, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(Session, "Driver: a device can be full", "[driver_rules]") {
    constexpr std::size_t k_spare = std::size_t{1} << 30; // others come and go
    const auto properties = properties_on(0);
    const auto before = free_bytes() / k_granularity * k_granularity;
    CUmemGenericAllocationHandle big = 0;
    CUmemGenericAllocationHandle more = 0;
    CHECK(cuMemCreate(&big, before + k_granularity, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemCreate(&big, before - k_spare, &properties, 0) == CUDA_SUCCESS);
    CHECK(free_bytes() <= 2 * k_spare);
    CHECK(cuMemCreate(&more, 3 * k_spare, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemRelease(big) == CUDA_SUCCESS);
    CHECK(free_bytes() >= before - k_spare);
}

TEST_CASE_METHOD(OnRange, "Driver: an exported handle is the same memory when it is imported",
                 "[driver_rules]") {
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    int fd = -1;
    REQUIRE(cuMemExportToShareableHandle(&fd, range.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    CHECK(read<std::byte>(range.address, range.bytes) == bytes);
    CUmemGenericAllocationHandle imported = 0;
    REQUIRE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
    const auto second = reserve(range.bytes);
    REQUIRE(cuMemMap(second, range.bytes, 0, imported, 0) == CUDA_SUCCESS);
    REQUIRE(grant(second, range.bytes, 0) == CUDA_SUCCESS);
    CHECK(read<std::byte>(second, range.bytes) == bytes);
    CHECK(imported != range.handle());
    CUmemGenericAllocationHandle again = 0;
    REQUIRE(cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
    CHECK(again != range.handle());
    CHECK(again != imported);
    REQUIRE(cuMemRelease(again) == CUDA_SUCCESS);
    // Each mapping has the handle that it was made with.
    REQUIRE(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(second)) == CUDA_SUCCESS);
    CHECK(again == imported);
    for (int references = 0; references < 2; ++references) REQUIRE(cuMemRelease(imported) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(second, range.bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(second, range.bytes) == CUDA_SUCCESS);
    ::close(fd);
    const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(cuMemImportFromShareableHandle(&imported,
                                         reinterpret_cast<void*>(static_cast<std::intptr_t>(other)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_UNKNOWN);
    ::close(other);
}

TEST_CASE_METHOD(OnRange, "Driver: an address is known while memory is mapped there", "[driver_rules]") {
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
