// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Signals that are sent, which are the program's and not the simulated driver's, amid a kernel, too.

#include "support/own_action.hpp"
#include "support/sanitized.hpp"
#include "support/simulated_driver/testing.hpp"

#include <sys/syscall.h>

using namespace gpu_sleep::sim::testing;

namespace {

std::atomic<int> signals{0};

} // namespace

TEST_CASE("Simulated driver: a SIGSEGV that the program ignores, or takes, is none of the driver's",
          "[simulated_driver]") {
    if (gpu_sleep::test::is_thread_sanitized()) return gpu_sleep::test::skip("signals are held back");
    const Session session;
    {
        const OwnAction action(SIG_IGN);
        CHECK(signal_that_ends([] { ::kill(::getpid(), SIGSEGV); }) == 0);
    }
    signals = 0;
    const OwnAction action([](int) { ++signals; });
    for (int i = 1; i < 4; ++i) {
        ::raise(SIGSEGV);
        CHECK(signals == i);
    }
    // Also where it arrives amid a kernel.
    auto* const stream = make_stream();
    const Gate gate(stream);
    signals = 0;
    int sent = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
        sent += ::syscall(SYS_tgkill, ::getpid(), std::stoi(thread.path().filename()), SIGSEGV) == 0;
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sent > 1);
    for (int i = 0; i < 1000 && signals != sent; ++i)
        ::usleep(10'000); // each thread takes its own in its time
    CHECK(signals == sent);
}
