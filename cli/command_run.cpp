// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Results of a request on standard output, failures on standard error. Signals as a descriptor.

#include "cli/command_run.hpp"

#include "base/text.hpp"
#include "cli/show/json.hpp"
#include "cli/show/render.hpp"
#include "cli/show/terminal.hpp"
#include "client/room.hpp"

#include <fmt/ranges.h>

#include <strings.h>
#include <sys/signalfd.h>

#include <cmath>
#include <cstdlib>
#include <iostream>

namespace gpu_sleep::cli {
namespace {

/// Says on standard error what would be lost. At a terminal asks whether to go on; returns the answer,
/// elsewhere true.
bool accepts(const std::string& program, bool is_quiet, const std::vector<control::Loss>& losses) {
    const bool is_asked = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
    if (losses.empty() || (is_quiet && !is_asked)) return true;
    std::string text;
    for (const auto& [process, bytes, tags] : losses)
        text += fmt::format("{}: {} would lose {} that it has not declared refillable: {}\n", program,
                            title(process), format_bytes(bytes),
                            printable(fmt::format("{}", fmt::join(tags, ", "))));
    if (is_asked) text += fmt::format("{}: go on? [y/N] ", program);
    print_error(text);
    if (!is_asked) return true;
    std::string answer;
    std::getline(std::cin, answer);
    if (::strcasecmp(answer.c_str(), "y") == 0 || ::strcasecmp(answer.c_str(), "yes") == 0) return true;
    print_error(fmt::format("{}: nothing was changed\n", program));
    return false;
}

/// Names the deed that has failed, for render_failure().
std::string_view purpose(const protocol::Request& request, ErrorCode failure) noexcept {
    const bool wakes = std::holds_alternative<model::WakeRequest>(request);
    if (failure == ErrorCode::outcome_unknown)
        return wakes ? "say whether {} is awake" : "say whether {} is asleep";
    if (std::holds_alternative<model::ReleaseRequest>(request)) return "have {} give back what it retains";
    if (std::holds_alternative<model::LiveRequest>(request)) return "move {} to host memory";
    if (const auto* const sleep = model::sleep_in(request); sleep && sleep->level == model::Level::pause)
        return "pause {}";
    return wakes ? "wake {}" : "put {} to sleep";
}

/// The sleep that is asked for; one of nothing where nothing sleeps; null for a wake.
const model::SleepRequest* sleep_of(const protocol::Request& request) {
    static const model::SleepRequest nothing;
    const auto* const sleep = model::sleep_in(request);
    return sleep || std::holds_alternative<model::WakeRequest>(request) ? sleep : &nothing;
}

/// Says what becomes of each process: failures on standard error, what was done on standard output. Not
/// thread-safe; what it is made of outlives it.
class Teller : public control::Listener {
public:
    Teller(const std::string& program, const control::Command& command, const OutputOptions& output)
        : program_(program), command_(command), output_(output),
          bar_(STDERR_FILENO, !output.quiet && ::isatty(STDERR_FILENO) == 1) {}

    void progress(const control::Process& process, const model::Progress& progress) override {
        bar_.show(process.pid, progress);
    }

    void waits(const control::Process& process, const std::string& why, Clock::time_point until) override {
        if (output_.quiet) return;
        bar_.wipe();
        print_error(fmt::format("{}: {} waits at most {} for GPU memory: {}\n", program_, title(process),
                                seconds_until(until), printable(why)));
    }

    void past_return(const control::Process& process) override {
        bar_.wipe();
        print_error(fmt::format(
            "{}: too late to cancel {}; waiting for it to finish; press Ctrl-C again to stop waiting\n",
            program_, title(process)));
    }

    void ended(const control::Outcome& outcome) override {
        bar_.end(outcome.process.pid);
        if (const auto* const error = client::error_of(outcome.answer)) {
            has_told_ = true;
            return print_error(render_failure(program_, purpose(command_.request, error->code), outcome));
        }
        print_error(render_failure(program_, "", outcome));
        const auto& report = std::get<model::Report>(outcome.answer);
        if (command_.whom.is_for_all() && !outcome.by_driver && !does_something(report)) return;
        has_told_ = true;
        if (is_silent_) return;
        print(outcome.by_driver ? render_driver_operation(outcome.process, numbers_.in(report))
                                : render_operation(outcome.process, numbers_.in(report), sleep_, is_live_));
    }

