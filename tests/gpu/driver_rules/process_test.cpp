// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A driver in several processes, before it is initialised, and at the end.

#include "rules.hpp"

#include "support/other_run.hpp"

#include <sys/wait.h>

#include <cstdio>

using namespace gpu_sleep::driver_rules;

TEST_CASE("Driver: nothing works before cuInit", "[driver_rules]") {
    int count = 0;
    CUcontext context = nullptr;
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDriverGetVersion(&count) == CUDA_SUCCESS);
    CHECK(count >= 13000);
    // A child that is forked before may initialise for itself.
    const auto pid = ::fork();
    if (pid == 0) ::_exit(cuInit(0) == CUDA_SUCCESS ? 0 : 1);
    int status = -1;
    ::waitpid(pid, &status, 0);
    CHECK(status == 0);
}

TEST_CASE_METHOD(Session, "Driver: nothing works in a child of a process that used it", "[driver_rules]") {
    const auto pid = ::fork();
    if (pid == 0) {
        int count = 0;
        const bool refused = cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    CHECK(status == 0);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("child: imports memory and changes it", "[.child]") {
    say_ready();
    const Session session;
    const char* fd = std::getenv("SIM_TEST_IMPORT_FD");
    REQUIRE(fd != nullptr);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemImportFromShareableHandle(&handle,
                                           reinterpret_cast<void*>(static_cast<std::intptr_t>(std::atoi(fd))),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    REQUIRE(cuMemGetAllocationPropertiesFromHandle(&properties, handle) == CUDA_SUCCESS);
    CHECK(properties.location.id == 0);
    const auto address = reserve(k_granularity);
    REQUIRE(cuMemMap(address, k_granularity, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(grant(address, k_granularity, 0) == CUDA_SUCCESS);
    std::vector<std::byte> out(4096);
    REQUIRE(cuMemcpyDtoH(out.data(), address, out.size()) == CUDA_SUCCESS);
    CHECK(out == random_bytes(out.size()));
    REQUIRE(cuMemsetD8(address, 200, 16) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(address, k_granularity) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(address, k_granularity) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: another process imports memory", "[driver_rules]") {
    const auto bytes = random_bytes(4096);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    int fd = -1;
    REQUIRE(cuMemExportToShareableHandle(&fd, range.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    REQUIRE(::fcntl(fd, F_SETFD, 0) == 0);
    CHECK(OtherRun("child: imports memory and changes it", {"SIM_TEST_IMPORT_FD=" + std::to_string(fd)})
              .passed());
    ::close(fd);
    std::vector<std::byte> out(17);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out[15] == std::byte{200});
    CHECK(out[16] == bytes[16]);
}

TEST_CASE("child: opens a plain allocation and changes it", "[.child]") {
    say_ready();
    const Session session;
    CUipcMemHandle handle{};
    const char* text = std::getenv("SIM_TEST_IPC");
    REQUIRE(text != nullptr);
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
    CUdeviceptr address = 0;
    REQUIRE(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
    unsigned char byte = 0;
    REQUIRE(cuMemcpyDtoH(&byte, address, 1) == CUDA_SUCCESS);
    CHECK(byte == 17);
    REQUIRE(cuMemsetD8(address, 18, 4096) == CUDA_SUCCESS);
    if (simulated()) CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE); // undefined elsewhere
    REQUIRE(cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: another process opens a plain allocation", "[driver_rules]") {
    const auto address = allocate(4096);
    REQUIRE(cuMemsetD8(address, 17, 4096) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CUipcMemHandle handle{};
    REQUIRE(cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
    CUdeviceptr own = 0;
    CHECK(cuIpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
    std::string text;
    for (const char byte : handle.reserved) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    CHECK(OtherRun("child: opens a plain allocation and changes it", {"SIM_TEST_IPC=" + text}).passed());
    unsigned char byte = 0;
    REQUIRE(cuMemcpyDtoH(&byte, address, 1) == CUDA_SUCCESS);
    CHECK(byte == 18);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("child: exits with work under way", "[.child]") {
    say_ready();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    auto* const context = retain_primary(0);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(launch(kernel("sim_spin"), nullptr, std::uint64_t{10'000}) == CUDA_SUCCESS);
    std::exit(0);
}

TEST_CASE("Driver: a process may exit with work under way", "[driver_rules]") {
    CHECK(OtherRun("child: exits with work under way", {}).passed());
}
