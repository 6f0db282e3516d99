// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program that the integration tests command and put to sleep. It knows nothing of the commands that act
// on it.

#include "base/fd.hpp"
#include "host_callbacks.hpp"
#include "host_collective.hpp"
#include "host_process.hpp"
#include "support/simulated_driver/control.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <thread>

namespace gpu_sleep::test {
namespace {

/// Everything the program holds. Threads that use it outlive main(), so it is never destroyed.
struct Host {
    std::deque<Allocation> allocations; ///< a freed one keeps its number and has no pointer
    Graph graph;
    HostCallbacks callbacks;
};

Host& host() {
    static Host& instance = *new Host;
    return instance;
}

std::atomic<int> g_signals{0};

Result<Allocation*> allocation(Words& words) {
    const auto number = next<std::size_t>(words, ~std::size_t{0});
    auto& all = host().allocations;
    if (number >= all.size() || !all[number].pointer)
        return make_error(ErrorCode::invalid_argument, "there is no allocation {}", number);
    return &all[number];
}

// ---- Memory

Answer allocate(Words& words) {
    Allocation made;
    made.tag = next<std::string>(words);
    made.bytes = next<std::size_t>(words);
    made.device = next<int>(words);
    made.seed = host().allocations.size() + 1;
    GPU_SLEEP_TRY(checked(gpu_sleep_alloc(&made.pointer, made.bytes, made.device, made.tag.c_str())));
    GPU_SLEEP_TRY(fill(made));
    host().allocations.push_back(made);
    return fmt::format("{} {:#x}", host().allocations.size() - 1, made.address());
}

Answer allocate_many(Words& words) {
    const auto tag = next<std::string>(words);
    const auto count = next<int>(words);
    const auto bytes = next<std::size_t>(words);
    for (int i = 0; i < count; ++i) {
        void* pointer = nullptr;
        GPU_SLEEP_TRY(checked(gpu_sleep_alloc(&pointer, bytes, 0, tag.c_str())));
    }
    return {};
}

Answer release(Allocation& which, Words&) {
    return checked(gpu_sleep_free(std::exchange(which.pointer, nullptr)));
}

Answer check_all(Words&) {
    for (const auto& each : host().allocations) {
        if (!each.pointer) continue;
        auto found = compare(each);
        if (!found || *found != "intact") return found;
    }
    return "intact";
}

Answer set_policy(Words& words) {
    static const std::map<std::string, gpu_sleep_retention> names = {
        {"offload", GPU_SLEEP_OFFLOAD}, {"preserve", GPU_SLEEP_PRESERVE}, {"discard", GPU_SLEEP_DISCARD}};
    const auto tag = next<std::string>(words);
    const auto retention = names.at(next<std::string>(words));
    return checked(gpu_sleep_set_policy(tag.c_str(), retention, next<int>(words)));
}

// ---- Work

Answer begin_capture(Words& words) {
    const auto flags = next<std::string>(words) == "blocking" ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    return about_two(allocation, [=](Allocation& from, Allocation& to) {
        to.seed = from.seed;
        return host().graph.begin(flags, from, to);
    })(words);
}

/// Says whether the second allocation of the capture holds the first one's bytes again after a replay.
Answer replay(const Allocation& to, Words&) {
    GPU_SLEEP_TRY(use_device(0));
    GPU_SLEEP_TRY(checked(cuMemsetD8(to.address(), 0x5A, to.bytes), "cuMemsetD8"));
    GPU_SLEEP_TRY(checked(cuCtxSynchronize(), "cuCtxSynchronize"));
    GPU_SLEEP_TRY(host().graph.replay());
    return compare(to);
}

Answer use_own_context(Words&) {
    CUcontext context = nullptr;
    GPU_SLEEP_TRY(checked(cuInit(0), "cuInit"));
    GPU_SLEEP_TRY(checked(cuCtxCreate(&context, nullptr, 0, 0), "cuCtxCreate"));
    void* pointer = nullptr;
    GPU_SLEEP_TRY(checked(gpu_sleep_alloc(&pointer, 4096, 0, "own")));
    return checked(cuCtxDestroy(context), "cuCtxDestroy");
}

// ---- The program's own sleep

Answer sleep_self(Words& words) {
    const auto level = next<int>(words);
    const auto tags = next<std::string>(words);
    const auto timeout_ms = next<std::uint32_t>(words, 10'000);
    return checked(gpu_sleep_sleep(level, tags.empty() ? nullptr : tags.c_str(), timeout_ms));
}

Answer wake_self(Words& words) {
    const auto tags = next<std::string>(words);
    const auto wait_ms = next<std::uint32_t>(words);
    return checked(gpu_sleep_wake(tags.empty() ? nullptr : tags.c_str(), wait_ms));
}

// ---- Life and death

/// The child lives until its parent ends. With "alloc" it allocates first, and the answer is how that went.
Answer fork_child(Words& words) {
    const bool allocates = next<std::string>(words) == "alloc";
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return errno_error(ErrorCode::io_failed, errno, "pipe", "fork");
    for (auto& end : ends) { // not where a daemon has closed its standard streams
        const int low = std::exchange(end, ::fcntl(end, F_DUPFD, k_first_own_number));
        ::close(low);
    }
    const auto child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        void* pointer = nullptr;
        const auto status = allocates ? gpu_sleep_alloc(&pointer, 4096, 0, "child") : GPU_SLEEP_OK;
        const auto told = static_cast<char>(status);
        if (::write(ends[1], &told, 1) != 1) ::_exit(EXIT_FAILURE);
        for (;;) ::pause();
    }
    char status = 0;
    const auto got = ::read(ends[0], &status, 1);
    ::close(ends[0]);
    ::close(ends[1]);
    if (child < 0 || got != 1) return make_error(ErrorCode::internal, "the child did not say how it is");
    return fmt::format("{} {}", child, static_cast<int>(status));
}

/// The process takes a name of two lines, which /proc/PID/stat has as it is.
Answer take_two_lines(Words&) {
    if (::prctl(PR_SET_NAME, "a\nb) R 1") == 0) return {};
    return errno_error(ErrorCode::internal, errno, "prctl", "name");
}

/// Of a child that ends by itself.
Result<int> status_of(pid_t child) {
    int status = -1;
    if (child < 0 || ::waitpid(child, &status, 0) != child)
        return errno_error(ErrorCode::internal, errno, "fork", "a child");
    return status;
}

/// The child is made by the system call alone, which no library hears of, and exits. The answer is its
/// status.
Answer fork_raw(Words&) {
    const auto child = static_cast<pid_t>(::syscall(SYS_fork));
    if (child == 0) std::exit(0);
    return std::to_string(GPU_SLEEP_TRY(status_of(child)));
}

/// Forks children that call the API and exit while another thread sleeps and wakes; stops at one that cannot.
/// The answer is how many did.
Answer fork_while_sleeping(Words& words) {
    const auto count = next<int>(words);
    std::atomic<bool> goes_on{true};
    std::thread sleeper([&] {
        while (goes_on && gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK) gpu_sleep_wake(nullptr, 0);
    });
    int ended = 0;
    for (int status = 0; ended < count && status == 0; ended += status == 0) {
        const auto child = ::fork();
        if (child == 0) {
            ::alarm(10); // ends it if it is stuck
            gpu_sleep_set_retained(0);
            std::exit(0);
        }
        if (::waitpid(child, &status, 0) != child) break;
    }
    goes_on = false;
    sleeper.join();
    return std::to_string(ended);
}

/// Takes so many milliseconds at the end, after what was registered to run first.
Answer be_slow_at_exit(Words& words) {
    static std::chrono::milliseconds s_time;
    s_time = std::chrono::milliseconds(next<int>(words));
    return std::to_string(std::atexit([] { std::this_thread::sleep_for(s_time); }));
}

Answer become_another(Words&) {
    std::string self = "/proc/self/exe";
    std::array<char*, 2> arguments = {self.data(), nullptr};
    ::execv(self.c_str(), arguments.data());
    return errno_error(ErrorCode::io_failed, errno, "execv", self);
}

/// Blocks signals, or unblocks them. The answer is how many have come.
Answer mask_signals(int how) {
    std::signal(SIGUSR1, [](int) { ++g_signals; });
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGUSR1, SIGCONT}) sigaddset(&set, signal);
    ::pthread_sigmask(how, &set, nullptr);
    return std::to_string(g_signals);
}

