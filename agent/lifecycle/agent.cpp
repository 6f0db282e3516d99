// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's life, the memory that the program has of it, and the way to its operations.

#include "lifecycle/agent.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "common/interception.hpp"
#include "common/settings.hpp"
#include "intercepted/calls.hpp"
#include "intercepted/memory.hpp"
#include "model/environment.hpp"
#include "registry/registry.hpp"
#include "sharing/sharing.hpp"
#include "store/host_budget.hpp"

#include <cxxabi.h>

namespace gpu_sleep::agent {
namespace {

std::atomic<Agent*> g_agent{nullptr};
Mutex g_agent_mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::starting); ///< one making at a time
std::atomic<bool> g_moves_exit_handler{false};
/// Held while the C library's list of exit handlers is changed, and over every fork(): the lock of that list
/// is copied as it is, and a child that got it locked would hang when it ends.
Mutex g_exit_list_mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);

void lock_exit_list() GPU_SLEEP_ACQUIRE(g_exit_list_mutex) {
    g_exit_list_mutex.lock();
}
// In a child of fork() its only thread is the one that locked it, which clang cannot know.
void unlock_exit_list() GPU_SLEEP_UNCHECKED {
    g_exit_list_mutex.unlock();
}

/// Inhibits sleeps from the start if the environment says so.
void inhibit_by_environment(operations::Inhibitors& inhibitors) {
    const auto limit = limit_setting(model::environment::k_inhibit);
    if (limit) inhibitors.set(limit->count() == 0 ? std::nullopt : limit);
}

/// How touches are met unless a sleep says otherwise.
TouchRule rule_of_environment() {
    TouchRule rule;
    namespace environment = model::environment;
    if (const auto word =
            parsed_setting(environment::k_on_touch, "wait, wake or fail", model::parse_on_touch))
        rule.on_touch = *word;
    rule.gate = parsed_setting(environment::k_gate, "shut or checked", model::parse_gate_mode);
    rule.limit = limit_setting(environment::k_touch_limit);
    gate::Gate::instance().set_releases_python_lock(
        switch_setting(environment::k_release_gil).value_or(true));
    // The log itself has read it long since, where it could not speak of it.
    static_cast<void>(parsed_setting(environment::k_log, log::k_severities, log::parse_severity));
    return rule;
}

/// The tags that it is for; null of a release, which is for all.
const std::vector<std::string>* tags_of(const server::Operation& operation) noexcept {
    if (const auto* const sleep = model::sleep_in(operation)) return &sleep->tags;
    return std::visit(
        [](const auto& request) -> const std::vector<std::string>* {
            if constexpr (requires { request.tags; })
                return &request.tags;
            else
                return nullptr;
        },
        operation);
}

/// Returns how many bytes of each tag the environment wants in host memory from the start.
std::map<std::string, Bytes> live_bytes_of_environment() {
    const auto own_tag = setting(model::environment::k_tag);
    const auto parse = [&](std::string_view text) {
        auto sizes =
            model::parse_live_bytes(text, model::is_valid_tag(own_tag) ? own_tag : model::k_default_tag);
        return sizes ? std::optional(*std::move(sizes)) : std::nullopt;
    };
    return parsed_setting(model::environment::k_live_bytes, "a size, or TAG=SIZE, separated by commas", parse)
        .value_or(std::map<std::string, Bytes>());
}

/// How long memory must not have changed until host memory is prepared for it; none: it is not.
Milliseconds prepare_of_environment() {
    const auto parse_seconds = [](std::string_view text) {
        const auto count = parse_number<std::uint32_t>(text);
        return count ? std::optional(Milliseconds(std::chrono::seconds(*count))) : std::nullopt;
    };
    return parsed_setting(model::environment::k_prepare, "a number of seconds", parse_seconds)
        .value_or(Milliseconds(0));
}

/// The wake that a touch asks for: whether it makes room.
model::WakeRequest touch_request_of_environment() {
    namespace environment = model::environment;
    model::WakeRequest request;
    request.make_room = switch_setting(environment::k_make_room).value_or(false);
    request.min_awake = limit_setting(environment::k_min_awake).value_or(request.min_awake);
    request.live_bytes = 0;
    request.with_sharers = true;
    return request;
}

