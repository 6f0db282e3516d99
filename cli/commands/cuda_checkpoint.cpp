// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuda-checkpoint and cr_client, for callers of NVIDIA's and GPU-CR's commands: options, output and statuses
// are theirs. The memory of a process with an agent sleeps before the driver locks the process, and wakes
// after it unlocks it. The other steps never wait for the agent: callers take them while the process is
// frozen.

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/show/output.hpp"
#include "control/driver_engine.hpp"

#include <sys/syscall.h>

#include <sstream>

using namespace gpu_sleep;

namespace {

using checkpoint::State;
using control::Checkpoint;
using control::Process;

constexpr Milliseconds k_answer{5'000};
/// For a lock, less than AnswerTimeout::k_checkpoint; and for the wake after an unlock.
constexpr Milliseconds k_longest{590'000};

struct Typed {
    std::string program, action{}; ///< by which name it was called, and what to do
    std::vector<std::string> pids{}, device_map{}, ignored{};
    Milliseconds timeout = k_longest;
    bool toggles = false, asks_state = false, asks_thread = false;
    bool begins = false, keeps = false, brings_back = false, is_ignored = false; ///< of cr_client
};

usage::Row row(const std::string& names, const usage::Value& value, const std::string& help) {
    return usage::brief({names, value, help});
}

usage::Table table_of(Typed& typed, bool is_client) {
    const auto read_timeout = [&typed](const std::string& text) {
        const auto number = parse_number<std::uint32_t>(text);
        if (number && *number != 0) typed.timeout = std::min(Milliseconds(*number), k_longest);
        return number ? std::string() : "'" + text + "' is not a number of milliseconds";
    };
    const auto action = usage::choice("lock|checkpoint|restore|unlock",
                                      [&typed](const std::string& word) { typed.action = word; });
    auto pid =
        usage::required(row("-p,--pid", usage::list("PID", typed.pids), "The process, or a thread of it"));
    const std::vector<usage::Row> of_client{
        pid,
        row("-i", usage::flag(typed.begins), "Check that the process has an agent"),
        row("-c", usage::flag(typed.keeps), "Put the process to sleep"),
        row("-r", usage::flag(typed.brings_back), "Wake it"),
        row("-s", usage::list("POINTER:SIZE", typed.ignored), "Ignored: all of it sleeps"),
        row("-m,-b", usage::flag(typed.is_ignored), "Ignored")};
    const std::vector<usage::Row> rows{
        pid,
        row("--action", action, "What to do"),
        row("-t,--timeout", usage::text("MS", read_timeout), "Fail if a lock takes longer (at most 590000)"),
        row("--device-map", usage::list("OLD=NEW", typed.device_map),
            "Restore on other GPUs, given by uuids"),
        row("--toggle", usage::flag(typed.toggles), "Lock and checkpoint, or restore and unlock"),
        row("--get-state", usage::flag(typed.asks_state), "Print running, locked, checkpointed or failed"),
        row("--get-restore-tid", usage::flag(typed.asks_thread), "Print the id of the thread that restores"),
        row("--launch-job,--job-file", {}, "Run the next cuda-checkpoint in PATH instead")};
    return {
        typed.program,
        "Does what the command of this name of NVIDIA, or of GPU-CR, does. The GPU memory of a process with "
        "gpu-sleep's agent sleeps before a lock, and wakes after the unlock.",
        {is_client ? "-i|-c|-r -p PID" : "--action ACTION|--toggle|--get-state|--get-restore-tid --pid PID"},
        {{"Options", is_client ? of_client : rows}},
        "",
        "0 done, 1 failed."};
}

/// The process that has a thread of this id. Errors: no_process, io_failed.
Result<Process> process_of(const std::string& id) {
    constexpr std::string_view k_key = "\nTgid:\t";
    const auto status = model::is_number(id) ? read_small_file("/proc/" + id + "/status") : std::nullopt;
    const auto at = status ? status->find(k_key) : std::string::npos;
    if (at == std::string::npos) return make_error(ErrorCode::no_process, "there is no process {}", id);
    return control::ProcFs().read(std::atoi(status->c_str() + at + k_key.size()));
}

/// Asks the agent of `process`, which has `steps` taken in its phase deep. Errors: what it answers; those of
/// Finder::connect().
Result<model::Report> ask(const Process& process, const protocol::Request& request, Milliseconds limit,
                          std::vector<std::function<Result<void>()>> steps = {}) {
    control::Finder finder;
    control::Target target{process, {}};
    std::vector<client::Question> questions;
    questions.push_back(control::question_for(finder, target, request, {.answer = limit, .grace = k_answer}));
    questions.back().deep_steps = std::move(steps);
    auto answer = std::move(client::ask_all(std::move(questions)).front());
    if (const auto* const error = client::error_of(answer)) return *error;
    return std::get<model::Report>(std::move(answer));
}

/// Leaves a process behind that wakes what slept for the lock, once `process` runs: it may be frozen until
/// the caller goes on.
void wake_later(const Process& process) {
    if (::fork() != 0) return;
    // Whose end callers may wait for. daemon() has the first three lead nowhere.
    ::syscall(SYS_close_range, STDERR_FILENO + 1U, ~0U, 0U);
    if (::daemon(0, 0) != 0) ::_exit(1);
    const control::ProcFs proc;
    const auto until = Clock::now() + k_longest;
    for (; Clock::now() < until && proc.is_running(process); std::this_thread::sleep_for(Milliseconds(100))) {
        if (proc.is_stopped(process)) continue;
        const auto now = ask(process, model::StatusRequest(), k_answer);
        if (!now) continue;
        model::WakeRequest wake;
        wake.asker = "cuda-checkpoint";
        wake.tags = now->lock_tags;
        if (wake.tags.empty() || ask(process, wake, wake.timeout)) break;
    }
    ::_exit(0);
}

/// Has the driver lock the process in the middle of a sleep of all that is awake, or of one of nothing: an
/// agent has pinned host memory out of reach, with which the driver restores no process, until it is asked.
Result<void> lock(const Checkpoint& driver, const Process& process, Milliseconds timeout) {
    const auto take = [driver, pid = process.pid, until = Clock::now() + timeout] {
        return driver.lock(pid, std::chrono::duration_cast<Milliseconds>(until - Clock::now()));
    };
    if (GPU_SLEEP_TRY(driver.state(process.pid)) != State::running) return take(); // it says why not
    const auto before = ask(process, model::StatusRequest(), k_answer);
    if (!before) return before.error().code == ErrorCode::no_agent ? take() : before.error();
    const bool is_awake = before->state == model::State::awake;
    model::SleepRequest sleep;
    sleep.asker = "cuda-checkpoint";
    sleep.timeout = timeout;
    sleep.bounds_all = sleep.for_lock = true;
    // From the lock on, for which the agent waits.
    if (is_awake && before->intercepts) sleep.on_touch = model::OnTouch::wake;
    Result<model::Report> locked = make_error(ErrorCode::refused, "it is not asked");
    if (before->intercepts && before->state != model::State::paused)
        locked = ask(process, sleep, timeout, {take});
    if (!locked && locked.error().code != ErrorCode::timed_out) {
        sleep.tags = {"none"};
        sleep.ignore_unknown_tags = sleep.ignore_inhibitors = true;
        locked = ask(process, sleep, timeout, {take});
    }
    if (locked) return {};
    // An earlier version of the agent, which has nothing out of reach.
    if (locked.error().code == ErrorCode::protocol_mismatch && is_awake && before->retained_bytes == 0)
        return take();
    wake_later(process);
    return locked.error();
}

Result<void> act(const Checkpoint& driver, const Process& process, std::string_view action,
                 const Typed& typed) {
    if (action == "lock") return lock(driver, process, typed.timeout);
    if (action == "checkpoint") return driver.checkpoint(process.pid);
    if (action == "restore") {
        std::vector<GpuPair> pairs;
        for (const auto& word : typed.device_map)
            pairs.push_back(GPU_SLEEP_TRY(control::parse_gpu_move(word)));
        GPU_SLEEP_TRY(driver.initialise());
        return driver.restore(process.pid, pairs);
    }
    GPU_SLEEP_TRY(driver.unlock(process.pid));
    wake_later(process);
    return {};
}

/// Takes each of `actions` for all processes before the next. If one fails, those locked here run again.
Result<void> act_on_all(const Checkpoint& driver, const std::vector<Process>& processes,
                        const std::vector<std::string_view>& actions, const Typed& typed) {
    std::vector<const Process*> locked;
    for (const auto action : actions)
        for (const auto& process : processes) {
            const auto done = act(driver, process, action, typed);
            if (done && action == "lock") locked.push_back(&process);
            if (done) continue;
            for (const auto* const each : locked) {
                static_cast<void>(act(driver, *each, "restore", typed)); // if it came so far
                static_cast<void>(act(driver, *each, "unlock", typed));
            }
            return make_error(done.error().code, "process {}: {}", process.pid, done.error().message);
        }
    return {};
}

Result<void> run(const Typed& typed) {
    std::vector<Process> processes;
    for (const auto& word : typed.pids) processes.push_back(GPU_SLEEP_TRY(process_of(word)));
    if (typed.begins || typed.keeps || typed.brings_back) {
        protocol::Request request = model::StatusRequest();
        if (typed.keeps) request = model::SleepRequest();
        if (typed.brings_back) request = model::WakeRequest();
        for (const auto& process : processes)
            static_cast<void>(GPU_SLEEP_TRY(ask(process, request, k_longest)));
        return {};
    }
    const auto driver = GPU_SLEEP_TRY(Checkpoint::load());
    if (!typed.action.empty()) return act_on_all(driver, processes, {typed.action}, typed);
    std::optional<State> first;
    for (const auto& process : processes) {
        constexpr const char* k_words[] = {"running", "locked", "checkpointed", "failed"};
        const auto state = GPU_SLEEP_TRY(driver.state(process.pid));
        const auto* const word = k_words[static_cast<std::size_t>(state)];
        if (typed.asks_state) fmt::print("{}\n", word);
        if (typed.asks_thread) fmt::print("{}\n", GPU_SLEEP_TRY(driver.restore_thread(process.pid)));
        const bool may_toggle = state == State::running || state == State::checkpointed;
        if (typed.toggles && (!may_toggle || first.value_or(state) != state))
            return make_error(ErrorCode::refused, "process {} is {}", process.pid, word);
        first = state;
    }
    if (!typed.toggles) return {};
    if (first == State::running) return act_on_all(driver, processes, {"lock", "checkpoint"}, typed);
    return act_on_all(driver, processes, {"restore", "unlock"}, typed);
}

/// Becomes the next cuda-checkpoint in PATH. Returns the exit status if there is none.
int become_next(char** argv) {
    std::istringstream directories(std::getenv("PATH") ? std::getenv("PATH") : "");
    std::error_code none;
    for (std::string directory; std::getline(directories, directory, ':');) {
        const auto file = std::filesystem::path(directory) / "cuda-checkpoint";
        if (!std::filesystem::equivalent(file, "/proc/self/exe", none)) ::execv(file.c_str(), argv);
    }
    cli::print_error("cuda-checkpoint: only NVIDIA's command runs jobs, and it is not in PATH\n");
    return exit_status::failed_awake;
}

} // namespace

int main(int argc, char** argv) {
    const bool is_client = argc > 0 && std::filesystem::path(argv[0]).filename() == "cr_client";
    const auto is_of_job = [](std::string_view word) {
        return word.starts_with("--launch-job") || word.starts_with("--job-file");
    };
    if (!is_client && std::any_of(argv, argv + argc, is_of_job)) return become_next(argv);
    Typed typed{is_client ? "cr_client" : "cuda-checkpoint"};
    if (const auto status = cli::parse(table_of(typed, is_client), argc, argv))
        return std::min(*status, exit_status::failed_awake);
    const auto asked = !typed.action.empty() + typed.toggles + typed.asks_state + typed.asks_thread +
                       typed.begins + typed.keeps + typed.brings_back;
    auto done = Result<void>(make_error(ErrorCode::invalid_argument, "say what to do, and one thing alone"));
    if (asked == 1) done = run(typed);
    if (!done) cli::print_error(fmt::format("{}: {}\n", typed.program, done.error().message));
    return cli::end_beside_driver(done ? exit_status::done : exit_status::failed_awake);
}
