// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What work on memory that is not there, or out of reach, comes to.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(OnRange, "Driver: a copy that was waited for leaves no trace", "[driver_rules]") {
    PageLocked host(range.bytes);
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), range.bytes) == CUDA_SUCCESS);
    const auto stream = make_stream();
    const Gate gate(stream);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), range.address, range.bytes, stream) == CUDA_SUCCESS);
    gate.release();
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    range.take_away();
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(std::equal(bytes.begin(), bytes.end(), host.data.begin()));
    if (const auto* sim = simulated()) CHECK(sim->fault_counts().illegal_accesses == 0);
    range.bring_back();
}

TEST_CASE_METHOD(OnRange,
                 "Driver: copies and memsets of an unmapped address are refused at once, and do no harm",
                 "[driver_rules]") {
    range.take_away();
    std::vector<std::byte> host(64);
    const auto stream = make_stream();
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyDtoHAsync(host.data(), range.address, host.size(), stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemsetD8Async(range.address, 1, 64, stream) == CUDA_ERROR_INVALID_VALUE);
    int reaches_pageable = 0;
    REQUIRE(cuDeviceGetAttribute(&reaches_pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0) ==
            CUDA_SUCCESS);
    if (reaches_pageable == 0)
        CHECK(cuMemsetD32(reinterpret_cast<CUdeviceptr>(host.data()), 1, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    range.bring_back();
}

TEST_CASE_METHOD(OnRange, "Driver: a kernel that writes an unmapped address faults, and the context is lost",
                 "[driver_rules]") {
    std::vector<std::byte> host(64);
    const auto stream = make_stream();
    const auto fill = kernel("sim_fill");
    range.take_away();
    range.abandon();
    REQUIRE(launch(fill, stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    if (const auto* sim = simulated()) CHECK(sim->fault_counts().illegal_accesses == 1);
}

TEST_CASE_METHOD(OnStream, "Driver: a kernel that runs past the end of what is mapped faults",
                 "[driver_rules]") {
    const auto fill = kernel("sim_fill");
    CUdeviceptr base = 0; // the second half stays without memory
    REQUIRE(cuMemAddressReserve(&base, 2 * k_granularity, 0, 0, 0) == CUDA_SUCCESS);
    const auto handle = create(k_granularity);
    REQUIRE(cuMemMap(base, k_granularity, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(grant(base, k_granularity, 0) == CUDA_SUCCESS);
    const auto count = std::uint64_t{k_granularity / 4 + 4096};
    REQUIRE(launch(fill, stream, base, count, 7U) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE_METHOD(OnRange,
                 "Driver: memory to which nobody was granted access is out of reach of copies and memsets",
                 "[driver_rules]") {
    std::vector<std::byte> host(16);
    const auto stream = make_stream();
    range.take_away();
    const auto handle = create(range.bytes);
    REQUIRE(cuMemMap(range.address, range.bytes, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(range.address, 1, 16, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(range.address, range.bytes) == CUDA_SUCCESS);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
    range.bring_back();
}

TEST_CASE_METHOD(OnRange, "Driver: a kernel faults on memory to which nobody was granted access",
                 "[driver_rules]") {
    const auto stream = make_stream();
    const auto fill = kernel("sim_fill");
    range.take_away();
    range.abandon();
    const auto handle = create(range.bytes);
    REQUIRE(cuMemMap(range.address, range.bytes, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(launch(fill, stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("Driver: copies by a device that was granted no access, or too little, are refused",
          "[driver_rules]") {
    if (!has_two_devices()) return;
    const Session session(1); // the memory is device 0's; device 1 works
    const Range range(2 * k_granularity, 0);
    std::vector<std::byte> host(64);
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(grant(range.address, range.bytes, 1, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoH(host.data(), range.address, host.size()) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(grant(range.address, range.bytes, 1) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_SUCCESS);
}

TEST_CASE("Driver: a kernel faults on a device that was granted no access", "[driver_rules]") {
    if (!has_two_devices()) return;
    const Session session(1);
    Range range(2 * k_granularity, 0);
    range.abandon();
    const auto stream = make_stream();
    REQUIRE(launch(kernel("sim_fill"), stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}
