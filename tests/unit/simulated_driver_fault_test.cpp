// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Failures, delays and corruption on request, and the counts of what went wrong.

#include "support/simulated_driver/entry_points.hpp"
#include "support/simulated_driver/testing.hpp"

#include <dlfcn.h>

#include <chrono>
#include <string>
#include <thread>

using namespace gpu_sleep::sim::testing;

namespace {

CUresult create_and_release() {
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle handle = 0;
    const auto status = cuMemCreate(&handle, k_granularity, &properties, 0);
    return status == CUDA_SUCCESS ? cuMemRelease(handle) : status;
}

struct Exported {
    const char* name;   ///< as documented
    const char* symbol; ///< as exported
    int version;
};

#define SIM_TEST_STRING(name) #name
#define SIM_TEST_SYMBOL(name) SIM_TEST_STRING(name)
#define SIM_TEST_ROW(name, version, trait) {#name, SIM_TEST_SYMBOL(name), version},
constexpr Exported k_exported[] = {GPU_SLEEP_SIM_ENTRY_POINTS(SIM_TEST_ROW)};

} // namespace

TEST_CASE("Simulated driver: the n-th call of a name fails, and does nothing", "[simulated_driver]") {
    const Session session;
    sim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, SIM_ONCE);
    CHECK(create_and_release() == CUDA_SUCCESS);
    CHECK(create_and_release() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sim_live_objects().handles == 0);
    CHECK(create_and_release() == CUDA_SUCCESS);
    CHECK(sim_fault_counts().injected_failures == 1);
    CHECK(sim_calls("cuMemCreate") == 3);
}

TEST_CASE("Simulated driver: calls can fail for ever, by either name, and of all names",
          "[simulated_driver]") {
    const Session session;
    CUdeviceptr address = 0;
    sim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
    CHECK(cuMemAlloc(&address, 16) == CUDA_ERROR_UNKNOWN);
    CHECK(cuMemAlloc(&address, 16) == CUDA_ERROR_UNKNOWN);
    sim_clear();
    sim_fail("*", 2, CUDA_ERROR_NOT_READY, SIM_ONCE);
    int version = 0;
    CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 16) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_NOT_READY);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a failure can spare the thread that asked for it", "[simulated_driver]") {
    const Session session;
    sim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, SIM_OTHER_THREADS);
    CHECK(create_and_release() == CUDA_SUCCESS);
    std::thread([] { CHECK(create_and_release() == CUDA_ERROR_OUT_OF_MEMORY); }).join();
}

TEST_CASE("Simulated driver: calls and queued work can be slow", "[simulated_driver]") {
    using Clock = std::chrono::steady_clock;
    const Session session;
    const Range range;
    const auto time = [](const auto& what) {
        const auto begin = Clock::now();
        what();
        return Clock::now() - begin;
    };
    constexpr std::chrono::milliseconds k_short{20};
    constexpr std::chrono::milliseconds k_long{200};
    sim_delay("cuMemCreate", std::chrono::microseconds(k_short).count());
    CHECK(time([] { create_and_release(); }) >= k_short);
    sim_clear();
    sim_delay("cuMemsetD8Async", std::chrono::microseconds(k_long).count());
    CHECK(time([&] { cuMemsetD8Async(range.address, 1, 16, nullptr); }) < k_long);
    CHECK(time([] { cuCtxSynchronize(); }) >= k_short);
    CHECK(sim_nanoseconds_inside() >= std::uint64_t{40'000'000});
}

TEST_CASE("Simulated driver: a copy can be corrupted, and memory too", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(4096);
    sim_corrupt_copy("cuMemcpyDtoH", 2);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    std::vector<std::byte> out(bytes.size());
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out == bytes);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out != bytes);
    CHECK(sim_fault_counts().corrupted_copies == 1);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out == bytes);
    sim_flip_bit(range.address, 100, 3);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK((out[100] ^ bytes[100]) == std::byte{8});
}

TEST_CASE("Simulated driver: every entry point is found, by symbol and by look-up", "[simulated_driver]") {
    for (const auto& [name, symbol, version] : k_exported) {
        INFO(name);
        void* const by_symbol = ::dlsym(RTLD_DEFAULT, symbol);
        CHECK(by_symbol != nullptr);
        void* looked_up = nullptr;
        CUdriverProcAddressQueryResult result{};
        CHECK(cuGetProcAddress(name, &looked_up, 13000, 0, &result) == CUDA_SUCCESS);
        CHECK(looked_up == by_symbol);
        CHECK(cuGetProcAddress(name, &looked_up, version, 0, nullptr) == CUDA_SUCCESS);
        CHECK(looked_up == by_symbol);
    }
}

