// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running the program's code, and giving up on it when it is late.

#include "callbacks/callbacks.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "common/park.h"

namespace gpu_sleep::agent {
namespace {

constexpr std::size_t k_most_of_a_reason = 1000;
constexpr std::size_t k_longest_reply = 64 * k_kib;

std::vector<const char*> pointers_of(const std::vector<std::string>& names) {
    std::vector<const char*> pointers;
    pointers.reserve(names.size());
    for (const auto& name : names) pointers.push_back(name.c_str());
    return pointers;
}

} // namespace

Result<void> Callbacks::explain(std::string_view why) {
    std::string shown(std::min(why.size(), k_most_of_a_reason), '\0');
    shown.resize(print_into(shown, why));
    const bool may = works_for_callback();
    const MutexLock lock(mutex_);
    if (!may || !event_)
        return make_error(ErrorCode::invalid_argument, "this thread is not working for a callback");
    why_ = std::move(shown);
    return {};
}

Result<void> Callbacks::reply(std::string_view text) {
    if (text.size() > k_longest_reply)
        return make_error(ErrorCode::invalid_argument, "a reply has at most {} bytes", k_longest_reply);
    std::string kept(text);
    const bool may = works_for_callback();
    const MutexLock lock(mutex_);
    if (!may || !event_ || !event_->argument)
        return make_error(ErrorCode::invalid_argument, "this thread is not working for a callback by name");
    reply_ = std::move(kept);
    return {};
}

Result<void> Callbacks::enlist(const gpu_sleep_event* event) {
    const MutexLock lock(mutex_);
    if (!event || event != event_)
        return make_error(ErrorCode::invalid_argument,
                          "the event does not belong to a callback that is running");
    gate::Gate::instance().share_pass(pass_);
    return {};
}

int Callbacks::add(Entry entry) {
    const MutexLock lock(mutex_);
    entry.id = next_id_;
    entries_.push_back(std::move(entry));
    return next_id_++;
}

Result<void> Callbacks::remove(int id) {
    MutexLock lock(mutex_);
    const auto removed = std::erase_if(entries_, [=](const Entry& e) { return e.id == id; });
    if (removed == 0) return make_error(ErrorCode::invalid_argument, "there is no callback {}", id);
    if (!works_for_callback())
        changed_.wait(mutex_, [&]() GPU_SLEEP_REQUIRES(mutex_) { return !job_ || job_->entry.id != id; });
    return {};
}

std::optional<Callbacks::Entry> Callbacks::find_named(std::string_view name) {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                    [=](const Entry& e) { return e.by_name && e.name == name; });
    return found == entries_.rend() ? std::nullopt : std::optional(*found);
}

Result<std::string> Callbacks::run_named(std::string_view name, std::string_view argument,
                                         Clock::time_point deadline) {
    auto entry = find_named(name);
    if (!entry) return make_error(ErrorCode::refused, "the program has removed its callback '{}'", name);
    Event event;
    event.argument = argument;
    const auto function = entry->by_name;
    const auto job = std::make_shared<Job>(
        Job{*std::move(entry), function, std::make_shared<const Event>(std::move(event))});
    const auto result = run(job, deadline);
    if (!result) return result.error();
    if (*result != 0)
        return make_error(ErrorCode::refused, "the callback '{}' of the program {}", name,
                          described("failed", *job));
    return std::move(job->reply);
}

Result<void> Callbacks::run_before_sleep(const Event& event, Clock::time_point deadline, Jobs& owed) {
    GPU_SLEEP_TRY(await_idle(deadline));
    const auto told = std::make_shared<const Event>(event);
    for (const auto& entry : snapshot()) {
        // Memory for its after-wake callback is taken before it is called: none may be needed afterwards.
        Jobs its;
        if (entry.after_wake)
            its.push_back(std::make_shared<Job>(Job{entry, entry.after_wake, {}, 0, false, true}));
        if (entry.before_sleep) {
            const auto job = std::make_shared<Job>(Job{entry, entry.before_sleep, told});
            auto answer = guarded([&] { return run(job, deadline); });
            if (!answer) {
                // It may still make ready, and is told afterwards that it need not.
                owed.splice(owed.end(), its);
                return std::move(answer).error();
            }
            if (*answer != 0)
                return make_error(ErrorCode::refused,
                                  "a before-sleep callback of the program {}; try again later",
                                  described("refused", *job));
        }
        owed.splice(owed.end(), its);
    }
    return {};
}

Callbacks::Jobs Callbacks::draft_after_wake() {
    const MutexLock lock(mutex_);
    Jobs jobs;
    for (const auto& entry : entries_)
        if (entry.after_wake) jobs.push_back(std::make_shared<Job>(Job{entry, entry.after_wake, {}}));
    if (!jobs.empty()) static_cast<void>(start_thread()); // else run() tries again
    return jobs;
}

std::vector<std::string> Callbacks::run_after_wake(const Jobs& jobs,
                                                   const std::shared_ptr<const Event>& event,
                                                   Clock::time_point deadline) noexcept {
    std::vector<std::string> failures;
    for (const auto& job : jobs) {
        job->event = event;
        auto answer = guarded([&] { return run(job, deadline); });
        ignoring_errors([&] {
            if (!answer)
                failures.push_back(std::move(answer).error().message);
            else if (*answer != 0)
                failures.push_back(
                    fmt::format("an after-wake callback of the program {}", described("failed", *job)));
        });
    }
    return failures;
}