    /// Says what all come to, and that there was nothing to do if nothing was told; or prints all as JSON.
    void tell_all(const std::vector<control::Outcome>& outcomes) {
        bar_.wipe();
        const auto& whom = command_.whom;
        const auto sum = whom.is_joint() ? render_together(outcomes, sleep_) : render_total(outcomes);
        const bool has_failed = exit_status_of(outcomes) != exit_status::done;
        if (whom.is_joint() && has_failed) print_error(fmt::format("{}: {}", program_, sum));
        if (output_.json) print(to_json(program_, outcomes) + '\n');
        if (is_silent_) return;
        if (whom.is_for_all() && !has_told_) print("nothing to do\n");
        if (!whom.is_joint() || !has_failed) print(sum);
    }

private:
    /// The status says how the processes are, so it stays what it is if nobody gets to read the result.
    void print(const std::string& text) {
        const auto written = write_result(text);
        if (written || std::exchange(has_complained_, true)) return;
        print_error(fmt::format("{}: cannot write the result: {}; the exit status is valid all the same\n",
                                program_, written.error().message));
    }

    const std::string& program_;
    const control::Command& command_;
    const OutputOptions& output_;
    const model::SleepRequest* const sleep_ = sleep_of(command_.request);
    const bool is_live_ = std::holds_alternative<model::LiveRequest>(command_.request);
    const bool is_silent_ = output_.json || output_.quiet; ///< on standard output, in words
    ProgressBar bar_;
    control::GpuNumbers numbers_;
    bool has_complained_ = false; ///< of standard output
    bool has_told_ = false;       ///< of a process
};

/// Of the signals that ask to end, those that would. Blocked ones that are ignored could be taken, too.
sigset_t wanted_signals() noexcept {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction now {};
        if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
            ::sigaddset(&wanted, number);
    }
    return wanted;
}

UniqueFd open_signals() noexcept {
    const auto wanted = wanted_signals();
    return UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
}

// ---- Room on GPUs

constexpr const char* k_reclaim = "gpu-reclaim";

/// Has the wait for `need` be explained on standard error, once it has taken a moment.
void say_once(const std::string& program, control::Need& need) {
    need.waits = [program, bytes = need.bytes, since = Clock::now(), is_told = false](
                     const driver::Gpu& gpu, std::string_view why, Clock::time_point until) mutable {
        if (is_told || Clock::now() - since < control::k_silence) return;
        is_told = true;
        print_error(fmt::format("{}: waits at most {} for {} on GPU {}: {}\n", program, seconds_until(until),
                                format_bytes(bytes), gpu.index, printable(why)));
    };
}

std::string words(const control::Need& need, const control::Made& done) {
    std::string text;
    control::GpuNumbers numbers;
    for (const auto& outcome : done.outcomes)
        if (const auto* const report = std::get_if<model::Report>(&outcome.answer))
            text += render_operation(outcome.process, numbers.in(*report));
    text += render_total(done.outcomes);
    if (!done.error)
        text += fmt::format("GPU {}{} {} of {} free\n", done.room.gpu.index,
                            need.request.dry_run && !done.outcomes.empty() ? " now has" : " has",
                            format_bytes(done.room.gpu.free), format_bytes(done.room.gpu.total));
    return text;
}

/// Prints why processes did not sleep, and what is missing. Returns the exit status.
int print_errors(const std::string& program, const control::Need& need, const control::Made& done) {
    for (const auto& outcome : done.outcomes)
        print_error(render_failure(program, "put {} to sleep", outcome));
    if (!done.error) return exit_status::done;
    constexpr double k_least = 10; // who follows the advice is to have room then, also on a busy machine
    constexpr double k_margin = 5;
    const bool is_too_little = done.error->code == ErrorCode::out_of_device_memory;
    const auto purpose =
        fmt::format("{} {} on GPU {}", is_too_little ? "free" : "find out whether there is room for",
                    format_bytes(need.bytes), done.room.gpu.index);
    if (need.bytes > done.room.gpu.total) {
        print_error(fmt::format("{}: cannot {}: {}; ask for less\n", program, purpose, done.error->message));
    } else if (done.wait.value_or(0) > 0) {
        const bool was_given = program != k_reclaim && // which reads it from files
                               need.request.min_awake != model::WakeRequest().min_awake;
        print_error(fmt::format("{}: cannot {}: {}; wait with --wait {:.0f}s{}\n", program, purpose,
                                done.error->message, std::max(k_least, std::ceil(*done.wait) + k_margin),
                                was_given ? ", or give --min-awake 0s" : ""));
    } else {
        print_error(render_error(program, purpose, *done.error));
    }
    return traits(done.error->code).exit_status;
}

} // namespace

std::string seconds_until(Clock::time_point until) {
    const auto left = std::chrono::duration<double>(until - Clock::now()).count();
    return format_seconds(std::ceil(std::max(left, 1.)));
}

int run(const std::string& program, control::Command command, const OutputOptions& output,
        bool accepts_losses) {
    control::raise_descriptor_limit();
    auto dispatch = control::Dispatch::select(std::move(command));
    if (!dispatch) return tell_failure(program, output, dispatch.error());
    if (!accepts_losses && !accepts(program, output.quiet, dispatch->losses()))
        return exit_status::failed_awake;
    Signals signals;
    Teller teller(program, dispatch->command(), output);
    const auto outcomes = dispatch->carry_out(teller, signals);
    if (!outcomes) return tell_failure(program, output, outcomes.error());
    teller.tell_all(*outcomes);
    if (std::ranges::any_of(*outcomes, control::is_withdrawn)) signals.end_by_first();
    return end_beside_driver(exit_status_of(*outcomes));
}

