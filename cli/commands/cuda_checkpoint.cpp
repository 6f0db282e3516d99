// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuda-checkpoint and cr_client, for those who call commands of these names: options, output and statuses are
// theirs. What a process with an agent has on the GPU goes before the driver's lock, and comes back after it.

#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "control/driver_engine.hpp"
#include "control/find.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

using namespace gpu_sleep;

namespace {

namespace usage = cli::usage;
using checkpoint::State;
using control::DriverStep;
using control::Process;

struct Typed {
    std::vector<std::string> pids;
    std::optional<DriverStep> action;
    std::optional<std::uint32_t> timeout;
    std::vector<std::string> device_map;
    bool toggles = false, asks_state = false, asks_thread = false;
    bool begins = false, keeps = false, brings_back = false; ///< of cr_client
    bool takes_no_notice = false;
    std::vector<std::string> ranges;
};

/// A number that is all of `text`.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
    Number number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || end != text.data() + text.size()) return {};
    return number;
}

DriverStep step_of(std::string_view word) {
    return word == "lock"         ? DriverStep::lock
           : word == "checkpoint" ? DriverStep::checkpoint
           : word == "restore"    ? DriverStep::restore
                                  : DriverStep::unlock;
}

usage::Row pid_row(Typed& typed) {
    return usage::required(
        usage::brief({"-p,--pid", usage::list("PID", typed.pids), "The process, or a thread of it"}));
}

usage::Table table_of(Typed& typed) {
    const auto read_timeout = [&typed](const std::string& text) -> std::string {
        typed.timeout = number_in<std::uint32_t>(text);
        return typed.timeout ? "" : "'" + printable(text) + "' is not a number of milliseconds";
    };
    return {
        "cuda-checkpoint",
        "Locks, checkpoints, restores and unlocks the CUDA of a process, like NVIDIA's command. The "
        "memory of "
        "a process with gpu-sleep's agent sleeps before the lock, and wakes after the unlock.",
        {"--action ACTION --pid PID", "--toggle|--get-state|--get-restore-tid --pid PID"},
        {{"Options",
          {pid_row(typed),
           usage::brief({"--action",
                         usage::choice("lock|checkpoint|restore|unlock",
                                       [&typed](const std::string& word) { typed.action = step_of(word); }),
                         "What to do"}),
           usage::brief({"-t,--timeout", usage::text("MS", read_timeout),
                         "Fail if the lock takes longer than this (0: no limit, the default)"}),
           usage::brief({"--device-map", usage::list("OLD=NEW", typed.device_map),
                         "Restore on other GPUs. OLD and NEW are uuids"}),
           usage::brief({"--toggle", usage::flag(typed.toggles),
                         "Lock and checkpoint a running process; restore and unlock a checkpointed one"}),
           usage::brief({"--get-state", usage::flag(typed.asks_state),
                         "Print running, locked, checkpointed or failed"}),
           usage::brief({"--get-restore-tid", usage::flag(typed.asks_thread),
                         "Print the id of the thread that restores"})}}},
        "",
        "0 done, 1 failed."};
}

usage::Table table_of_client(Typed& typed) {
    return {"cr_client",
            "Puts all GPU memory of a process to sleep, or wakes it, like GPU-CR's command.",
            {"-i|-c|-r -p PID"},
            {{"Options",
              {pid_row(typed),
               usage::brief({"-i", usage::flag(typed.begins), "Check that the process has an agent"}),
               usage::brief({"-c", usage::flag(typed.keeps), "Put the process to sleep"}),
               usage::brief({"-r", usage::flag(typed.brings_back), "Wake it"}),
               usage::brief({"-s", usage::list("POINTER:SIZE", typed.ranges), "Ignored: all of it sleeps"}),
               usage::brief({"-m,-b", usage::flag(typed.takes_no_notice), "Ignored"})}}},
            "",
            "0 done, 1 failed."};
}

/// The process that has a thread of this id. Errors: invalid_argument, no_process, io_failed.
Result<Process> process_of(const std::string& word) {
    const auto id = number_in<pid_t>(word);
    if (!id)
        return make_error(ErrorCode::invalid_argument, "'{}' is not the id of a process", printable(word));
    constexpr std::string_view k_group = "Tgid:\t";
    std::ifstream status(fmt::format("/proc/{}/status", *id));
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(k_group))
            return control::ProcFs().read(number_in<pid_t>(line.substr(k_group.size())).value_or(0));
    return make_error(ErrorCode::no_process, "there is no process {}", *id);
}

Result<void> reach_agent(const Process& process) {
    const auto reached = control::Finder().connect(process);
    return reached ? Result<void>() : reached.error();
}

/// Has the agent do as asked, and says on standard error why it has not.
Result<void> by_agent(const Process& process, protocol::Request request) {
    control::Command command{.request = std::move(request)};
    command.whom.words = {std::to_string(process.pid)};
    if (cli::run("cuda-checkpoint", std::move(command), {.quiet = true}) == 0) return {};
    return make_error(ErrorCode::driver_failed, "its agent has failed");
}

