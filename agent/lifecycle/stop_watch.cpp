// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The handlers, which only post, and the thread that sleeps, stops and wakes.

#include "lifecycle/stop_watch.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/threads.hpp"

#include <semaphore.h>
#include <sys/syscall.h>

namespace gpu_sleep::agent::lifecycle {
namespace {

// The state of the handlers, which may interrupt any thread: nothing here is made at run time but the
// semaphore, before the first handler can run.
constinit std::atomic<pid_t> g_owner{0};
constinit std::atomic<bool> g_stops{false};     ///< from SIGTSTP until the process goes on
constinit std::atomic<bool> g_continued{false}; ///< SIGCONT came before it has stopped
sem_t g_posted;

using Handler = void (*)(int);

Handler disposition_of(int signal) noexcept {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) != 0) return SIG_ERR;
    return (action.sa_flags & SA_SIGINFO) != 0 ? SIG_ERR : action.sa_handler; // one of the program's
}

/// Whether `handler` stands in place of `expected` now.
bool replace(int signal, Handler expected, Handler handler) noexcept {
    if (disposition_of(signal) != expected) return false;
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(signal, &action, nullptr) == 0;
}

void handle_continue(int /*signal*/) noexcept {
    g_continued = true;
}

void handle_stop(int /*signal*/) noexcept {
    const int kept = errno;
    if (::getpid() != g_owner) {
        ::kill(::getpid(), SIGSTOP); // a child in this process's memory, before it becomes another program
    } else if (!g_stops.exchange(true)) {
        g_continued = false;
        replace(SIGCONT, SIG_DFL, handle_continue);
        ::sem_post(&g_posted);
    }
    errno = kept;
}

/// Whether SIGCONT has come, also where no thread has run the handler yet. On a thread that blocks it.
bool has_continued() noexcept {
    sigset_t pending;
    const bool is_pending = ::sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
    return is_pending || g_continued;
}

/// Stops the process, all of it, before it returns; it returns when the process goes on. A signal to this
/// thread, since one to the process could be taken by another thread a moment later.
void stop_process() noexcept {
    ::syscall(SYS_tgkill, ::getpid(), ::gettid(), SIGSTOP);
}

Bytes awake_bytes(const std::vector<model::TagReport>& tags) {
    Bytes bytes = 0;
    for (const auto& tag : tags) bytes += tag.resident;
    return bytes;
}

} // namespace

std::optional<OnStop> parse_on_stop(std::string_view word) noexcept {
    if (word == "sleep") return OnStop::sleep;
    return word == "stop" ? std::optional(OnStop::stop) : std::nullopt;
}

Result<void> StopWatch::start(Agent agent, Milliseconds grace) {
    if (is_started_) return {};
    agent_ = std::move(agent);
    grace_ = grace;
    if (::sem_init(&g_posted, 0, 0) != 0)
        return errno_error(ErrorCode::internal, errno, "sem_init", "SIGTSTP");
    auto thread = start_quiet_thread("gpu-sleep-stop", [this] { watch_for_ever(); });
    if (!thread) return std::move(thread).error();
    thread->detach();
    g_owner = ::getpid();
    is_started_ = true;
    replace(SIGTSTP, SIG_DFL, handle_stop);
    return {};
}

std::string StopWatch::note() const {
    if (!is_started_) return {};
    return disposition_of(SIGTSTP) == handle_stop ? "it sleeps when SIGTSTP stops it (--on-stop sleep)"
                                                  : "--on-stop sleep has no effect: the program has a "
                                                    "handler of its own for SIGTSTP, or ignores it";
}

void StopWatch::leave_in_child() noexcept {
    replace(SIGTSTP, handle_stop, SIG_DFL);
    replace(SIGCONT, handle_continue, SIG_DFL);
}

void StopWatch::watch_for_ever() {
    for (;;)
        if (::sem_wait(&g_posted) == 0) stop_and_wake();
}

void StopWatch::stop_and_wake() {
    ignoring_errors([this] { sleep_in_time(); });
    const bool goes_on = has_continued(); // what is pending is discarded by the next line
    replace(SIGCONT, handle_continue, SIG_DFL);
    if (!goes_on) stop_process();
    g_stops = false;
    ignoring_errors([this] { wake(); });
}

void StopWatch::sleep_in_time() {
    const auto before = agent_.status();
    if (before.inhibited) return log::info("SIGTSTP: stopped awake, because sleeps are inhibited");
    model::SleepRequest request;
    request.timeout = grace_;
    request.bounds_all = true;
    const bool was_paused = agent_.is_paused();
    if (!was_paused) request.on_touch = model::OnTouch::wait; // what wakes it is that it goes on
    for (const auto& tag : before.tags)
        if (tag.resident > 0 && std::ranges::find(request.tags, tag.tag) == request.tags.end())
            request.tags.push_back(tag.tag);
    if (request.tags.empty()) return;
    const auto bytes = awake_bytes(before.tags);
    const auto estimate = static_cast<double>(bytes) * seconds_per_byte_;
    if (estimate > std::chrono::duration<double>(grace_).count() || (too_much_ && bytes >= *too_much_))
        return log::warning("SIGTSTP: stopped awake, because a sleep takes longer than {}",
                            format_seconds(std::chrono::duration<double>(grace_).count()));
    const auto outcome = agent_.run(request, [](const model::Progress&) { return !has_continued(); });
    if (const auto* const failure = std::get_if<model::Failure>(&outcome)) {
        if (failure->error.code == ErrorCode::cancelled && has_continued())
            return log::warning("SIGTSTP: the process was not asleep yet when it was continued. If a batch "
                                "system stopped it, that system's grace time is too short");
        if (failure->error.code != ErrorCode::timed_out)
            return log::info("SIGTSTP: stopped awake: {}", failure->error.message);
        too_much_ = bytes;
        return log::warning("SIGTSTP: stopped awake: {}", failure->error.message);
    }
    const auto& report = std::get<model::Report>(outcome);
    if (!report.changed) return;
    // A paused process goes on only when somebody wakes it.
    if (was_paused) return;
    too_much_.reset();
    seconds_per_byte_ = report.times.total / static_cast<double>(bytes);
    for (auto& tag : request.tags)
        if (std::ranges::find(slept_, tag) == slept_.end()) slept_.push_back(std::move(tag));
}

void StopWatch::wake() {
    if (slept_.empty()) return;
    constexpr std::chrono::hours k_for_good{24 * 365};
    model::WakeRequest request;
    request.tags = slept_;
    request.wait = k_for_good;
    request.live_bytes = 0;
    const auto outcome = agent_.run(request, [](const model::Progress&) { return !g_stops.load(); });
    const auto* const failure = std::get_if<model::Failure>(&outcome);
    if (!failure) return slept_.clear();
    if (g_stops) return; // and tries again when it goes on
    log::warning("the process goes on, but could not be woken yet: {}", failure->error.message);
    // Whatever stands against it may be over when the program uses its memory. A tag that has woken is not
    // named, or it would go back to sleep.
    for (const auto& tag : agent_.status().tags)
        if (tag.resident > 0) std::erase(slept_, tag.tag);
    if (slept_.empty()) return;
    model::SleepRequest rule;
    rule.tags = std::exchange(slept_, {});
    rule.on_touch = model::OnTouch::wake;
    static_cast<void>(agent_.run(rule, [](const model::Progress&) { return true; }));
}

} // namespace gpu_sleep::agent::lifecycle
