// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's life, the memory that the program has of it, and the way to its operations.

#include "agent.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "caught/caught.hpp"
#include "caught/share.hpp"
#include "driver/drain.hpp"
#include "hooks/catches.hpp"
#include "lock_order.hpp"
#include "model/environment.hpp"
#include "operations/giving_back.hpp"
#include "operations/sleep_operation.hpp"
#include "operations/turn.hpp"
#include "operations/wake_operation.hpp"
#include "settings.hpp"
#include "store/unshared_fd.hpp"

#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <shared_mutex>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

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

/// How touches are met unless a sleep says otherwise.
TouchRule rule_of_environment() {
    TouchRule rule;
    namespace environment = model::environment;
    if (const auto word =
            parsed_setting(environment::k_on_touch, "wait, wake or fail", model::parse_on_touch))
        rule.on_touch = *word;
    rule.gate = parsed_setting(environment::k_gate, "shut or checked", model::parse_gate_mode);
    const auto parse_limit = [](std::string_view text) {
        const auto count = parse_count<Milliseconds::rep>(text);
        return count && *count <= k_longest_duration.count() ? std::optional(Milliseconds(*count))
                                                             : std::nullopt;
    };
    rule.limit = parsed_setting(environment::k_touch_limit, "a number of milliseconds, at most 10000 days",
                                parse_limit);
    const auto releases = parsed_setting(environment::k_release_gil, "1 or 0", parse_switch);
    gate::Gate::instance().set_releases_python_lock(releases.value_or(true));
    // The log itself has read it long since, where it could not speak of it.
    static_cast<void>(
        parsed_setting(environment::k_log, "error, warning, info or debug", log::parse_severity));
    return rule;
}

/// The name by which commands are to find the process; may be empty.
std::string name_in_environment() {
    const auto parse_name = [](std::string_view text) {
        return model::is_valid_name(text) ? std::optional(std::string(text)) : std::nullopt;
    };
    return parsed_setting(model::environment::k_name, model::k_name_rule, parse_name).value_or(std::string());
}

/// Says once that work in a context of the program's own cannot be waited for.
void warn_of_own_context(const driver::Api& api) {
    static std::atomic<bool> looked{false};
    if (looked.exchange(true)) return;
    const std::shared_lock contexts(caught::contexts_mutex());
    if (!driver::has_own_context_current(api)) return;
    log::warning(
        "the program works in a context of its own: it must synchronize that itself before a sleep, in a "
        "before-sleep callback");
}

/// The contexts of `devices` in which there may be work: those of `primaries`, the program's own that are
/// known, and the one that it works in now. They stay as long as the caller holds caught::contexts_mutex().
std::vector<CUcontext> contexts_on(const driver::Api& api, driver::DeviceMask devices,
                                   const std::vector<driver::PrimaryContext>& primaries) {
    std::vector<CUcontext> contexts;
    for (const auto& primary : primaries)
        if ((devices >> primary.device() & 1) != 0) contexts.push_back(primary.get());
    for (int device = 0; device < driver::k_max_devices; ++device) {
        if ((devices >> device & 1) == 0) continue;
        const auto own = caught::own_contexts_of(device);
        contexts.insert(contexts.end(), own.begin(), own.end());
    }
    CUcontext current = nullptr;
    CUdevice device = 0;
    const bool has_current = api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current &&
                             api.cuCtxGetDevice(&device) == CUDA_SUCCESS && (devices >> device & 1) != 0;
    if (has_current && std::find(contexts.begin(), contexts.end(), current) == contexts.end())
        contexts.push_back(current);
    return contexts;
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
    return *agent;
}

Agent::Agent()
    : memory_(rule_of_environment()), parts_(memory_, name_in_environment(), &Agent::come_first_at_exit),
      server_(*this) {}

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
    agent->parts_.exiting = true;
    ProgramMemory::end();
    gate::Gate::instance().abandon();
    // A child that no handler of fork() knew of has the memory of the agent, too. The files are its parent's.
    if (::getpid() != agent->pid_) return;
    agent->memory_.remove_files();
    agent->server_.remove_endpoint();
}

void Agent::handle_fork_in_child() noexcept {
    // The child has the memory of the agent but none of its threads, and CUDA does not work in it: it starts
    // without.
    if (auto* agent = existing()) agent->server_.close_in_child();
    store::close_unshared_fds();
    g_agent.store(nullptr, std::memory_order_release);
    ProgramMemory::end();
    hooks::stop_catching();
    gate::Gate::instance().reset_in_child();
}

Result<void> Agent::start() {
    if (memory_.is_open()) return {};
    // Before the mutex: both take the loader's lock, which a thread in a library's constructor has, that may
    // come here too.
    auto api = driver::Api::load();
    if (!api) return std::move(api).error();
    GPU_SLEEP_DRIVER_TRY(*api, cuInit, "cannot initialise CUDA", 0);
    const MutexLock lock(start_mutex_);
    if (memory_.is_open()) return {};
    memory_.prepare(*api, [this](Milliseconds delay) { server_.tidy_within(delay); });
    pid_ = ::getpid();
    GPU_SLEEP_TRY(server_.start());
    gate::Gate::instance().set_waker([this] { wake_on_touch(); });
    static std::once_flag once;
    std::call_once(once, [] {
        ::pthread_atfork(lock_exit_list, unlock_exit_list, [] {
            unlock_exit_list();
            handle_fork_in_child();
        });
        come_first_at_exit();
    });
    memory_.open();
    return {};
}