/// Wakes the process after the command has ended: it may be frozen until its caller goes on.
void wake_later(const Process& process) {
    if (::fork() != 0) return;
    ::setsid();
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, standard);
    model::WakeRequest wake;
    wake.asker = "cuda-checkpoint";
    wake.wait = Milliseconds(60'000); // for GPU memory
    ::_exit(reach_agent(process) && by_agent(process, wake) ? 0 : 1);
}

Result<std::vector<GpuPair>> pairs_of(const std::vector<std::string>& words) {
    std::vector<GpuPair> pairs;
    for (const auto& word : words) {
        const auto equals = word.find('=');
        if (equals == std::string::npos)
            return make_error(ErrorCode::invalid_argument, "'{}' is not OLD=NEW", printable(word));
        pairs.push_back({word.substr(0, equals), word.substr(equals + 1)});
    }
    return pairs;
}

/// Locks a process whose memory sleeps first. What sleeps wakes by the first use after the unlock, too.
Result<void> lock(const Process& process, std::uint32_t limit) {
    const auto until =
        Clock::now() + Milliseconds(limit == 0 ? std::numeric_limits<std::uint32_t>::max() : limit);
    bool sleeps = GPU_SLEEP_TRY(control::state_by_driver(process, true)) == State::running;
    if (sleeps) {
        const auto reached = reach_agent(process);
        sleeps = static_cast<bool>(reached);
        if (!reached && reached.error().code != ErrorCode::no_agent) return reached;
    }
    if (sleeps) {
        model::SleepRequest sleep;
        sleep.asker = "cuda-checkpoint";
        sleep.on_touch = model::OnTouch::wake;
        sleep.bounds_all = limit != 0;
        if (sleep.bounds_all) sleep.timeout = Milliseconds(limit);
        GPU_SLEEP_TRY(by_agent(process, sleep));
    }
    auto locked = control::take_step(process, DriverStep::lock,
                                     std::chrono::duration_cast<Milliseconds>(until - Clock::now()), {});
    if (!locked && sleeps) wake_later(process);
    return locked;
}

Result<void> act(const Process& process, DriverStep step, const Typed& typed) {
    if (step == DriverStep::lock) return lock(process, typed.timeout.value_or(0));
    const auto pairs = GPU_SLEEP_TRY(pairs_of(typed.device_map));
    GPU_SLEEP_TRY(control::take_step(process, step, {}, pairs));
    if (step == DriverStep::unlock) wake_later(process);
    return {};
}

Result<void> carry_out(const Process& process, const Typed& typed) {
    if (typed.asks_thread) {
        fmt::print("{}\n", GPU_SLEEP_TRY(control::restore_thread_by_driver(process)));
        return {};
    }
    if (typed.action) return act(process, *typed.action, typed);
    const auto state = GPU_SLEEP_TRY(control::state_by_driver(process, true));
    constexpr const char* k_words[] = {"running", "locked", "checkpointed", "failed"};
    const auto* const word = k_words[static_cast<int>(state)];
    if (typed.asks_state) {
        fmt::print("{}\n", word);
        return {};
    }
    if (state == State::locked || state == State::failed)
        return make_error(ErrorCode::driver_failed, "it is {}", word);
    const bool is_running = state == State::running;
    GPU_SLEEP_TRY(act(process, is_running ? DriverStep::lock : DriverStep::restore, typed));
    return act(process, is_running ? DriverStep::checkpoint : DriverStep::unlock, typed);
}

int run(const Typed& typed, bool is_client) {
    const auto each = [&](const std::string& word) -> Result<void> {
        const auto process = GPU_SLEEP_TRY(process_of(word));
        if (!is_client) return carry_out(process, typed);
        GPU_SLEEP_TRY(reach_agent(process));
        if (typed.keeps) return by_agent(process, model::SleepRequest());
        return typed.brings_back ? by_agent(process, model::WakeRequest()) : Result<void>();
    };
    for (const auto& word : typed.pids) {
        const auto done = each(word);
        if (done) continue;
        fmt::print(stderr, "{}: {}\n", word, done.error().message);
        return 1;
    }
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const bool is_client = argc > 0 && std::filesystem::path(argv[0]).filename() == "cr_client";
    Typed typed;
    const auto status = cli::parse(is_client ? table_of_client(typed) : table_of(typed), argc, argv);
    if (status) return std::min(*status, 1);
    const auto asked = typed.action.has_value() + typed.toggles + typed.asks_state + typed.asks_thread;
    const auto of_client = typed.begins + typed.keeps + typed.brings_back;
    if ((is_client ? of_client : asked) != 1) {
        fmt::print(stderr, "{}\n", is_client ? "-i, -c or -r is missing" : "--action is missing");
        return 1;
    }
    return cli::end_beside_driver(run(typed, is_client));
}
