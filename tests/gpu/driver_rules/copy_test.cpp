// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies of other shapes, and between devices.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(OnRange, "Driver: copies of rectangles", "[driver_rules]") {
    const auto bytes = random_bytes(16 * 64);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    std::vector<std::byte> out(4 * 8);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = range.address;
    copy.srcPitch = 64;
    copy.srcXInBytes = 10;
    copy.srcY = 3;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = out.data();
    copy.dstPitch = 8;
    copy.WidthInBytes = 8;
    copy.Height = 4;
    REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
    for (std::size_t row = 0; row < 4; ++row)
        CHECK(std::equal(out.begin() + static_cast<std::ptrdiff_t>(row * 8),
                         out.begin() + static_cast<std::ptrdiff_t>(row * 8 + 8),
                         bytes.begin() + static_cast<std::ptrdiff_t>((row + 3) * 64 + 10)));
    REQUIRE(cuMemsetD2D16(range.address, 64, 0x0203, 4, 2) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address + 64, 10) == CUDA_SUCCESS);
    CHECK(out[7] == std::byte{2});
    CHECK(out[6] == std::byte{3});
    CHECK(out[8] == bytes[64 + 8]);
}

TEST_CASE_METHOD(OnRange, "Driver: copies of boxes, and of many pieces", "[driver_rules]") {
    const auto stream = make_stream();
    const auto bytes = random_bytes(4096);
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = bytes.data();
    box.srcPitch = 64;
    box.srcHeight = box.dstHeight = box.Height = 8;
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = range.address;
    box.dstPitch = 512;
    box.WidthInBytes = 64;
    box.Depth = 8;
    REQUIRE(cuMemcpy3D(&box) == CUDA_SUCCESS);
    std::vector<std::byte> out(128);
    CUdeviceptr from[] = {range.address + 512, range.address + 63 * 512};
    CUdeviceptr to[] = {reinterpret_cast<CUdeviceptr>(out.data()),
                        reinterpret_cast<CUdeviceptr>(out.data() + 64)};
    std::size_t sizes[] = {64, 64};
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    REQUIRE(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(std::equal(out.begin(), out.begin() + 64, bytes.begin() + 64));
    CHECK(std::equal(out.begin() + 64, out.end(), bytes.end() - 64));
    CHECK(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    box.dstHeight = 9; // layers that do not follow each other
    if (simulated()) CHECK(cuMemcpy3D(&box) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("Driver: peers", "[driver_rules]") {
    if (!has_two_devices()) return;
    const Session session;
    auto* const other = retain_primary(1);
    const auto bytes = random_bytes(4096);
    {
        const Range here;
        const Range there(k_granularity, 1);
        REQUIRE(cuMemcpyHtoD(here.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
        CHECK(cuMemcpyDtoD(there.address, here.address, bytes.size()) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(cuMemcpyPeer(there.address, other, here.address, session.context, bytes.size()) ==
                CUDA_SUCCESS);
        REQUIRE(grant(there.address, there.bytes, 0) == CUDA_SUCCESS);
        std::vector<std::byte> out(bytes.size());
        REQUIRE(cuMemcpyDtoH(out.data(), there.address, out.size()) == CUDA_SUCCESS);
        CHECK(out == bytes);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_SUCCESS);
    CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK(cuCtxDisablePeerAccess(other) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}