Result<void> Agent::await_start() {
    if (memory_.is_open()) return {};
    // The socket is there a moment before all is ready.
    const MutexLock lock(start_mutex_);
    if (memory_.is_open()) return {};
    return make_error(ErrorCode::refused,
                      "the agent could not be started; the program's next call tries again");
}

Result<driver::DeviceAddress> Agent::allocate(int device, std::string_view tag, Bytes bytes) {
    GPU_SLEEP_TRY(start());
    if (parts_.exiting) return make_error(ErrorCode::context_lost, "the process is ending");
    warn_of_own_context(memory_.api());
    auto address = memory_.allocate(device, tag, bytes);
    if (address && hooks::catches() && !caught::note_own(*address, bytes, device)) {
        static_cast<void>(guarded([&] { return memory_.free(*address); }));
        address = out_of_memory();
    }
    return address;
}

Result<void> Agent::prepare_free(driver::DeviceAddress address) {
    const auto devices = memory_.devices_at(address);
    if (devices == 0) return {};
    // As the driver's own free does: nothing may still use memory that goes, and a capture must not be under
    // way. It may take long. Other devices may wait for what comes after the free.
    caught::let_contexts_end();
    const std::shared_lock stay(caught::contexts_mutex());
    if (caught::captures_open() != 0)
        return make_error(ErrorCode::capture_in_progress, "a CUDA graph is being captured: nothing is freed");
    const driver::RelaxedCaptureMode relaxed(memory_.api());
    const auto primaries = driver::active_contexts(memory_.api());
    if (!primaries) return primaries.error();
    driver::DrainLimits limits;
    limits.captures = Clock::now();
    limits.work = Clock::time_point::max();
    for (auto* const context : contexts_on(memory_.api(), devices, *primaries)) {
        auto drained = driver::drain(memory_.api(), std::vector{context}, limits);
        if (drained) continue;
        if (drained.error().code != ErrorCode::context_lost) return drained;
        log::debug("freeing without waiting: {}", drained.error().message); // no work runs in a broken one
    }
    return {};
}

Result<void> Agent::free(driver::DeviceAddress address) {
    if (parts_.exiting) return {}; // the driver takes everything back
    if (!hooks::catches()) {       // the memory has nothing else
        GPU_SLEEP_TRY(prepare_free(address));
        return memory_.free(address);
    }
    GPU_SLEEP_TRY(caught::check_own(address));
    GPU_SLEEP_TRY(prepare_free(address));
    return caught::free_own(address, [&] { return memory_.free(address); });
}

Result<void> Agent::allow_access(driver::DeviceAddress address, int device) {
    GPU_SLEEP_TRY(memory_.allow_access(address, device));
    if (hooks::catches()) caught::own_allowed(address, device);
    return {};
}

void Agent::set_name(std::string_view name) {
    server_.show_renamed();
    parts_.status.set_name(name);
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
    return parts_.status.report();
}

model::State Agent::state() noexcept {
    return parts_.status.state();
}

Result<server::SharedMemory> Agent::share(const model::ShareRequest& request) {
    return caught::share(request);
}

bool Agent::tidy() {
    return operations::tidy(parts_);
}

server::Outcome Agent::run(const server::Operation& operation, const server::ProgressSink& progress,
                           bool is_own, Clock::time_point since) {
    if (auto started = await_start(); !started) return model::Failure{started.error(), model::State::awake};
    const auto* request = std::get_if<model::SleepRequest>(&operation);
    auto report = guarded([&] {
        return request ? operations::SleepOperation(parts_, *request, progress, is_own).run()
                       : operations::WakeOperation(parts_, std::get<model::WakeRequest>(operation), progress,
                                                   since)
                             .run();
    });
    if (report) return *std::move(report);
    const auto& tags = request ? request->tags : std::get<model::WakeRequest>(operation).tags;
    return model::Failure{as_it_ends(std::move(report).error()), memory_.state(tags)};
}

Error Agent::as_it_ends(Error error) const {
    // The driver shuts down before the process is gone, and then refuses all.
    if (!parts_.exiting && error.driver_status != CUDA_ERROR_DEINITIALIZED) return error;
    return operations::process_is_ending();
}

void Agent::wake_on_touch() {
    if (wake_wanted_.exchange(true)) return;
    static std::atomic<bool> s_said{false};
    const auto tell = [this](const Error& error) {
        gate::Gate::instance().wake_refused();
        const auto trouble = "a touch could not wake this process yet: " + error.message;
        if (!s_said.exchange(true)) log::warning("{}", trouble);
        parts_.status.set_touch_trouble(trouble);
    };
    const auto hear = [this, tell](const server::Outcome& outcome) {
        wake_wanted_ = false;
        const auto* failure = std::get_if<model::Failure>(&outcome);
        if (!failure) s_said = false;
        if (failure && failure->error.code != ErrorCode::cancelled) return tell(failure->error);
        parts_.status.set_touch_trouble({});
    };
    const auto asked = guarded([&]() -> Result<void> {
        server_.submit_for_touch([] { return gate::Gate::instance().wants_waking(); }, tell, hear);
        return {};
    });
    if (!asked) wake_wanted_ = false; // the touch still waits, and asks again
}

} // namespace gpu_sleep::agent
