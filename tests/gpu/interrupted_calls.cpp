// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program of interrupted_calls.py: a thread of it makes a call of the driver, which is cancelled there,
// or leaves it from a signal's handler by a jump, as interactive programs do. It obeys a line at a time.

#include "programs/checked.hpp"
#include "support/driver_kernels.hpp"

#include <cuda.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr std::size_t k_words = std::size_t{4} << 18;

enum class Where : std::uint8_t { stream, event, copy, relaxed_capture, own_capture };
const std::map<std::string, Where> k_places{{"stream", Where::stream},
                                            {"event", Where::event},
                                            {"copy", Where::copy},
                                            {"relaxed-capture", Where::relaxed_capture},
                                            {"own-capture", Where::own_capture}};

/// Never destroyed.
struct Program {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUstream captured = nullptr;
    CUevent event = nullptr;
    CUfunction fill = nullptr;
    CUfunction spin_until = nullptr;
    CUdeviceptr memory = 0;
    std::uint32_t* flag = nullptr; ///< which the stream waits for
    std::uint32_t value = 1;       ///< of all words of the memory
    bool jumps = false;
    Where where{};
    pthread_t thread{};
    std::atomic<bool> may_call{false};
    std::atomic<bool> calls{false};
    std::atomic<bool> has_called{false};
    std::atomic<int> unwound{0};
};

Program& program() {
    static Program& all = *new Program;
    return all;
}

