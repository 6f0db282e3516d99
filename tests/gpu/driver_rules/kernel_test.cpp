// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Devices, statuses and kernels: what they say of themselves, and launches.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE("Driver: statuses have names", "[driver_rules]") {
    const char* text = nullptr;
    REQUIRE(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
    REQUIRE(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "out of memory");
    CHECK(cuGetErrorName(static_cast<CUresult>(998), &text) == CUDA_ERROR_INVALID_VALUE);
    CHECK(text == nullptr);
}

TEST_CASE_METHOD(Session, "Driver: devices describe themselves", "[driver_rules]") {
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    REQUIRE(count >= 1);
    const auto last = count - 1;
    CUdevice device = -1;
    CHECK(cuDeviceGet(&device, count) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuDeviceGet(&device, last) == CUDA_SUCCESS);
    char id[32];
    REQUIRE(cuDeviceGetPCIBusId(id, sizeof id, device) == CUDA_SUCCESS);
    for (const auto attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
        int value = 0;
        REQUIRE(cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS);
        CHECK(value == 1);
    }
}

TEST_CASE("Driver: two devices are told apart, and may reach each other", "[driver_rules]") {
    if (!has_two_devices()) return;
    CUuuid first{};
    CUuuid second{};
    REQUIRE(cuDeviceGetUuid(&first, 0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetUuid(&second, 1) == CUDA_SUCCESS);
    CHECK(std::string(first.bytes, sizeof first.bytes) != std::string(second.bytes, sizeof second.bytes));
    int can = -1;
    REQUIRE(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
    CHECK(can == 1);
}

TEST_CASE_METHOD(OnRange, "Driver: kernels", "[driver_rules]") {
    const auto fill = kernel("sim_fill");
    std::size_t offset = 0;
    std::size_t bytes = 0;
    REQUIRE(cuFuncGetParamInfo(fill, 2, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(offset == 16);
    CHECK(bytes == 4);
    CHECK(cuFuncGetParamInfo(fill, 3, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);

    struct __attribute__((packed)) Buffer {
        CUdeviceptr address;
        std::uint64_t count;
        std::uint32_t value;
    } buffer{range.address, 4, 77};
    std::size_t size = sizeof buffer;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
    std::vector<std::uint32_t> out(4);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 16) == CUDA_SUCCESS);
    CHECK(out == std::vector<std::uint32_t>(4, 77));
    CHECK(cuLaunchKernel(fill, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);

    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    CUdeviceptr address = range.address;
    std::uint64_t count = 4;
    std::uint32_t value = 42;
    void* parameters[] = {&address, &count, &value};
    REQUIRE(cuLaunchKernelEx(&config, fill, parameters, nullptr) == CUDA_SUCCESS);
    CHECK(first_word(range.address) == 42);
    CUfunction unknown = nullptr;
    CUmodule module = nullptr;
    REQUIRE(cuModuleLoadData(&module, k_kernels_ptx) == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&unknown, module, "nobody") == CUDA_ERROR_NOT_FOUND);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: kernels of libraries", "[driver_rules]") {
    CUlibrary library = nullptr;
    CUkernel handle = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuLibraryLoadData(&library, k_kernels_ptx, nullptr, nullptr, 0, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&handle, library, "sim_spin") == CUDA_SUCCESS);
    REQUIRE(cuKernelGetFunction(&function, handle) == CUDA_SUCCESS);
    CHECK(launch(function, nullptr, std::uint64_t{0}) == CUDA_SUCCESS);
    CHECK(launch(reinterpret_cast<CUfunction>(handle), nullptr, std::uint64_t{0}) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
}
