// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's callbacks: registered, run one after another on a thread of their own, each within a
// deadline.

#pragma once

#include "base/error.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "gate/gate.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::agent {

/// The arguments of callbacks. A gpu_sleep_event that is made of it points into it.
struct Event {
    int level = 0;
    std::vector<std::string> tags;
    std::vector<std::string> dropped_tags;
    bool deep = false;
    std::string argument{}; ///< of a callback by name
};

/// Thread-safe. Never destroyed: a late callback may still run when the process ends.
class Callbacks {
    struct Job;

public:
    /// Sets a function to call now and then while an operation waits for callbacks. Once, before all others.
    void while_waiting(std::function<void()> does) { while_waiting_ = std::move(does); }

    /// Returns the id for remove().
    int add(gpu_sleep_callback before_sleep, gpu_sleep_callback after_wake, void* user,
            Milliseconds deadline) {
        return add({0, before_sleep, after_wake, user, deadline});
    }
    /// The same for a callback by name; of several by one name the last counts.
    int add_named(std::string_view name, gpu_sleep_callback function, void* user, Milliseconds deadline) {
        return add({0, nullptr, nullptr, user, deadline, std::string(name), function});
    }
    /// Waits until the callbacks of `id` no longer run, unless the calling thread works for a callback.
    /// Errors: invalid_argument.
    [[nodiscard]] Result<void> remove(int id);

    /// Calls that are to be made, with the memory that they take.
    using Jobs = std::list<std::shared_ptr<Job>>;

    /// Before memory moves: one that overran its deadline may still work on the device, past the gate.
    /// Errors: timed_out.
    [[nodiscard]] Result<void> await_idle(Clock::time_point deadline) {
        MutexLock lock(mutex_);
        if (wait_until(deadline, [this]() GPU_SLEEP_REQUIRES(mutex_) { return is_idle(); })) return {};
        return make_error(ErrorCode::timed_out, "a callback of an earlier request is still running");
    }

    /// Runs the before-sleep callbacks in order. Errors: refused, timed_out. What those that returned 0, and
    /// one that is late, are owed if the sleep does not come is added to `owed`, also when a later one
    /// failed.
    [[nodiscard]] Result<void> run_before_sleep(const Event& event, Clock::time_point deadline, Jobs& owed);

    /// The after-wake callbacks as they are now, for run_after_wake().
    [[nodiscard]] Jobs draft_after_wake();
    /// Runs the after-wake callbacks in order. A late or failing one does not stop the others. Returns a
    /// sentence for each that failed, as far as there is memory for that.
    [[nodiscard]] std::vector<std::string> run_after_wake(const Jobs& jobs,
                                                          const std::shared_ptr<const Event>& event,
                                                          Clock::time_point deadline) noexcept;

    /// Runs the after-wake callbacks that are `owed`, with no tags, for a sleep that did not come. Those that
    /// a late callback, or one of them, holds up run when it has ended; `deadline`, and what they may take,
    /// bound only how long this waits for them.
    void call_off(Jobs owed, Clock::time_point deadline) noexcept;

    [[nodiscard]] bool has_before_sleep() noexcept {
        const MutexLock lock(mutex_);
        return std::any_of(entries_.begin(), entries_.end(),
                           [](const Entry& e) { return e.before_sleep != nullptr; });
    }
    [[nodiscard]] bool has_named(std::string_view name) { return find_named(name).has_value(); }
    /// Runs the callback by that name, and gives its reply, which may be empty. Errors: refused (its value is
    /// not 0, or there is none), timed_out.
    [[nodiscard]] Result<std::string> run_named(std::string_view name, std::string_view argument,
                                                Clock::time_point deadline);
    /// Keeps the reply of the callback by name that the calling thread works for. Errors: invalid_argument
    /// (it works for none, or the reply is too long).
    [[nodiscard]] Result<void> reply(std::string_view text);

