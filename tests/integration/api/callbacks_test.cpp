// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Callbacks among each other: their order, their deadline, and their removal.

#include "callbacks.hpp"

#include <pthread.h>
#include <sys/mman.h>

using namespace gpu_sleep::test;

namespace {

/// What gpu-wake says of this process.
std::string woken_by_command() {
    const auto done = run({{command_file("gpu-wake"), std::to_string(::getpid())}});
    INFO(done.out << done.err);
    REQUIRE(done.status == 0);
    return done.out;
}

bool says_late(const std::string& output) {
    return output.find("a callback of the program did not return in time") != std::string::npos;
}

} // namespace

TEST_CASE("Callbacks: they run in the order of registration", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::vector<int> before, after;
    std::vector<std::unique_ptr<Callbacks>> all;
    for (int i = 0; i < 5; ++i)
        all.push_back(
            std::make_unique<Callbacks>([&, i] { before.push_back(i); }, [&, i] { after.push_back(i); }));
    sleep();
    CHECK(before == std::vector{0, 1, 2, 3, 4});
    CHECK(after.empty());
    wake();
    CHECK(after == std::vector{0, 1, 2, 3, 4});
    CHECK(before.size() == 5);
    all.erase(all.begin() + 1); // and what is left, with a new one, too
    before.clear();
    cycle();
    CHECK(before == std::vector{0, 2, 3, 4});
}

TEST_CASE("Callbacks: one that refuses says why, here and outside", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::string why = "the trainer\nis in a step";
    std::atomic<bool> is_enlisted = false; // read in a request from outside, which orders nothing here
    const auto explain = [&](const gpu_sleep_event* event) {
        if (is_enlisted) gpu_sleep_enlist(event);
        gpu_sleep_explain("an earlier reason");
        gpu_sleep_explain(why.c_str());
    };
    const Callbacks callbacks([&](const gpu_sleep_event* event) {
        if (is_enlisted)
            std::thread(explain, event).join();
        else if (!why.empty())
            explain(event);
        return 7;
    });
    const auto told = [] {
        CHECK(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_ERROR_REFUSED);
        return std::string(gpu_sleep_last_error());
    };
    CHECK(told().ends_with("refused: the trainer?is in a step; try again later"));
    const auto command = run({{command_file("gpu-sleep"), std::to_string(::getpid())}});
    CHECK(command.status == 1);
    CHECK_THAT(command.err, mentions("refused: the trainer?is in a step"));
    is_enlisted = true;
    CHECK(told().ends_with("refused: the trainer?is in a step; try again later"));
    is_enlisted = false;
    why = std::string(999, 'x') + "\u00e4";
    CHECK(told().ends_with("refused: " + std::string(999, 'x') + "; try again later"));
    why.clear(); // that of an earlier call does not stay
    CHECK(told().ends_with("refused (it returned 7); try again later"));
    CHECK(gpu_sleep_asleep_bytes() == 0);
}

TEST_CASE("Callbacks: one that fails after a wake says why", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    const Callbacks callbacks({}, [] {
        gpu_sleep_explain("the file is gone");
        return 1;
    });
    sleep();
    CHECK_THAT(woken_by_command(), mentions("failed: the file is gone"));
}

