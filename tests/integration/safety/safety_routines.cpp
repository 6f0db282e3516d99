// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One routine for each way to treat the driver badly, of a program that is linked to libcuda. Each says a
// line when it is ready to be put to sleep, and goes on when it is sent one.

#include "../interception/routines.hpp"
#include "safety_driver.hpp"
#include "support/not_copied.hpp"
#include "support/simulated_driver/control.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <thread>

extern "C" __attribute__((weak)) CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle,
                                                                     std::size_t,
                                                                     CUmemGenericAllocationHandle,
                                                                     std::size_t, std::size_t,
                                                                     unsigned long long);

namespace gpu_sleep::test {
namespace {

/// Frees and touches when it is destroyed.
struct UsesCudaAtItsEnd : NotCopied {
    explicit UsesCudaAtItsEnd(const char* its_name) : name(its_name) {}
    ~UsesCudaAtItsEnd() {
        if (!kept) return;
        const int touched = touch(kept);
        const int freed = cuMemFree(given);
        std::printf("%s %s %s\n", name, touched == 0 ? "touched" : "refused", freed == 0 ? "freed" : "kept");
    }
    const char* name;
    CUdeviceptr kept = 0, given = 0;
};

UsesCudaAtItsEnd g_early("global");
CUdeviceptr g_memory = 0;

int end_with_seven() {
    start_cuda();
    allocate();
    say_and_wait("ready");
    std::puts("a last word");
    return 7;
}

int clean_up_at_exit() {
    start_cuda();
    static UsesCudaAtItsEnd s_late("static");
    for (auto* each : {&g_early, &s_late}) {
        each->kept = allocate();
        each->given = allocate();
    }
    g_memory = allocate();
    std::atexit([] { std::printf("handler %s\n", cuMemFree(g_memory) == 0 ? "freed" : "kept"); });
    say_and_wait("ready");
    return 8;
}

/// A thread that waits at the gate is joined by a destructor.
int join_at_exit() {
    auto* const context = start_cuda();
    g_memory = allocate();
    struct Worker {
        std::thread thread;
        ~Worker() { thread.join(); }
    };
    static Worker s_worker;
    say_and_wait("ready");
    std::atomic<bool> begun{false};
    s_worker.thread = std::thread([&, context] {
        cuCtxSetCurrent(context);
        begun = true;
        touch(g_memory);
    });
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return 9;
}

int status_of(pid_t child) {
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int fork_without_cuda() {
    start_cuda();
    const auto memory = allocate();
    say_and_wait("ready");
    const auto child = ::fork();
    if (child == 0) {
        std::puts("the child works");
        std::exit(11); // with all its handlers
    }
    const int own = status_of(child);
    const auto other = ::fork();
    if (other == 0) {
        ::execl("/bin/sh", "sh", "-c", "exit 12", nullptr);
        ::_exit(99);
    }
    std::printf("children: %d %d\n", own, status_of(other));
    say_and_wait("forked");
    std::cout << (is_intact(memory) ? "intact" : "different") << std::endl;
    return 0;
}

int fork_and_exec() {
    start_cuda();
    const auto memory = allocate();
    say_and_wait("ready");
    const auto child = ::fork();
    if (child == 0) {
        ::execl("/proc/self/exe", "/proc/self/exe", "touch", nullptr);
        ::_exit(99);
    }
    const int status = status_of(child);
    say_and_wait("child " + std::to_string(status));
    return is_intact(memory) ? 0 : 1;
}

/// As a server does whose workers use the GPU, and itself not.
int fork_workers() {
    pid_t workers[2];
    for (auto& worker : workers) {
        worker = ::fork();
        if (worker != 0) continue;
        start_cuda();
        const auto memory = allocate();
        std::cout << ::getpid() << std::endl;
        std::this_thread::sleep_for(
            std::chrono::milliseconds(1)); // and then waits at the gate, or is finished
        for (;;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (!is_intact(memory)) ::_exit(1);
            if (::access("/dev/stdin", F_OK) != 0 || ::getppid() == 1) ::_exit(2);
        }
    }
    std::string line;
    std::getline(std::cin, line);
    int status = 0;
    for (const auto worker : workers) {
        ::kill(worker, SIGTERM);
        status += status_of(worker) == 128 + SIGTERM ? 0 : 1;
    }
    return status;
}

/// "ready PID", and then a touch, whose status is said and returned.
int touch_once() {
    start_cuda();
    const auto memory = allocate();
    say_and_wait("ready " + std::to_string(::getpid()));
    const int status = touch(memory);
    std::cout << "touched " << status << std::endl;
    return status == 0 ? 0 : 1;
}

int touch_often() {
    start_cuda();
    const auto memory = allocate();
    for (std::string line = say_and_wait("ready"); line == "touch";)
        line = say_and_wait("touched " + std::to_string(touch(memory)));
    return 0;
}

int reset_primary_context() {
    for (const char* next : {"ready", "again", "last"}) { // awake; asleep; and then it still works
        start_cuda();
        allocate();
        say_and_wait(next);
        check(cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
        say_and_wait("reset");
    }
    return 0;
}

int destroy_own_context() {
    auto* const primary = start_cuda();
    const auto kept = allocate();
    CUcontext own = nullptr;
    check(cuCtxCreate(&own, nullptr, 0, 0), "cuCtxCreate");
    allocate();
    say_and_wait("ready");
    check(cuCtxDestroy(own), "cuCtxDestroy");
    check(cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    say_and_wait("destroyed");
    std::cout << (is_intact(kept) ? "intact" : "different") << std::endl;
    return 0;
}

int thread_local_destructor() {
    auto* const context = start_cuda();
    for (const char* next : {"ready", "again"}) {
        const auto kept = allocate();
        const auto given = allocate();
        say_and_wait(next);
        std::thread([&] {
            cuCtxSetCurrent(context);
            thread_local UsesCudaAtItsEnd t_object("thread");
            t_object.kept = kept;
            t_object.given = given;
        }).join();
        std::fflush(stdout);
        check(cuMemFree(kept), "cuMemFree");
    }
    say_and_wait("done"); // who wakes it is to have its answer
    return 0;
}

/// Dies in a function that the driver calls.
int crash_within() {
    start_cuda();
    allocate();
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    say_and_wait("ready");
    check(cuLaunchHostFunc(
              nullptr, [](void*) { ::raise(SIGABRT); }, nullptr),
          "cuLaunchHostFunc");
    cuCtxSynchronize();
    return 0;
}

/// Asks for symbols in ways that the driver refuses, and says what it answers.
int ask_for_symbols() {
    start_cuda();
    constexpr int k_oldest = 2000;
    constexpr int k_future = 99'000;
    for (const char* name : {"cuMemAlloc", "cuMemCreate", "cuNoSuchThing", "cuGetProcAddress", ""})
        for (const int version : {k_oldest, 11'030, CUDA_VERSION, k_future, 0, -1}) {
            void* function = nullptr;
            auto found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            const auto status = cuGetProcAddress(name, &function, version, 0, &found);
            std::printf("%s %d: %d %d %s\n", name, version, static_cast<int>(status), static_cast<int>(found),
                        function ? "found" : "none");
        }
    void* function = nullptr;
    std::printf("flags: %d\n",
                static_cast<int>(cuGetProcAddress("cuInit", &function, 12'000, 0x80, nullptr)));
    return 0;
}

/// Calls a function that this driver does not have.
int call_what_is_missing() {
    start_cuda();
    std::puts(cuMulticastBindMem ? std::to_string(cuMulticastBindMem(0, 0, 0, 0, 0, 0)).c_str() : "none");
    return 0;
}

/// Cancels threads that ask for more memory than there is.
int cancel_allocating_threads() {
    static CUcontext s_context = start_cuda();
    static std::size_t s_total = 0;
    std::size_t free = 0;
    check(cuMemGetInfo(&free, &s_total), "cuMemGetInfo");
    allocate(); // and the rest is less
    const auto allocate_in_vain = [](void*) -> void* {
        cuCtxSetCurrent(s_context);
        for (CUdeviceptr address = 0;; ::pthread_testcancel()) cuMemAlloc(&address, s_total);
    };
    for (int i = 0; i < 3; ++i) {
        pthread_t thread{};
        if (::pthread_create(&thread, nullptr, allocate_in_vain, nullptr) != 0) return 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        ::pthread_cancel(thread);
        void* result = nullptr;
        ::pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 2;
    }
    say_and_wait("cancelled");
    return 0;
}

/// Cancels threads that wait for the GPU, in each way to wait.
int cancel_waiting_threads() {
    static CUcontext s_context = start_cuda();
    static const auto s_memory = allocate();
    static CUevent s_event = nullptr;
    static int s_word = 0;
    check(cuEventCreate(&s_event, CU_EVENT_DEFAULT), "cuEventCreate");
    constexpr int (*k_waits[])() = {
        [] { return static_cast<int>(cuStreamSynchronize(nullptr)); },
        [] { return static_cast<int>(cuEventSynchronize(s_event)); },
        [] { return static_cast<int>(cuCtxSynchronize()); },
        [] { return static_cast<int>(cuMemcpyDtoH(&s_word, s_memory, sizeof s_word)); },
    };
    static std::atomic<int> s_ended{0};
    struct AtTheEnd {
        ~AtTheEnd() { ++s_ended; }
    };
    for (const auto wait : k_waits) {
        const auto take_long = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
        check(cuLaunchHostFunc(nullptr, take_long, nullptr), "cuLaunchHostFunc");
        check(cuEventRecord(s_event, nullptr), "cuEventRecord");
        pthread_t thread{};
        const auto body = [](void* call) -> void* {
            const AtTheEnd end;
            cuCtxSetCurrent(s_context);
            reinterpret_cast<int (*)()>(call)();
            return nullptr;
        };
        if (::pthread_create(&thread, nullptr, body, reinterpret_cast<void*>(wait)) != 0) return 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ::pthread_cancel(thread);
        void* result = nullptr;
        ::pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 2;
        check(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    if (s_ended != static_cast<int>(std::size(k_waits))) return 3;
    say_and_wait("cancelled");
    return touch(s_memory);
}

sigjmp_buf g_back;

/// Abandons what it does where it is interrupted, as interactive programs do: in a call that waits at the
/// gate, or in one that the driver is busy with.
int jump_out(const std::string& where) {
    start_cuda();
    static const auto s_memory = allocate();
    std::signal(SIGINT, [](int) { siglongjmp(g_back, 1); });
    say_and_wait("ready");
    if (sigsetjmp(g_back, 1) == 0) {
        if (where != "gate") {
            const auto take_long = [](void*) { std::this_thread::sleep_for(std::chrono::seconds(1)); };
            check(cuLaunchHostFunc(nullptr, take_long, nullptr), "cuLaunchHostFunc");
            std::cout << "waits" << std::endl;
        }
        if (where == "driver") cuStreamSynchronize(nullptr);
        static int s_word = 0;
        cuMemcpyDtoH(&s_word, s_memory, sizeof s_word);
        return 1; // it was not interrupted
    }
    say_and_wait("jumped");
    if (touch(s_memory) != 0) return 2;
    say_and_wait("touched");
    return is_intact(s_memory) ? 0 : 3;
}

/// Holds so many MiB until it is told to give them back.
int hold_memory(const std::string& mib) {
    start_cuda();
    const auto bytes = std::stoull(mib) << 20;
    const auto memory = allocate(bytes);
    say_and_wait("ready");
    check(cuMemFree(memory), "cuMemFree");
    say_and_wait("freed");
    return 0;
}

/// Initialises CUDA while a library does in its constructor.
int start_with_library(const std::string& file) {
    static_cast<void>(cuMemFree(0)); // so that nothing of the driver has to be looked up any more
    std::thread loader([=] {
        if (!::dlopen(file.c_str(), RTLD_NOW)) std::_Exit(99);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100)); // it is in the constructor
    start_cuda();
    loader.join();
    allocate();
    say_and_wait("ready");
    return 0;
}

/// Frees the program's own virtual memory when it is destroyed, and says what that returned.
struct OwnMapping : NotCopied {
    OwnMapping() = default;
    ~OwnMapping() {
        if (address == 0) return;
        const int unmapped = cuMemUnmap(address, k_bytes);
        const int freed = cuMemAddressFree(address, k_bytes);
        std::printf("unmapped %d freed %d\n", unmapped, freed);
    }
    void make() {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemAccessDesc grant{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr place = 0;
        check(cuMemAddressReserve(&place, k_bytes, 0, 0, 0), "cuMemAddressReserve");
        check(cuMemCreate(&handle, k_bytes, &properties, 0), "cuMemCreate");
        check(cuMemMap(place, k_bytes, 0, handle, 0), "cuMemMap");
        check(cuMemRelease(handle), "cuMemRelease");
        check(cuMemSetAccess(place, k_bytes, &grant, 1), "cuMemSetAccess");
        address = place;
    }
    CUdeviceptr address = 0;
};

OwnMapping g_mapping;

int unmap_at_exit() {
    start_cuda();
    g_mapping.make();
    say_and_wait("ready");
    return 0;
}

template <int (*run)()>
int alone(const std::vector<std::string>&) {
    return run();
}

const AddRoutines g_routines({
    {"end", alone<end_with_seven>},
    {"clean_up", alone<clean_up_at_exit>},
    {"join", alone<join_at_exit>},
    {"fork", alone<fork_without_cuda>},
    {"fork_and_exec", alone<fork_and_exec>},
    {"workers", alone<fork_workers>},
    {"touch", alone<touch_once>},
    {"touch_often", alone<touch_often>},
    {"reset", alone<reset_primary_context>},
    {"own_context", alone<destroy_own_context>},
    {"thread_local", alone<thread_local_destructor>},
    {"crash", alone<crash_within>},
    {"symbols", alone<ask_for_symbols>},
    {"missing", alone<call_what_is_missing>},
    {"cancel", alone<cancel_allocating_threads>},
    {"cancel_waits", alone<cancel_waiting_threads>},
    {"unmap_at_exit", alone<unmap_at_exit>},
    {"constructor", [](const auto& words) { return start_with_library(words.at(0)); }},
    {"jump", [](const auto& words) { return jump_out(words.at(0)); }},
    {"hold", [](const auto& words) { return hold_memory(words.at(0)); }},
});

} // namespace
} // namespace gpu_sleep::test
