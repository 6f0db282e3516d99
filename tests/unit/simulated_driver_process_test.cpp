// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The simulated driver in several processes. A test here runs this very program again, for a hidden test case
// that is the other process's part.

#include "support/simulated_driver/testing.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

using namespace gpu_sleep::sim::testing;

namespace {

/// Another run of this program, for one test case, which says that it is ready before anything else.
class Process {
public:
    Process(std::string test_case, const std::vector<std::string>& environment) {
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        std::string program = "/proc/self/exe";
        char* arguments[] = {program.data(), test_case.data(), nullptr};
        std::vector<std::string> variables = environment;
        variables.push_back("SIM_TEST_READY_FD=" + std::to_string(k_ready_fd));
        std::vector<char*> pointers;
        for (char** inherited = ::environ; *inherited; ++inherited) pointers.push_back(*inherited);
        for (auto& variable : variables) pointers.push_back(variable.data());
        pointers.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, ends[1], k_ready_fd);
        REQUIRE(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, pointers.data()) == 0);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        ready_ = ends[0];
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process() {
        if (pid_ > 0) end_with(SIGKILL);
        ::close(ready_);
    }

    /// Waits until the other process says that it is ready; false if it ended instead.
    [[nodiscard]] bool wait_until_ready() const {
        char byte = 0;
        return ::read(ready_, &byte, 1) == 1;
    }
    /// Waits for the end of it; whether its test case was run and passed.
    [[nodiscard]] bool passed() {
        const bool ran = wait_until_ready();
        const int status = wait();
        return ran && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    void end_with(int signal) {
        ::kill(pid_, signal);
        wait();
    }

private:
    int wait() {
        int status = 0;
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
        return status;
    }

    static constexpr int k_ready_fd = 9;
    pid_t pid_ = -1;
    int ready_ = -1;
};

void say_ready() {
    const char* fd = std::getenv("SIM_TEST_READY_FD");
    REQUIRE(fd != nullptr);
    REQUIRE(::write(std::atoi(fd), "r", 1) == 1);
}

struct TemporaryFile {
    TemporaryFile() {
        char name[] = "/tmp/gpu-sleep-sim-XXXXXX";
        const int fd = ::mkstemp(name);
        REQUIRE(fd >= 0);
        ::close(fd);
        path = name;
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() { ::unlink(path.c_str()); }
    std::string path;
};

} // namespace

TEST_CASE("child: takes half of the device and waits", "[.child]") {
    const Session session;
    const auto handle = create(std::size_t{512} << 20);
    say_ready();
    ::pause();
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("child: finds room for half of the device but not for all", "[.child]") {
    say_ready();
    const Session session;
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, std::size_t{900} << 20, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sim_free_bytes(0) == (std::uint64_t{512 - 8 - 8} << 20));
    CHECK(sim_free_bytes(1) == std::uint64_t{1} << 30);
    REQUIRE(cuMemCreate(&handle, std::size_t{400} << 20, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("child: has the whole device", "[.child]") {
    say_ready();
    const Session session;
    REQUIRE(cuMemRelease(create(std::size_t{1000} << 20)) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: processes compete for memory, and the dead hold none", "[simulated_driver]") {
    const TemporaryFile state;
    const std::vector<std::string> shared = {"GPU_SLEEP_SIM_STATE=" + state.path,
                                             "GPU_SLEEP_SIM_MEMORY=1073741824"};
    Process holder("child: takes half of the device and waits", shared);
    REQUIRE(holder.wait_until_ready());
    CHECK(Process("child: finds room for half of the device but not for all", shared).passed());
    holder.end_with(SIGKILL);
    CHECK(Process("child: has the whole device", shared).passed());
}

TEST_CASE("child: the environment has its way", "[.child]") {
    say_ready();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 3);
    CUcontext context = nullptr;
    REQUIRE(cuCtxCreate(&context, nullptr, 0, 2) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    CHECK(cuMemAlloc(&address, 64) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc(&address, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    const auto bytes = random_bytes(64);
    std::vector<std::byte> out(64);
    REQUIRE(cuMemcpyHtoD(address, bytes.data(), 64) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), address, 64) == CUDA_SUCCESS);
    CHECK(out != bytes);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(sim_nanoseconds_inside() > 10'000'000);
}

TEST_CASE("Simulated driver: faults by the environment", "[simulated_driver]") {
    const TemporaryFile trace;
    Process child("child: the environment has its way",
                  {"GPU_SLEEP_SIM_DEVICES=3", "GPU_SLEEP_SIM_FAIL=cuMemAlloc:2:2:forever",
                   "GPU_SLEEP_SIM_CORRUPT=*:2", "GPU_SLEEP_SIM_DELAY=cuCtxSynchronize:10ms",
                   "GPU_SLEEP_SIM_TRACE=" + trace.path});
    CHECK(child.passed());
    std::ifstream lines(trace.path);
    const std::string text((std::istreambuf_iterator<char>(lines)), {});
    CHECK(text.find(" cuMemAlloc_v2 2 ") != std::string::npos);
    CHECK(text.find(" cuInit 0 ") != std::string::npos);
}

TEST_CASE("child: nothing works before cuInit", "[.child]") {
    say_ready();
    int count = 0;
    CUcontext context = nullptr;
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDriverGetVersion(&count) == CUDA_SUCCESS);
    CHECK(count == 13000);
    // A child that is forked before may initialise for itself.
    const auto pid = ::fork();
    if (pid == 0) ::_exit(cuInit(0) == CUDA_SUCCESS ? 0 : 1);
    int status = -1;
    ::waitpid(pid, &status, 0);
    CHECK(status == 0);
}

TEST_CASE("Simulated driver: nothing works before cuInit", "[simulated_driver]") {
    CHECK(Process("child: nothing works before cuInit", {}).passed());
}

TEST_CASE("Simulated driver: nothing works in a child of a process that used it", "[simulated_driver]") {
    const Session session;
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
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, k_granularity, 0, 0, 0) == CUDA_SUCCESS);
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

TEST_CASE("Simulated driver: another process imports memory", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(4096);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    int fd = -1;
    REQUIRE(cuMemExportToShareableHandle(&fd, range.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    REQUIRE(::fcntl(fd, F_SETFD, 0) == 0);
    CHECK(Process("child: imports memory and changes it", {"SIM_TEST_IMPORT_FD=" + std::to_string(fd)})
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
    CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
    CHECK(cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: another process opens a plain allocation", "[simulated_driver]") {
    const Session session;
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, 4096) == CUDA_SUCCESS);
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
    CHECK(Process("child: opens a plain allocation and changes it", {"SIM_TEST_IPC=" + text}).passed());
    unsigned char byte = 0;
    REQUIRE(cuMemcpyDtoH(&byte, address, 1) == CUDA_SUCCESS);
    CHECK(byte == 18);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("child: exits with work under way", "[.child]") {
    say_ready();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(launch(kernel("sim_spin"), nullptr, std::uint64_t{60'000}) == CUDA_SUCCESS);
    std::exit(0);
}

TEST_CASE("Simulated driver: a process may exit with work under way", "[simulated_driver]") {
    CHECK(Process("child: exits with work under way", {}).passed());
}