void Callbacks::call_off(Jobs owed, Clock::time_point deadline) noexcept {
    constexpr Milliseconds k_grace{250}; // the request's own time may be over
    deadline = std::max(deadline, Clock::now() + k_grace);
    MutexLock lock(mutex_);
    std::erase_if(owed, [this](const auto& job)
                            GPU_SLEEP_REQUIRES(mutex_) { return !is_registered(job->entry.id); });
    if (owed.empty()) return;
    const bool is_held_up = !is_idle();
    Milliseconds together{0};
    bool is_bounded = true;
    for (const auto& job : owed) {
        together += job->entry.deadline;
        is_bounded &= job->entry.deadline.count() > 0;
    }
    owed_.splice(owed_.end(), owed);
    if (const auto started = start_thread(); !started) {
        owed_.clear(); // nobody ever would
        lock.unlock();
        return log::warning("callbacks could not be told that the sleep was called off: {}",
                            started.error().message);
    }
    changed_.notify_all();
    if (is_held_up) return;
    if (is_bounded) deadline = std::min(deadline, Clock::now() + together);
    const bool is_over = wait_until(deadline, [this]() GPU_SLEEP_REQUIRES(mutex_) { return is_idle(); });
    lock.unlock();
    if (!is_over) log::warning("a callback of the program did not return in time");
}

bool Callbacks::wait_until(Clock::time_point deadline, const std::function<bool()>& is_over) {
    constexpr Milliseconds k_between{500};
    while (!changed_.wait_until(mutex_, std::min(deadline, Clock::now() + k_between), is_over)) {
        if (Clock::now() >= deadline) return false;
        mutex_.unlock();
        while_waiting_();
        mutex_.lock();
    }
    return true;
}

std::string Callbacks::described(std::string_view verb, const Job& job) {
    return job.why.empty() ? fmt::format("{} (it returned {})", verb, job.result)
                           : fmt::format("{}: {}", verb, job.why);
}

void Callbacks::take_owed() {
    while (!job_ && !owed_.empty()) {
        if (is_registered(owed_.front()->entry.id)) job_ = std::move(owed_.front());
        owed_.pop_front();
    }
    if (!job_) changed_.notify_all(); // all of them were removed meanwhile
}

Result<void> Callbacks::start_thread() {
    if (has_thread_) return {};
    auto thread = guarded([this] { return start_quiet_thread("gpu-sleep-call", [this] { serve(); }); });
    if (!thread) return std::move(thread).error();
    thread->detach();
    has_thread_ = true;
    return {};
}

Result<int> Callbacks::run(const std::shared_ptr<Job>& job, Clock::time_point deadline) {
    const auto& entry = job->entry;
    MutexLock lock(mutex_);
    GPU_SLEEP_TRY(start_thread());
    if (!wait_until(deadline, [this]() GPU_SLEEP_REQUIRES(mutex_) { return is_idle(); }))
        return make_error(ErrorCode::timed_out, "a callback of an earlier request is still running");
    // Its own time begins when it can: one that is late takes nothing from the next.
    if (entry.deadline.count() > 0) deadline = std::min(deadline, Clock::now() + entry.deadline);
    if (!is_registered(entry.id)) return 0; // removed meanwhile
    job_ = job;
    changed_.notify_all();
    if (!wait_until(deadline, [&] { return job->done; }))
        return make_error(ErrorCode::timed_out, "a callback of the program did not return in time");
    return job->result;
}

int Callbacks::call(const Job& job) {
    static const Event s_nothing;
    const auto& told = job.event ? *job.event : s_nothing;
    const auto tags = pointers_of(told.tags);
    const auto dropped = pointers_of(told.dropped_tags);
    gate::Pass pass;
    auto& event = events_[pass.number() % events_.size()];
    event = {sizeof(gpu_sleep_event),
             told.level,
             tags.size(),
             tags.data(),
             dropped.size(),
             dropped.data(),
             told.deep ? 1 : 0,
             job.entry.by_name ? told.argument.c_str() : nullptr};
    {
        const MutexLock lock(mutex_);
        event_ = &event;
        pass_ = pass.number();
        why_.clear();
        reply_.clear();
    }
    Invocation invocation{*this, job, event, pass};
    gpu_sleep_call_or_park(invoke, &invocation, [](void* lost) {
        const auto& its = *static_cast<Invocation*>(lost);
        its.callbacks.lose_thread(its.pass);
    });
    return invocation.result;
}

// Nothing in it needs unwinding: the unwinder of the program and ours, which is hidden, must not meet.
void Callbacks::invoke(void* argument) {
    auto& invocation = *static_cast<Invocation*>(argument);
    invocation.result = invocation.job.function(&invocation.event, invocation.job.entry.user);
}

void Callbacks::lose_thread(gate::Pass& pass) noexcept {
    pass.end(); // those that share it, too, are held from here on
    const MutexLock lock(mutex_);
    job_->result = -1;
    job_->done = true;
    job_.reset();
    event_ = nullptr;
    has_thread_ = false; // the next callback gets another
    if (!owed_.empty() && !start_thread()) owed_.clear();
    changed_.notify_all();
}

void Callbacks::serve() {
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return !is_idle(); });
        if (!job_) take_owed();
        if (!job_) continue;
        const auto job = job_;
        lock.unlock();
        const auto result = guarded([&]() -> Result<int> { return call(*job); });
        const int value = result ? *result : -1; // what throws has not done its part
        lock.lock();
        event_ = nullptr;
        job->why = std::move(why_);
        job->reply = std::move(reply_);
        job->result = value;
        job->done = true;
        job_.reset();
        changed_.notify_all();
        if (!job->is_owed || value == 0) continue;
        lock.unlock();
        log::warning("an after-wake callback of the program {}", described("failed", *job));
        lock.lock();
    }
}

} // namespace gpu_sleep::agent