int tell_all(const std::string& program, const OutputOptions& output,
             const std::vector<control::Outcome>& outcomes, const Words& words) {
    std::string text;
    for (const auto& outcome : outcomes) {
        print_error(render_failure(program, "ask {}", outcome));
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (report && !output.quiet) text += words(outcome.process, *report);
    }
    if (output.json) text = to_json(program, outcomes) + '\n';
    return print_result(program, text, exit_status_of(outcomes));
}

int tell_selected(const std::string& program, const control::Selection& whom,
                  const protocol::Request& request, const OutputOptions& output, const Words& words) {
    constexpr Milliseconds k_timeout{5'000};
    control::raise_descriptor_limit();
    control::Finder finder;
    auto targets = whom.words.empty()
                       ? control::find_all(finder, whom.user)
                       : control::find_each(finder, whom.words, {whom.user, whom.takes_several});
    if (!targets) return tell_failure(program, output, targets.error());
    auto outcomes = control::ask_each(finder, *std::move(targets), request, k_timeout);
    if (whom.words.empty()) control::drop_ended(outcomes);
    return tell_all(program, output, outcomes, words);
}

Signals::Signals() noexcept : Interruptions(open_signals()) {
    const auto wanted = wanted_signals();
    if (fd() >= 0) ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
}

void Signals::restore() noexcept {
    const auto wanted = wanted_signals();
    if (fd() >= 0) ::sigprocmask(SIG_UNBLOCK, &wanted, nullptr);
}

bool Signals::has_come() noexcept {
    signalfd_siginfo taken{};
    const bool is_taken = ::read(fd(), &taken, sizeof(taken)) == sizeof(taken);
    if (is_taken && first_ == 0) first_ = static_cast<int>(taken.ssi_signo);
    return first_ != 0;
}

void Signals::end_by_first() noexcept {
    if (first_ == 0) return;
    restore();
    ::raise(first_);
}

int end_beside_driver(int status) noexcept {
    if (BackgroundCall::is_any_under_way()) ::_exit(status); // all is written: nothing is buffered
    return status;
}

usage::Row wait_row(std::optional<Milliseconds>& wait, std::string_view standard) {
    return {"--wait", usage::duration(wait),
            fmt::format("With --need: retry this long while too little memory can be freed (default: {})",
                        standard)};
}

int run_need(control::Need need, const OutputOptions& output) {
    control::raise_descriptor_limit();
    if (!output.quiet) say_once(k_reclaim, need);
    const auto done = make_room(need);
    // Of all that is chosen, only a GPU can be a wrong word: a PID or a name is found or is not.
    if (!done && done.error().code == ErrorCode::invalid_argument)
        return usage_error(k_reclaim, "--gpu: " + done.error().message, output.json);
    if (!done) return tell_failure(k_reclaim, output, done.error());
    const int status = print_errors(k_reclaim, need, *done);
    std::string text;
    if (output.json)
        text = to_json(k_reclaim, done->outcomes, done->room, done->error) + '\n';
    else if (!output.quiet)
        text = words(need, *done);
    return print_result(k_reclaim, text, status);
}

int make_room_for_command(const std::string& program, const std::string& whom, Bytes bytes,
                          Milliseconds min_awake, std::optional<Milliseconds> wait) {
    const auto failed = [](int status) {
        return status == exit_status::usage ? status : exit_status::failed_awake;
    };
    const auto gpus =
        control::visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), std::getenv("CUDA_DEVICE_ORDER"));
    if (!gpus) return failed(tell_failure(program, {}, gpus.error()));
    control::Need need;
    need.bytes = bytes;
    need.until = Clock::now() + wait.value_or(Milliseconds(0));
    if (!wait) need.for_time = model::WakeRequest().min_awake;
    say_once(program, need);
    need.request = client::room_request(min_awake);
    need.request.asker = "room for " + whom;
    const auto make_all = [&](bool dry_run) {
        need.request.dry_run = dry_run;
        for (const auto& gpu : *gpus) {
            need.gpu = gpu.uuid;
            const auto done = make_room(need);
            if (!done) return tell_failure(program, {}, done.error());
            if (!dry_run && !done->outcomes.empty()) print_error(words(need, *done));
            if (const int status = print_errors(program, need, *done); status != exit_status::done)
                return status;
        }
        return exit_status::done;
    };
    // Nobody sleeps for a command that one of several GPUs has no room for.
    int status = gpus->size() > 1 ? make_all(true) : exit_status::done;
    if (status == exit_status::done) status = make_all(false);
    return status == exit_status::done ? status : failed(status);
}

} // namespace gpu_sleep::cli