    /// Keeps why the callback that the calling thread works for is going to refuse or fail. Errors:
    /// invalid_argument (it works for none).
    [[nodiscard]] Result<void> explain(std::string_view why);
    /// Lets the calling thread work for the callback that was given `event`, until it is discharged or that
    /// callback returns. Errors: invalid_argument (no such callback runs).
    [[nodiscard]] Result<void> enlist(const gpu_sleep_event* event);
    /// Errors: invalid_argument (not enlisted since the last time).
    [[nodiscard]] static Result<void> discharge() {
        if (!gate::Gate::instance().unshare_pass())
            return make_error(ErrorCode::invalid_argument, "this thread is not enlisted");
        return {};
    }
    /// Whether the calling thread runs a callback, or is enlisted for the one that runs.
    [[nodiscard]] static bool works_for_callback() noexcept {
        auto& gate = gate::Gate::instance();
        return gate.has_pass(gate::Seats::own());
    }

private:
    struct Entry {
        int id;
        gpu_sleep_callback before_sleep;
        gpu_sleep_callback after_wake;
        void* user;
        Milliseconds deadline;
        std::string name{}; ///< of a callback by name, which is neither of the two
        gpu_sleep_callback by_name = nullptr;
    };
    struct Job {
        Entry entry;
        gpu_sleep_callback function;
        std::shared_ptr<const Event> event; ///< null: with no tags
        int result = 0;
        bool done = false;
        bool is_owed = false; ///< nobody waits for its result
        std::string why{};    ///< in its own words, of a result other than 0; may be empty
        std::string reply{};  ///< of a callback by name
    };

    int add(Entry entry);
    [[nodiscard]] std::vector<Entry> snapshot() {
        const MutexLock lock(mutex_);
        return entries_;
    }
    [[nodiscard]] std::optional<Entry> find_named(std::string_view name);
    [[nodiscard]] bool is_idle() const noexcept GPU_SLEEP_REQUIRES(mutex_) { return !job_ && owed_.empty(); }
    [[nodiscard]] bool is_registered(int id) const noexcept GPU_SLEEP_REQUIRES(mutex_) {
        return std::any_of(entries_.begin(), entries_.end(), [=](const Entry& e) { return e.id == id; });
    }
    /// Says in words, as "VERB: reason", how `job` ended.
    [[nodiscard]] static std::string described(std::string_view verb, const Job& job);
    void take_owed() GPU_SLEEP_REQUIRES(mutex_);
    /// Returns whether `is_over` was true by the deadline.
    bool wait_until(Clock::time_point deadline, const std::function<bool()>& is_over)
        GPU_SLEEP_REQUIRES(mutex_);
    /// The callback's value. Errors: timed_out (it still runs, or an earlier one does), internal.
    [[nodiscard]] Result<int> run(const std::shared_ptr<Job>& job, Clock::time_point deadline);
    [[nodiscard]] Result<void> start_thread() GPU_SLEEP_REQUIRES(mutex_);
    void serve();
    /// One call of the program's function. Not unwound when the callback ends its thread (pthread_exit), as
    /// Python does once it is ending itself: that thread is parked.
    struct Invocation {
        Callbacks& callbacks;
        const Job& job;
        const gpu_sleep_event& event;
        gate::Pass& pass;
        int result = -1;
    };
    static void invoke(void* invocation);
    void lose_thread(gate::Pass& pass) noexcept;
    [[nodiscard]] int call(const Job& job);

    std::function<void()> while_waiting_ = [] {};
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< not held while a callback runs
    Condition changed_;
    std::vector<Entry> entries_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::shared_ptr<Job> job_ GPU_SLEEP_GUARDED_BY(mutex_); ///< waiting or running
    Jobs owed_ GPU_SLEEP_GUARDED_BY(mutex_);                ///< run next, before any other
    /// The events of the last callbacks, used in turn: a pointer that a program keeps does not soon become
    /// that of another event. Written by the thread of the callbacks alone, without the mutex.
    std::array<gpu_sleep_event, 64> events_{};
    const gpu_sleep_event*
        event_ GPU_SLEEP_GUARDED_BY(mutex_) = nullptr;    ///< that of the callback that runs; null for none
    std::uint64_t pass_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< and its number
    std::string why_ GPU_SLEEP_GUARDED_BY(mutex_);        ///< what it has explained
    std::string reply_ GPU_SLEEP_GUARDED_BY(mutex_);
    bool has_thread_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    int next_id_ GPU_SLEEP_GUARDED_BY(mutex_) = 1;
};

} // namespace gpu_sleep::agent