TEST_CASE("Simulated driver: look-ups as the CUDA runtime makes them", "[simulated_driver]") {
    void* function = nullptr;
    CUdriverProcAddressQueryResult result{};
    CHECK(cuGetProcAddress("", &function, 0, 0, &result) == CUDA_SUCCESS);
    CHECK(function == nullptr);
    CHECK(cuGetProcAddress("cuGetProcAddress", &function, 12000, 0, &result) == CUDA_SUCCESS);
    CHECK(function == reinterpret_cast<void*>(&cuGetProcAddress));
    CHECK(cuGetProcAddress("cuGetProcAddress", &function, 11030, 0, &result) == CUDA_SUCCESS);
    CHECK(function == ::dlsym(RTLD_DEFAULT, "cuGetProcAddress"));
    CHECK(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &result) == CUDA_ERROR_NOT_FOUND);
    CHECK(result == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(cuGetProcAddress("cuMemCreate", &function, 10000, 0, &result) == CUDA_ERROR_NOT_FOUND);
    CHECK(result == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(cuGetProcAddress("cuEventElapsedTime", &function, 11000, 0, &result) == CUDA_SUCCESS);
    CHECK(function == ::dlsym(RTLD_DEFAULT, "cuEventElapsedTime"));
}

TEST_CASE("Simulated driver: statuses have names", "[simulated_driver]") {
    const char* text = nullptr;
    REQUIRE(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
    REQUIRE(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
    CHECK(std::string(text) == "out of memory");
    CHECK(cuGetErrorName(static_cast<CUresult>(998), &text) == CUDA_ERROR_INVALID_VALUE);
    CHECK(text == nullptr);
}

TEST_CASE("Simulated driver: devices describe themselves", "[simulated_driver]") {
    const Session session;
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 2);
    CUdevice device = -1;
    CHECK(cuDeviceGet(&device, 2) == CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(cuDeviceGet(&device, 1) == CUDA_SUCCESS);
    char id[32];
    REQUIRE(cuDeviceGetPCIBusId(id, sizeof id, device) == CUDA_SUCCESS);
    CUdevice found = -1;
    REQUIRE(cuDeviceGetByPCIBusId(&found, id) == CUDA_SUCCESS);
    CHECK(found == device);
    CUuuid first{};
    CUuuid second{};
    REQUIRE(cuDeviceGetUuid(&first, 0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetUuid(&second, 1) == CUDA_SUCCESS);
    CHECK(std::string(first.bytes, sizeof first.bytes) != std::string(second.bytes, sizeof second.bytes));
    for (const auto attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
        int value = 0;
        REQUIRE(cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS);
        CHECK(value == 1);
    }
    int can = -1;
    REQUIRE(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
    CHECK(can == 1);
}

TEST_CASE("Simulated driver: kernels", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto fill = kernel("sim_fill");
    std::size_t offset = 0;
    std::size_t bytes = 0;
    REQUIRE(cuFuncGetParamInfo(fill, 2, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(offset == 16);
    CHECK(bytes == 4);
    CHECK(cuFuncGetParamInfo(fill, 3, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);
    const char* name = nullptr;
    REQUIRE(cuFuncGetName(&name, fill) == CUDA_SUCCESS);
    CHECK(std::string(name) == "sim_fill");

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

    const std::size_t sizes[] = {sizeof(CUdeviceptr)};
    sim_register_kernel(
        "answer",
        [](const sim_launch* launch, void** arguments) {
            **static_cast<std::uint32_t**>(arguments[0]) = launch->grid[1] * launch->block[2];
        },
        sizes, 1);
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimZ = config.blockDimX = config.blockDimY = 1;
    config.gridDimY = 6;
    config.blockDimZ = 7;
    CUdeviceptr address = range.address;
    void* parameters[] = {&address};
    REQUIRE(cuLaunchKernelEx(&config, kernel("answer"), parameters, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 16) == CUDA_SUCCESS);
    CHECK(out[0] == 42);
    CUfunction unknown = nullptr;
    CUmodule module = nullptr;
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
    CHECK(cuModuleGetFunction(&unknown, module, "nobody") == CUDA_ERROR_NOT_FOUND);
    REQUIRE(cuModuleGetFunction(&unknown, module, "sim_fill") == CUDA_SUCCESS);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(launch(unknown, nullptr, address, std::uint64_t{1}, 1U) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Simulated driver: kernels of libraries", "[simulated_driver]") {
    const Session session;
    CUlibrary library = nullptr;
    CUkernel handle = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&handle, library, "sim_spin") == CUDA_SUCCESS);
    REQUIRE(cuKernelGetFunction(&function, handle) == CUDA_SUCCESS);
    CHECK(launch(function, nullptr, std::uint64_t{0}) == CUDA_SUCCESS);
    CHECK(launch(reinterpret_cast<CUfunction>(handle), nullptr, std::uint64_t{0}) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Simulated driver: the product's fingerprint kernel sees a flipped bit", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    void* pinned = nullptr;
    REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
    auto* const words = static_cast<std::uint64_t*>(pinned);
    words[0] = range.address;
    words[1] = range.bytes;
    const auto fingerprint = kernel("gpu_sleep_fingerprint");
    for (int round = 0; round < 2; ++round) {
        REQUIRE(launch(fingerprint, nullptr, words, words + 8 + 2 * round, std::uint64_t{1}) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        sim_flip_bit(range.address, 12'345, 6);
    }
    CHECK(words[8] != words[10]);
    CHECK(words[9] != words[11]);
}