/// Whether SIGTSTP and SIGCONT do in a child of fork() what they do in a program at its start.
Answer see_stops_in_child(Words&) {
    const auto child = ::fork();
    if (child == 0) {
        for (const int signal : {SIGTSTP, SIGCONT}) {
            struct sigaction action = {};
            if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) ::_exit(1);
        }
        ::_exit(0);
    }
    return GPU_SLEEP_TRY(status_of(child)) == 0 ? "default" : "handled";
}

// ---- The simulated driver

Answer set_fault(const std::string& kind, Words& words) {
    const auto name = next<std::string>(words);
    const auto number = next<std::uint64_t>(words);
    if (kind == "delay") sim_delay(name.c_str(), number);
    if (kind == "fail") sim_fail(name.c_str(), number, next<int>(words), SIM_ONCE);
    return {};
}

Commands commands() {
    Commands table = {
        {"alloc", allocate},
        {"alloc_many", allocate_many},
        {"free", about(allocation, release)},
        {"check", about(allocation, [](const Allocation& which, Words&) { return compare(which); })},
        {"check_all", check_all},
        {"policy", set_policy},
        {"refilled", [](Words& w) { return checked(gpu_sleep_mark_refilled(next<std::string>(w).c_str())); }},
        {"name", [](Words& w) { return checked(gpu_sleep_set_name(next<std::string>(w).c_str())); }},
        {"hold", [](Words&) { return checked(gpu_sleep_hold()); }},
        {"resume", [](Words&) { return checked(gpu_sleep_resume()); }},
        {"inhibit", [](Words&) { return checked(gpu_sleep_inhibit()); }},
        {"uninhibit", [](Words&) { return checked(gpu_sleep_uninhibit()); }},
        {"capture", begin_capture},
        {"capture_end", [](Words&) { return host().graph.end(); }},
        {"replay", about(allocation, replay)},
        {"collective", start_collective},
        {"collective_steps", collective_steps},
        {"collective_end", end_collective},
        {"spin", [](Words& w) { return spin(next<std::uint64_t>(w)); }},
        {"own_context", use_own_context},
        {"callback", [](Words& w) { return host().callbacks.install(w); }},
        {"let_go", [](Words&) { return host().callbacks.let_go(); }},
        {"calls", [](Words&) { return host().callbacks.calls(); }},
        {"sleep", sleep_self},
        {"wake", wake_self},
        {"asleep", [](Words&) { return std::to_string(gpu_sleep_asleep_bytes()); }},
        {"pid", [](Words&) { return std::to_string(::getpid()); }},
        {"fork", fork_child},
        {"two_line_name", take_two_lines},
        {"raw_fork", fork_raw},
        {"fork_while_sleeping", fork_while_sleeping},
        {"slow_exit", be_slow_at_exit},
        {"exec", become_another},
        {"exit", [](Words& w) -> Answer { std::exit(next<int>(w)); }},
        {"handle_stops", [](Words&) { return std::signal(SIGTSTP, [](int) { ++g_signals; }), Answer(); }},
        {"stops_in_child", see_stops_in_child},
        {"block", [](Words&) { return mask_signals(SIG_BLOCK); }},
        {"unblock", [](Words&) { return mask_signals(SIG_UNBLOCK); }},
        {"signals", [](Words&) { return std::to_string(g_signals); }},
        {"delay", [](Words& w) { return set_fault("delay", w); }},
        {"fail", [](Words& w) { return set_fault("fail", w); }},
        {"pinned", [](Words&) { return std::to_string(sim_live_objects().host_bytes); }},
        {"faults", [](Words&) { return std::to_string(sim_fault_counts().illegal_accesses); }},
    };
    add_process_commands(table);
    return table;
}

} // namespace
} // namespace gpu_sleep::test

int main() {
    gpu_sleep::test::obey(gpu_sleep::test::commands());
    return EXIT_SUCCESS;
}