template <class... Arguments>
CUresult launch(CUfunction function, CUstream stream, Arguments... arguments) {
    void* parameters[] = {&arguments...};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

CUresult fill(CUstream stream, std::uint32_t value) {
    program().value = value;
    return launch(program().fill, stream, program().memory, std::uint64_t{k_words}, value);
}

void start(const std::string& where, bool jumps) {
    auto& all = program();
    all.where = k_places.at(where);
    all.jumps = jumps;
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CUmodule module = nullptr;
    CHECKED(cuInit(0));
    CHECKED(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC)); // whose waits are cancellation points
    CHECKED(cuDevicePrimaryCtxRetain(&all.context, 0));
    CHECKED(cuCtxSetCurrent(all.context));
    CHECKED(cuModuleLoadData(&module, gpu_sleep::driver_testing::k_kernels_ptx));
    CHECKED(cuModuleGetFunction(&all.fill, module, "sim_fill"));
    CHECKED(cuModuleGetFunction(&all.spin_until, module, "sim_spin_until"));
    CHECKED(cuStreamCreate(&all.stream, CU_STREAM_NON_BLOCKING));
    CHECKED(cuStreamCreate(&all.captured, CU_STREAM_NON_BLOCKING));
    CHECKED(cuEventCreate(&all.event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    CHECKED(cuMemAlloc(&all.memory, k_words * sizeof(std::uint32_t)));
    void* flag = nullptr;
    CHECKED(cuMemHostAlloc(&flag, sizeof(std::uint32_t), 0));
    all.flag = static_cast<std::uint32_t*>(flag);
    CHECKED(fill(all.stream, 1));
    CHECKED(cuStreamSynchronize(all.stream));
}

void keep_busy() {
    *program().flag = 0;
    CHECKED(launch(program().spin_until, program().stream, program().flag));
    CHECKED(cuEventRecord(program().event, program().stream));
}

struct Unwound {
    Unwound() = default;
    Unwound(const Unwound&) = delete;
    Unwound& operator=(const Unwound&) = delete;
    ~Unwound() { ++program().unwound; }
};

/// Never returns.
void call() {
    auto& all = program();
    static std::uint32_t s_word = 0;
    all.calls = true;
    if (all.where == Where::copy)
        CHECKED(cuMemcpyDtoH(&s_word, all.memory, sizeof s_word));
    else if (all.where == Where::event)
        CHECKED(cuEventSynchronize(all.event));
    else
        CHECKED(cuStreamSynchronize(all.stream));
    all.has_called = true;
    for (;;) ::pause(); // it came back before it was interrupted
}

void call_until_cancelled() {
    const Unwound unwound; // which a jump must not leave
    call();
}

thread_local sigjmp_buf t_back;

/// Returns where it has jumped out of the call, and has made another.
void* work(void*) {
    auto& all = program();
    CHECKED(cuCtxSetCurrent(all.context));
    while (!all.may_call) ::usleep(1'000);
    if (all.where == Where::relaxed_capture || all.where == Where::own_capture) {
        // In its own mode a thread may wait for a stream that is not captured only if it says so.
        auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (all.where == Where::own_capture) CHECKED(cuThreadExchangeStreamCaptureMode(&mode));
        CHECKED(cuStreamBeginCapture(all.captured, all.where == Where::own_capture
                                                       ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                                       : CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECKED(fill(all.captured, 7));
        all.value = 1; // until the graph is launched
    }
    if (!all.jumps) call_until_cancelled();
    if (sigsetjmp(t_back, 1) == 0) call();
    static std::uint32_t s_word = 0;
    CHECKED(cuMemcpyDtoH(&s_word, all.memory, sizeof s_word));
    return nullptr;
}

void go() {
    if (program().where != Where::copy) keep_busy();
    program().may_call = true;
    while (!program().calls) ::usleep(1'000);
}

void interrupt() {
    if (program().jumps)
        checked(-::pthread_kill(program().thread, SIGUSR1), "pthread_kill");
    else
        checked(-::pthread_cancel(program().thread), "pthread_cancel");
}

std::string join() {
    void* result = nullptr;
    checked(-::pthread_join(program().thread, &result), "pthread_join");
    if (result != PTHREAD_CANCELED) return "jumped";
    return "cancelled " + std::to_string(program().unwound) + (program().has_called ? ", call done" : "");
}

/// What another thread than the one that began the capture is told at its end; and what its graph does.
std::string end_capture() {
    auto& all = program();
    CUgraph graph = nullptr;
    std::string told = std::to_string(cuStreamEndCapture(all.captured, &graph));
    if (graph) {
        CUgraphExec executable = nullptr;
        CHECKED(cuGraphInstantiate(&executable, graph, 0));
        CHECKED(cuGraphLaunch(executable, all.captured));
        CHECKED(cuStreamSynchronize(all.captured));
        CHECKED(cuGraphExecDestroy(executable));
        CHECKED(cuGraphDestroy(graph));
        all.value = 7;
        told += " launched";
    }
    CHECKED(cuStreamDestroy(all.captured));
    CHECKED(cuStreamCreate(&all.captured, CU_STREAM_NON_BLOCKING));
    return told;
}

/// Whether every word is right; writes all of them anew.
std::string check() {
    auto& all = program();
    CHECKED(cuStreamSynchronize(all.stream));
    std::vector<std::uint32_t> words(k_words);
    CHECKED(cuMemcpyDtoH(words.data(), all.memory, k_words * sizeof(std::uint32_t)));
    const auto right = std::count(words.begin(), words.end(), all.value);
    CHECKED(fill(all.stream, all.value + 10));
    CHECKED(cuStreamSynchronize(all.stream));
    return std::to_string(right) + " right";
}

std::string obey(const std::string& line) {
    if (line == "go") return go(), "called";
    if (line == "busy") return keep_busy(), "busy";
    if (line == "interrupt") return interrupt(), "interrupted";
    if (line == "join") return join();
    if (line == "release") return __atomic_store_n(program().flag, 1U, __ATOMIC_RELEASE), "released";
    if (line == "end capture") return end_capture();
    return line == "check" ? check() : "what?";
}

} // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    start(arguments[2], std::string(arguments[1]) == "jump");
    std::signal(SIGUSR1, [](int) { siglongjmp(t_back, 1); });
    checked(-::pthread_create(&program().thread, nullptr, work, nullptr), "pthread_create");
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << obey(line) << std::endl;
    return 0;
}
