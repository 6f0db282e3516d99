// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is the program's and not the driver's: signals that are sent, and faults of its own.

#include "rules.hpp"
#include "support/own_action.hpp"
#include "support/sanitized.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

std::atomic<int> signals{0};
char* page = nullptr;

void fault() {
    *static_cast<volatile char*>(page) = 1;
}

} // namespace

TEST_CASE("Driver: a SIGSEGV that is sent ends the program, as without a driver", "[driver_rules]") {
    if (gpu_sleep::test::is_thread_sanitized()) return gpu_sleep::test::skip("signals are held back");
    const Session session;
    const OwnAction action(SIG_DFL);
    CHECK(signal_that_ends([] { ::kill(::getpid(), SIGSEGV); }) == SIGSEGV);
    CHECK(signal_that_ends([] { ::raise(SIGSEGV); }) == SIGSEGV);
}

TEST_CASE("Driver: the program's own faults are handed on, as often as they come", "[driver_rules]") {
    if (gpu_sleep::test::is_thread_sanitized()) return gpu_sleep::test::skip("signals are held back");
    const Session session;
    page = static_cast<char*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(page != MAP_FAILED);
    signals = 0;
    {
        const OwnAction mends([](int) {
            ++signals;
            ::mprotect(page, 4096, PROT_READ | PROT_WRITE);
        });
        for (int i = 1; i < 4; ++i) {
            fault();
            CHECK(signals == i);
            REQUIRE(::mprotect(page, 4096, PROT_NONE) == 0);
        }
    }
    const OwnAction by_default(SIG_DFL);
    CHECK(signal_that_ends(fault) == SIGSEGV);
    // Frameworks put back what was there before them, and have it happen again.
    const OwnAction puts_back([](int signal) {
        ::sigaction(signal, &OwnAction::before, nullptr);
        ::raise(signal);
    });
    CHECK(signal_that_ends(fault) == SIGSEGV);
    if (!simulated()) return; // a real driver has no action of its own, and such a handler would find itself
    {
        const OwnAction another([](int) {}); // and the driver's over it
    }
    puts_back.let_driver_set_its_handler();
    CHECK(signal_that_ends([] { ::raise(SIGSEGV); }) == SIGSEGV);
    CHECK(::munmap(page, 4096) == 0);
}