TEST_CASE("Callbacks: nobody else gives their reasons", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    CHECK(gpu_sleep_explain("nobody asked") == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    auto null = GPU_SLEEP_OK;
    auto stranger = GPU_SLEEP_OK;
    const Callbacks callbacks([&] {
        null = gpu_sleep_explain(nullptr);
        std::thread([&] { stranger = gpu_sleep_explain("not mine"); }).join();
        gpu_sleep_explain("which does not matter");
    });
    sleep();
    CHECK(null == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(stranger == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    wake();
}

TEST_CASE("Callbacks: a wake waits for a late one no longer than its deadline, and says so", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::promise<void> may_go;
    std::atomic<int> quick{0}; // no sanitizer sees that the command comes between
    const auto count = [&] { ++quick; };
    const Callbacks first({}, count);
    const auto go = may_go.get_future();
    const Callbacks late(
        {}, [&] { return go.wait_for(k_patience), 0; }, 300);
    sleep();
    const auto start = Clock::now();
    CHECK(says_late(woken_by_command()));
    const auto took = Clock::now() - start;
    CHECK(took >= Milliseconds(300));
    CHECK(took < k_patience / 2);
    CHECK(gpu_sleep_asleep_bytes() == 0);
    CHECK(quick == 1);
    may_go.set_value();
}

TEST_CASE("Callbacks: a late one does not keep the next from running", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::atomic<int> quick{0};
    const Callbacks late(
        {}, [] { return std::this_thread::sleep_for(Milliseconds(500)), 0; }, 50);
    const Callbacks next(
        {}, [&] { ++quick; }, 50);
    sleep();
    CHECK(says_late(woken_by_command()));
    CHECK(quick == 1);
}

TEST_CASE("Callbacks: removing one that runs waits for its end", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::promise<void> is_running, may_go;
    std::atomic<bool> runs{false};
    int calls = 0;
    const Callbacks callbacks({}, [&] {
        ++calls;
        runs = true;
        is_running.set_value();
        may_go.get_future().wait();
        runs = false;
    });
    sleep();
    auto waking = std::async(std::launch::async, [] { return gpu_sleep_wake(nullptr, 0); });
    is_running.get_future().wait();
    auto removing = std::async(std::launch::async, [&] {
        const bool is_removed = gpu_sleep_remove_callback(callbacks.id()) == GPU_SLEEP_OK;
        return is_removed && !runs;
    });
    CHECK(waits(removing));
    may_go.set_value();
    CHECK(removing.get());
    CHECK(waking.get() == GPU_SLEEP_OK);
    CHECK(gpu_sleep_remove_callback(callbacks.id()) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    cycle();
    CHECK(calls == 1);
}

TEST_CASE("Callbacks: one may remove itself, and does not run again", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    int id = 0, calls = 0;
    auto removed = GPU_SLEEP_ERROR_INTERNAL;
    const Callbacks callbacks({}, [&] {
        ++calls;
        removed = gpu_sleep_remove_callback(id);
    });
    id = callbacks.id();
    for (int i = 0; i < 2; ++i) cycle();
    CHECK(removed == GPU_SLEEP_OK);
    CHECK(calls == 1);
}

TEST_CASE("Callbacks: those that free all that was to sleep are told that all is as before", "[api]") {
    auto* memory = allocate_tagged("cache", 4 * k_mib);
    int told = 0;
    const Callbacks callbacks(
        [&] { return gpu_sleep_free(std::exchange(memory, nullptr)) == GPU_SLEEP_OK ? 0 : 1; },
        [&](const gpu_sleep_event* event) { told += event->tag_count == 0; });
    sleep();
    CHECK(gpu_sleep_asleep_bytes() == 0);
    CHECK(told == 1);
}

TEST_CASE("Callbacks: the program's own handler of a fault works in them", "[api]") {
    static char* page = nullptr;
    page = static_cast<char*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(page != MAP_FAILED);
    struct sigaction before {};
    struct sigaction own {};
    own.sa_handler = [](int) { ::mprotect(page, 4096, PROT_READ | PROT_WRITE); };
    REQUIRE(::sigaction(SIGSEGV, &own, &before) == 0);
    {
        const TaggedMemory memory("weights", 4 * k_mib);
        const Callbacks callbacks([] { *static_cast<volatile char*>(page) = 1; });
        cycle();
    }
    REQUIRE(::sigaction(SIGSEGV, &before, nullptr) == 0);
    CHECK(*page == 1);
    CHECK(::munmap(page, 4096) == 0);
}

TEST_CASE("Callbacks: a thread that is cancelled in a call finishes it first", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    std::promise<void> may_end;
    const Callbacks callbacks([&] { may_end.get_future().wait(); });
    auto slept = std::async(std::launch::async, [] { return gpu_sleep_sleep(1, nullptr, 0); });
    std::this_thread::sleep_for(k_moment);
    static gpu_sleep_status s_held;
    s_held = GPU_SLEEP_ERROR_INTERNAL;
    pthread_t thread{};
    const auto body = [](void*) -> void* {
        s_held = gpu_sleep_hold(); // waits for the callback
        ::pthread_testcancel();
        return nullptr;
    };
    REQUIRE(::pthread_create(&thread, nullptr, body, nullptr) == 0);
    std::this_thread::sleep_for(k_moment);
    REQUIRE(::pthread_cancel(thread) == 0);
    std::this_thread::sleep_for(k_moment);
    may_end.set_value();
    void* end = nullptr;
    REQUIRE(::pthread_join(thread, &end) == 0);
    CHECK(end == PTHREAD_CANCELED);
    CHECK(s_held == GPU_SLEEP_OK);
    check(gpu_sleep_resume());
    CHECK(gpu_sleep_resume() == GPU_SLEEP_ERROR_INVALID_ARGUMENT); // nothing is held any more
    CHECK(slept.get() == GPU_SLEEP_OK);
    wake();
}

TEST_CASE("Callbacks: the thread of a callback may be cancelled by the program", "[api]") {
    const TaggedMemory memory("weights", 4 * k_mib);
    const bool cancels_itself = GENERATE(true, false);
    INFO("cancels itself: " << cancels_itself);
    int calls = 0;
    pthread_t thread{};
    const Callbacks callbacks([&] {
        ++calls;
        thread = ::pthread_self();
        if (cancels_itself) ::pthread_cancel(thread);
    });
    sleep();
    if (!cancels_itself) REQUIRE(::pthread_cancel(thread) == 0);
    wake();
    std::this_thread::sleep_for(k_moment);
    cycle();
    CHECK(calls == 2);
}