/// A name that the environment gives; may be empty.
std::string name_in_environment(const char* variable) {
    const auto parse_name = [](std::string_view text) {
        return model::is_valid_name(text) ? std::optional(std::string(text)) : std::nullopt;
    };
    return parsed_setting(variable, model::k_name_rule, parse_name).value_or(std::string());
}

/// The error of a call of the C API during a deep sleep, if touches fail.
Error asleep_deeply() {
    return make_error(ErrorCode::refused, "the process sleeps deeply, and calls that need the GPU fail");
}

/// Where the journal listens; empty: nothing is written to it.
std::string journal_of_environment() {
    const auto parse_journal = [](std::string_view text) -> std::optional<std::string> {
        if (text == "0") return std::string();
        if (text == "1") return journal::k_socket;
        return text.starts_with('/') ? std::optional(std::string(text)) : std::nullopt;
    };
    return parsed_setting(model::environment::k_journal, "1, 0 or the path of a socket", parse_journal)
        .value_or(journal::k_socket);
}

} // namespace

Agent* Agent::existing() noexcept {
    return g_agent.load(std::memory_order_acquire);
}

Agent& Agent::instance() {
    if (auto* agent = existing()) return *agent;
    const MutexLock lock(g_agent_mutex);
    if (auto* agent = existing()) return *agent;
    auto* agent = new Agent; // never destroyed: its threads, and late callers, may outlive static destructors
    g_agent.store(agent, std::memory_order_release);
    static std::once_flag once;
    std::call_once(once, [] {
        ::pthread_atfork(lock_exit_list, unlock_exit_list, [] {
            unlock_exit_list();
            handle_fork_in_child();
        });
    });
    return *agent;
}

Agent::Agent()
    : memory_(rule_of_environment(),
              bytes_setting(model::environment::k_retain).value_or(std::numeric_limits<Bytes>::max())),
      operations_(memory_, name_in_environment(model::environment::k_name), &Agent::come_first_at_exit),
      journal_(journal_of_environment()), server_(*this),
      touch_waker_(operations_, server_, touch_request_of_environment()),
      host_budget_(bytes_setting(model::environment::k_host_budget)) {
    operations_.status.note(&operations::ProcessStatus::Notes::group,
                            name_in_environment(model::environment::k_group));
    inhibit_by_environment(operations_.inhibitors);
    store::HostBudget::own().limit(host_budget_);
    for (const auto& [tag, bytes] : live_bytes_of_environment()) memory_.set_live_bytes(tag, bytes);
    operations_.preparation.settled_after = prepare_of_environment();
}

void Agent::come_first_at_exit() noexcept {
    // The handler's registration is its own, as if of one more library, so that it alone can be taken back:
    // which runs it, for nothing. Source: Itanium C++ ABI, 3.3.6.
    static char s_registration;
    const MutexLock lock(g_exit_list_mutex);
    g_moves_exit_handler = true;
    abi::__cxa_finalize(&s_registration);
    g_moves_exit_handler = false;
    if (abi::__cxa_atexit(&Agent::handle_exit, nullptr, &s_registration) != 0) handle_exit(nullptr);
}

void Agent::handle_exit(void* /*unused*/) noexcept {
    auto* agent = existing();
    if (!agent || g_moves_exit_handler) return;
    agent->memory_.end_with_process();
    gate::Gate::instance().abandon();
    // A child that no handler of fork() knew of has the memory of the agent, too. The files are its parent's.
    if (::getpid() != agent->pid_) return;
    agent->memory_.remove_files();
    agent->server_.remove_endpoint();
}

void Agent::handle_fork_in_child() noexcept {
    StandardNumbers::leave_in_child();
    auto* const agent = existing();
    if (agent && agent->pid_ == 0) {
        // It may start in the child, by what the program has set. That has opened no hold, and inhibits
        // nothing.
        agent->operations_.begin_anew_in_child();
        return ignoring_errors([agent] { inhibit_by_environment(agent->operations_.inhibitors); });
    }
    // The child has the memory of the agent but none of its threads, and CUDA does not work in it: it starts
    // without.
    if (agent) agent->server_.close_in_child();
    close_unshared_fds();
    store::HostBudget::own().begin_anew_in_child(); // an agent of the child's begins with it
    g_agent.store(nullptr, std::memory_order_release);
    ProgramMemory::end();
    stop_intercepting();
    registry::begin_anew_in_child();
    gate::Gate::instance().reset_in_child();
    lifecycle::StopWatch::leave_in_child();
}

