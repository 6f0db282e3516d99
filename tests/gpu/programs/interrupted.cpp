// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A program that abandons what it waits for: it cancels a thread that waits for the GPU, and leaves calls
// from a signal's handler by a jump, as interactive programs do. Each time its next calls must work.

#include "checked.hpp"
#include "program.hpp"

#include <cuda.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>

namespace {

constexpr std::size_t k_bytes = std::size_t{64} << 20;
CUcontext g_context = nullptr;
CUstream g_stream = nullptr;
CUevent g_event = nullptr; ///< whose wait gives up the processor, so that it can be cancelled
sigjmp_buf g_back;

void take_long(void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

void* wait_for_event(void*) {
    CHECKED(cuCtxSetCurrent(g_context));
    CHECKED(cuEventSynchronize(g_event));
    return nullptr;
}

class Program {
public:
    Program() {
        CUdevice device = 0;
        CHECKED(cuInit(0));
        CHECKED(cuDeviceGet(&device, 0));
        CHECKED(cuDevicePrimaryCtxRetain(&g_context, device));
        CHECKED(cuCtxSetCurrent(g_context));
        CHECKED(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
        CHECKED(cuEventCreate(&g_event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
        CHECKED(cuMemAlloc(&memory_, k_bytes));
        CHECKED(cuMemsetD8(memory_, 1, k_bytes));
        std::signal(SIGALRM, [](int) { siglongjmp(g_back, 1); });
    }

    void step(int number) {
        CHECKED(cuLaunchHostFunc(g_stream, take_long, nullptr));
        CHECKED(cuEventRecord(g_event, g_stream));
        if (number % 2 == 0)
            cancel();
        else
            jump();
        CHECKED(cuStreamSynchronize(g_stream));
        CHECKED(cuMemsetD8(memory_, static_cast<unsigned char>(number), k_bytes / 2));
    }

    std::string digest() {
        std::vector<unsigned char> host(k_bytes);
        CHECKED(cuMemcpyDtoH(host.data(), memory_, host.size()));
        Digest digest;
        digest.add(host.data(), host.size());
        return digest.finish();
    }

private:
    static void cancel() {
        pthread_t thread{};
        checked(-::pthread_create(&thread, nullptr, wait_for_event, nullptr), "pthread_create");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ::pthread_cancel(thread);
        checked(-::pthread_join(thread, nullptr), "pthread_join");
    }

    static void jump() {
        if (sigsetjmp(g_back, 1) != 0) return;
        const itimerval soon{{}, {0, 50'000}};
        checked(::setitimer(ITIMER_REAL, &soon, nullptr), "setitimer");
        CHECKED(cuEventSynchronize(g_event));
        for (;;) ::pause(); // a sleep may have come between
    }

    CUdeviceptr memory_ = 0;
};

} // namespace

int main(int count, char** words) {
    return run(ProgramOptions(count, words), Program());
}