Result<void> Agent::watch_for_stops() {
    namespace environment = model::environment;
    const auto on_stop = parsed_setting(environment::k_on_stop, "sleep or stop", lifecycle::parse_on_stop);
    const auto grace = limit_setting(environment::k_stop_grace);
    if (on_stop != lifecycle::OnStop::sleep) return {};
    constexpr Milliseconds k_grace{5'000};
    return stop_watch_.start(
        {[this](server::Operation operation, server::ProgressSink progress) {
             return server_.post(std::move(operation), std::move(progress));
         },
         [this] { return status(); },
         [this] { return memory_.with_lock([](const LockedMemory& locked) { return locked.is_paused(); }); }},
        grace.value_or(k_grace));
}

Result<void> Agent::start() {
    if (memory_.is_started()) return {};
    // Before the mutex: all take the loader's lock, which a thread in a library's constructor has, that may
    // come here too.
    const auto api = GPU_SLEEP_TRY(driver::Api::load());
    GPU_SLEEP_TRY(driver::initialise(api));
    auto deep_means = operations::DeepSleep::find_means();
    const MutexLock lock(start_mutex_);
    if (memory_.is_started()) return {};
    operations_.deep.set_means(std::move(deep_means));
    memory_.set_up(
        api, [this](Milliseconds delay) { server_.tidy_within(delay); },
        [](int device) {
            const auto own = registry::books().contexts.made_on(device);
            return own.empty() ? nullptr : own.front();
        });
    pid_ = ::getpid();
    GPU_SLEEP_TRY(server_.start());
    gate::Gate::instance().set_waker([this] { touch_waker_.wake(); });
    static std::once_flag once;
    std::call_once(once, [] { come_first_at_exit(); });
    memory_.start();
    if (auto watched = watch_for_stops(); !watched)
        log::error("SIGTSTP will stop this process without a sleep: {}", watched.error().message);
    if (operations_.preparation.settled_after.load() != Milliseconds(0)) memory_.tidy_within(Milliseconds(0));
    return {};
}

Result<void> Agent::await_start() {
    if (memory_.is_started()) return {};
    // The socket is there a moment before all is ready.
    const MutexLock lock(start_mutex_);
    if (memory_.is_started()) return {};
    return make_error(ErrorCode::refused,
                      "the agent could not be started; the program's next call tries again");
}

Result<driver::DeviceAddress> Agent::allocate(int device, std::string_view tag, Bytes bytes) {
    GPU_SLEEP_TRY(start());
    const gate::Question question("gpu_sleep_alloc");
    if (!question.admitted()) return asleep_deeply();
    if (memory_.is_ending()) return make_error(ErrorCode::context_lost, "the process is ending");
    return intercepted::allocate_own(memory_, device, tag, bytes);
}

Result<void> Agent::free(driver::DeviceAddress address) {
    const gate::Question question("gpu_sleep_free");
    if (memory_.is_ending()) return {}; // the driver takes everything back
    if (!question.admitted()) return asleep_deeply();
    return intercepted::free_own(memory_, address);
}

Result<void> Agent::allow_access(driver::DeviceAddress address, int device) {
    const gate::Question question("gpu_sleep_allow_access");
    if (!question.admitted()) return asleep_deeply();
    if (memory_.is_started() && memory_.is_ending())
        return make_error(ErrorCode::context_lost, "the process is ending");
    return intercepted::allow_own(memory_, address, device);
}

server::Outcome Agent::run_here(server::Operation operation) {
    if (Callbacks::works_for_callback())
        return model::Failure{
            make_error(ErrorCode::refused, "a callback may not put its process to sleep or wake it"),
            model::State::awake};
    if (auto started = start(); !started) return model::Failure{started.error(), model::State::awake};
    return server_.post(std::move(operation));
}

model::Report Agent::status() {
    auto report = operations_.status.report();
    report.transitions = transitions_.counts();
    report.asleep_byte_seconds = transitions_.asleep_byte_seconds();
    report.steps = log::recent_steps();
    for (auto& note : {stop_watch_.note(), idle_timer_.note(report.idle_seconds.has_value())})
        if (!note.empty()) report.notes.push_back(note);
    if (!report.tags.empty() && operations_.is_unguarded()) report.notes.emplace_back(k_not_intercepted);
    return report;
}

Result<server::SharedMemory> Agent::share(const model::SharedMemoryRequest& request, pid_t asker) {
    auto shared = sharing::share(request, asker);
    const bool sleeps = !shared && shared.error().code == ErrorCode::refused;
    if (sleeps && request.question == model::SharingQuestion::wake) touch_waker_.wake_for_sharer();
    return shared;
}

const char* Agent::work_thread_name() noexcept {
    if (operations_.deep.is_deep()) return k_work_thread_deep;
    switch (state()) {
    case model::State::awake: return k_work_thread;
    case model::State::partial: return k_work_thread_partial;
    case model::State::paused: return k_work_thread_paused;
    case model::State::asleep:
    case model::State::damaged: break;
    }
    return k_work_thread_asleep;
}

Milliseconds Agent::pause_between_tries() const noexcept {
    constexpr Milliseconds k_while_deep{1'000}; // each starts a process, to look for room
    return operations_.deep.is_deep() ? k_while_deep : Milliseconds(0);
}

void Agent::ended(const server::Job& job, const server::Outcome& outcome) noexcept {
    const auto seconds = seconds_since(job.since);
    const auto transition = transitions_.count(job.operation, outcome, seconds);
    if (!transition) return;
    ignoring_errors([&] {
        const auto event = transitions_.describe(*transition, job, outcome, operations_.status.notes().name);
        lifecycle::write_journal(journal_, *transition, outcome, seconds, event);
    });
}

void Agent::inhibit(const model::InhibitRequest& request) noexcept {
    if (request.release)
        operations_.inhibitors.lift();
    else
        operations_.inhibitors.set(request.time);
}

Milliseconds Agent::look() noexcept {
    const auto pause = idle_timer_.pause_between_looks();
    if (!memory_.is_started()) return pause;
    if (operations_.idle.look()) memory_.tidy_within(Milliseconds(0));
    store::HostBudget::own().stay_counted();
    ignoring_errors([this] { sleep_if_due(); });
    return pause;
}

void Agent::sleep_if_due() {
    if (!idle_timer_.is_due(operations_.idle.seconds().value_or(0))) return;
    const auto state = operations_.status.state();
    const bool may_sleep = (model::is_resident(state) || state == model::State::partial) &&
                           !operations_.inhibitors.now() && !operations_.turnstile.is_held();
    if (!may_sleep) return;
    const auto next = idle_timer_.next();
    server_.submit_if_free(
        next.request, [this, next](const server::Outcome& outcome) { idle_timer_.note_end(outcome, next); });
}

bool Agent::tidy() {
    server_.record(transitions_.take_events());
    return operations_.tidy();
}

server::Outcome Agent::run(const server::Operation& operation, const server::Asking& asking) {
    if (auto started = await_start(); !started) return model::Failure{started.error(), model::State::awake};
    const auto* const sleep = model::sleep_in(operation);
    if (sleep && sleep->host_budget && !sleep->dry_run) adopt_host_budget(*sleep->host_budget);
    auto report = guarded([&] { return operations_.run(operation, asking); });
    if (report && sleep && sleep->dry_run) // for gpu-reclaim --why
        if (auto note = idle_timer_.note(report->idle_seconds.has_value()); !note.empty())
            report->notes.push_back(std::move(note));
    if (report) return *std::move(report);
    const auto* const tags = tags_of(operation);
    const auto state = tags ? memory_.state(*tags) : memory_.state();
    return model::Failure{as_it_ends(std::move(report).error()), state};
}

void Agent::adopt_host_budget(Bytes most) {
    most = std::min(most, host_budget_.value_or(most));
    const bool is_limit = most != std::numeric_limits<Bytes>::max();
    store::HostBudget::own().limit(is_limit ? std::optional(most) : std::nullopt);
}

Error Agent::as_it_ends(Error error) const {
    // The driver shuts down before the process is gone, and then refuses all.
    if (!memory_.is_ending() && error.driver_status != CUDA_ERROR_DEINITIALIZED) return error;
    return operations::process_is_ending();
}

} // namespace gpu_sleep::agent
