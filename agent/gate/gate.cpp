// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Holding and opening, and closing: waiting until nobody is inside.

#include "gate/gate.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/memory.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace gpu_sleep::gate {

namespace {

int membarrier(int command) noexcept {
    return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

constexpr Milliseconds k_short_wait{10};   ///< held no longer, a thread keeps Python's lock
constexpr Milliseconds k_look_again{50};   ///< whether it may be given up by now
constexpr Milliseconds k_say_after{3'000}; ///< a touch that waits longer says so
constexpr Milliseconds k_wake_again{1'000};
constexpr Milliseconds k_wake_soonest{10}; ///< again, by touches of little time

} // namespace

constinit std::atomic<bool> Gate::s_closed{false};
constinit std::atomic<DeepStage> Gate::s_deep_stage{DeepStage::none};

Gate& Gate::instance() noexcept {
    alignas(Gate) static std::byte storage[sizeof(Gate)];
    static Gate* const gate = new (storage) Gate; // never destroyed: threads pass it until the very end
    return *gate;
}

std::optional<std::vector<Named::Span>> Gate::sleeping_for(const Seat* seat) const {
    const MutexLock lock(mutex_);
    const auto* const waiter = waiters_.find(seat);
    if (!waiter || phase_ != Phase::asleep) return std::nullopt;
    std::vector<Named::Span> spans;
    for (const auto& span : waiter->named.spans)
        if (rule_.names_sleeping({{span}, true})) spans.push_back(span);
    return spans;
}

Gate::Activity Gate::activity() const noexcept {
    Activity activity;
    for (const auto* seat = Seats::first(); seat; seat = seat->next) {
        const bool works_for_operation = has_pass(*seat);
        activity.is_inside |= !works_for_operation && seat->calls.is_inside();
        activity.touches +=
            works_for_operation ? seat->counted.load(std::memory_order_relaxed) : seat->count();
    }
    return activity;
}

void Gate::set_waker(std::function<void()> waker) {
    std::shared_ptr<const std::function<void()>> shared;
    if (waker) shared = std::make_shared<const std::function<void()>>(std::move(waker));
    const MutexLock lock(mutex_);
    waker_ = std::move(shared);
}

void Gate::publish(Phase phase) {
    phase_ = phase;
    ++changes_;
    holds_captures_ = false;
    if (phase == Phase::open) {
        waiters_.clear(); // nobody waits: those that jumped out of it are gone
        rule_.sleeping.clear();
        rule_.lists_all = true;
        rule_.paused = false;
        last_wake_ = {}; // it was not in vain: the next sleep is another
    }
    s_closed.store(phase != Phase::open, std::memory_order_seq_cst);
    notify();
}

void Gate::set_phase(Phase phase, std::optional<HoldRule> rule) {
    const MutexLock lock(mutex_);
    if (abandoned_) return;
    if (rule) rule_ = *std::move(rule);
    publish(phase);
}

void Gate::abandon() noexcept {
    const MutexLock lock(mutex_);
    abandoned_ = true;
    rule_.on_touch = model::OnTouch::fail;
    // Waiting calls are judged again. Memory that a transaction was changing may be only partly mapped: calls
    // that touch it fail, too.
    publish(phase_ == Phase::open ? Phase::open : Phase::asleep);
    rule_.checked = false;
}

void Gate::reset_in_child() noexcept {
    Seats::keep_own_alone();
    if (t_seat) t_seat->shares_pass = 0; // numbers begin anew
    s_closed = false;
    s_deep_stage = DeepStage::none;
    new (this) Gate; // where it stood, for another thread may have held the mutex at the fork
}

void Gate::share_pass(std::uint64_t number) noexcept {
    auto& seat = Seats::own();
    if (!has_pass(seat)) seat.stop_counting();
    seat.shares_pass.store(number, std::memory_order_relaxed);
}

bool Gate::unshare_pass() noexcept {
    auto& seat = Seats::own();
    const bool worked_for_operation = has_pass(seat);
    const bool has_shared = seat.shares_pass.exchange(0, std::memory_order_relaxed) != 0;
    if (worked_for_operation && !has_pass(seat)) seat.count_again();
    return has_shared;
}

bool Gate::has_pass(const Seat& seat) const noexcept {
    if (seat.has_pass.load(std::memory_order_relaxed)) return true;
    const auto shared = seat.shares_pass.load(std::memory_order_relaxed);
    return shared != 0 && shared == pass_.load(std::memory_order_relaxed);
}

void end_wait(Waiter& waiter) noexcept {
    Gate::instance().forget(waiter);
}

void Gate::forget(Waiter& waiter) noexcept {
    const SignalsBlocked signals;
    const MutexLock lock(mutex_);
    waiters_.remove(waiter);
}

void Gate::forget(Named::Span gone) noexcept {
    const MutexLock lock(mutex_);
    rule_.forget(gone);
    if (phase_ != Phase::asleep || abandoned_ || rule_.holds_anything() || holds_all()) return;
    publish(Phase::open);
}

Gate::Verdict Gate::judge(Touch touch, const Named& named, bool records) const {
    if (holds_all()) return rule_.on_touch == model::OnTouch::fail ? Verdict::fail : Verdict::hold;
    if (touch == Touch::asks) return Verdict::pass;
    if (touch == Touch::captures && holds_captures_) return Verdict::hold;
    if (touch == Touch::ends && phase_ != Phase::draining) return Verdict::pass;
    switch (phase_) {
    case Phase::open: return Verdict::pass;
    case Phase::draining: return Verdict::hold;
    case Phase::mapped:
        return touch == Touch::takes && !rule_.may_touch_sleeping(touch, named) ? Verdict::pass
                                                                                : Verdict::hold;
    case Phase::asleep: break;
    }
    if (records) return Verdict::pass; // else the capture could not end before all is awake
    if (rule_.checked) {
        if (begins_capture(touch) || !rule_.may_touch_sleeping(touch, named)) return Verdict::pass;
    }
    return rule_.on_touch == model::OnTouch::fail ? Verdict::fail : Verdict::hold;
}

// No condition variable: that counts those who wait, and one may leave by a jump.
void Gate::wait(Clock::time_point until, std::optional<SignalsBlocked>& signals) {
    const auto seen = changed_.load(std::memory_order_relaxed);
    const auto left = std::max(until - Clock::now(), Clock::duration::zero());
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec limit{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    unlocked(signals, [&] { ::syscall(SYS_futex, &changed_, FUTEX_WAIT_PRIVATE, seen, &limit); });
}

void Gate::notify() noexcept {
    ++changed_;
    ::syscall(SYS_futex, &changed_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

// False when the touch has waited for as long as it may.
bool Gate::hold(Waiter& waiter, std::optional<SignalsBlocked>& signals) {
    const auto moved = [&]() GPU_SLEEP_REQUIRES(mutex_) {
        return waiter.released || changes_ != waiter.change;
    };
    const auto short_end = Clock::now() + k_short_wait;
    while (!moved() && Clock::now() < short_end) wait(short_end, signals);
    if (moved()) return true;

    std::optional<interpreter_lock::PythonUnlocked> python_unlocked;
    if (releases_python_lock_ && waiter.touch == Touch::submits)
        unlocked(signals, [&] { python_unlocked.emplace(loader_lock_); });
    const auto undisturbed = [](const auto& body) { // by a jump away from what it locks
        const SignalsBlocked no_jump;
        ignoring_errors(body);
    };
    bool in_time = true;
    while (!moved()) {
        const auto now = Clock::now();
        const bool asks = phase_ == Phase::asleep && rule_.on_touch == model::OnTouch::wake;
        // Its limit is for what comes after the wake that it asks for: with no time at all it still has that.
        const bool is_late = rule_.limit && now - waiter.since >= *rule_.limit;
        in_time = !asks || !is_late || refusals_ == waiter.refusals;
        if (!in_time) break;
        // Whoever has little time asks in it, however recently another did in vain.
        const auto again =
            rule_.limit ? std::clamp(*rule_.limit / 2, k_wake_soonest, k_wake_again) : k_wake_again;
        if (asks && now - last_wake_ >= again) {
            last_wake_ = now;
            const auto waker = waker_;
            if (waker) unlocked(signals, [&] { undisturbed(*waker); }); // it is asked again
            continue;
        }
        // Where the touch asks for the wake itself, who is in its way is said by what asks.
        if (!waiter.said && !asks && phase_ == Phase::asleep && now - waiter.since >= k_say_after) {
            waiter.said = true;
            const bool sleeps = rule_.something_sleeps() || holds_all();
            const auto* const touched =
                rule_.checked && !holds_all() ? rule_.first_sleeping(waiter.named) : nullptr;
            const auto address = touched ? touched->begin : 0;
            const auto say = [&] {
                const auto why = touched  ? fmt::format("it was given the sleeping address {:#x}", address)
                                 : sleeps ? "memory of this process is asleep"
                                          : "this process is paused";
                log::warning("{} waits because {}; wake it with: gpu-wake {}", waiter.entry_point, why,
                             ::getpid());
            };
            unlocked(signals, [&] { undisturbed(say); }); // nobody waits for standard error
            continue;
        }
        auto next = now + again;
        if (asks && rule_.limit && !is_late) next = std::min(next, waiter.since + *rule_.limit);
        const bool is_due = python_unlocked && python_unlocked->is_due();
        if (is_due) next = std::min(next, now + k_look_again);
        wait(next, signals);
        if (is_due && !moved()) unlocked(signals, [&] { python_unlocked->give_up_if_safe(); });
    }
    unlocked(signals, [&] { python_unlocked.reset(); }); // which may wait for Python's lock
    return in_time;
}

bool Gate::admit_with_pass(const Inspector* inspector) const {
    const auto sleeps = [this] {
        const MutexLock lock(mutex_);
        return rule_.something_sleeps();
    };
    if (!inspector || !sleeps()) return true;
    const auto named = guarded([&]() -> Result<Named> { return inspector->inspect(); });
    if (!named) return false;
    const MutexLock lock(mutex_);
    return rule_.lists_all ? !rule_.names_sleeping(*named) : named->spans.empty();
}

bool Gate::admit(Seat& seat, Touch touch, const char* entry_point, const Inspector* inspector,
                 std::optional<CancellationHold>& until_done) {
    if (has_pass(seat) && !holds_all()) return admit_with_pass(inspector);
    until_done.emplace();
    // A handler may call the driver while its thread waits in another call. What is listed outlives a jump.
    const auto here = GPU_SLEEP_HERE;
    const auto* const own = seat.waiter;
    const bool is_free = own && (own->frame == 0 || is_left(own->frame, here, own->returns_to));
    const auto page = is_free ? Pages() : Pages::map(sizeof(Waiter)); // a handler may not call the allocator
    const auto end = [](Waiter* of_page) { std::destroy_at(of_page); };
    const std::unique_ptr<Waiter, decltype(end)> another(page ? ::new (page.bytes().data()) Waiter : nullptr,
                                                         end);
    Waiter inner;
    Waiter& waiter = is_free ? *seat.waiter : another ? *another : inner;
    std::optional<SignalsBlocked> no_jump;
    if (&waiter == &inner) no_jump.emplace();
    std::optional<SignalsBlocked> signals(std::in_place); // whose handlers would want the mutex
    const MutexLock lock(mutex_);
    waiters_.remove(waiter);
    waiter = {entry_point, touch, &seat, here, return_of(here)};
    std::optional<Phase> looked_in; // what a handle names may have been mapped since
    std::optional<bool> records;
    const auto judged = [&]() GPU_SLEEP_REQUIRES(mutex_) {
        // Looking may need other locks, so ours is let go; the phase may be another afterwards.
        if (inspector && !records && touch == Touch::submits && phase_ == Phase::asleep && !holds_all())
            unlocked(signals, [&] { records = inspector->records(); });
        if (inspector && looked_in != phase_ && wants_names(touch)) {
            looked_in = phase_;
            Named found;
            unlocked(signals, [&] { ignoring_errors([&] { found = inspector->inspect(); }); });
            waiter.named = std::move(found); // others may look at it
        }
        return judge(touch, waiter.named, records.value_or(false));
    };
    if (judged() == Verdict::pass) {
        waiter.frame = 0;
        until_done.reset();
        return true;
    }
    waiter.since = Clock::now();
    waiter.refusals = refusals_;
    Verdict verdict = Verdict::hold;
    for (;;) {
        waiters_.add(waiter);
        verdict = judged();
        waiter.names_sleeping = false;
        if (waiter.released && phase_ == Phase::draining) {
            // Memory that slept before this transaction still sleeps, and a pause goes on.
            waiter.names_sleeping = rule_.paused || rule_.may_touch_sleeping(touch, waiter.named);
            if (!waiter.names_sleeping) verdict = Verdict::pass;
        }
        if (verdict != Verdict::hold) break;
        const bool is_inside = seat.calls.is_inside(); // else it asks; a hook of ours may do both
        const std::array frames{seat.calls.frame.load(), seat.questions.frame.load()};
        const std::array returns{seat.calls.returns_to.load(), seat.questions.returns_to.load()};
        const auto questions = seat.questions.word.exchange(0);
        if (is_inside) seat.calls.leave();
        waiter.change = changes_;
        waiter.released = false; // and if it was, it came too late
        if (!hold(waiter, signals)) verdict = Verdict::fail;
        // Under the mutex, as every change of the phase: who closes the gate next sees this thread inside.
        if (is_inside) ++seat.calls.word;
        seat.questions.word.store(questions);
        seat.calls.set_frame(frames[0], returns[0]); // a handler may have called meanwhile
        seat.questions.set_frame(frames[1], returns[1]);
        if (verdict == Verdict::fail) break;
    }
    waiters_.remove(waiter);
    waiter.frame = 0;
    return verdict == Verdict::pass;
}

bool step_aside(Milliseconds time, Touch touch, const char* entry_point) noexcept {
    auto* const seat = t_seat;
    const bool is_inside = seat && seat->calls.is_inside();
    if (!is_inside) {
        std::this_thread::sleep_for(time);
        return true;
    }
    const auto frame = seat->calls.frame.load(), returns_to = seat->calls.returns_to.load();
    seat->calls.leave();
    std::this_thread::sleep_for(time);
    ++seat->calls.word;
    seat->calls.set_frame(frame, returns_to);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::optional<CancellationHold> until_done;
    return Gate::is_open() || Gate::instance().admit(*seat, touch, entry_point, nullptr, until_done);
}

Gate::Gate() {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

bool Gate::is_empty() noexcept {
    // A thread that was let through and has not entered yet is on its way. It enters under the mutex.
    const MutexLock lock(mutex_);
    if (waiters_.is_any_released()) return false;
    for (const auto* seat = Seats::first(); seat; seat = seat->next) {
        if (seat == t_seat) continue;
        const bool is_inside = seat->calls.is_inside();
        if (holds_all() ? is_inside || seat->questions.is_inside() : is_inside && !has_pass(*seat))
            return false;
    }
    return true;
}

Result<void> Gate::close(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    if (is_abandoned()) return make_error(ErrorCode::context_lost, "the process is ending");
    const auto before = phase();
    set_phase(Phase::draining);
    auto empty = empty_out(deadline, keep_going);
    if (!empty) set_phase(before);
    return empty;
}

// From here on every thread either is seen inside or sees the gate closed.
Result<void> Gate::empty_out(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 && membarrier(MEMBARRIER_CMD_GLOBAL) != 0)
        return make_error(ErrorCode::refused, "the kernel has no membarrier system call, so the agent cannot "
                                              "tell which threads are launching work");
    return wait_empty(deadline, keep_going);
}

Result<void> Gate::go_deep(HoldRule rule, Clock::time_point deadline,
                           const std::function<bool()>& keep_going) {
    {
        const MutexLock lock(mutex_);
        if (abandoned_) return make_error(ErrorCode::context_lost, "the process is ending");
        rule_ = std::move(rule);
        set_deep_stage(DeepStage::shut);
        publish(Phase::asleep);
    }
    return empty_out(deadline, keep_going);
}

void Gate::leave_deep() noexcept {
    const MutexLock lock(mutex_);
    set_deep_stage(DeepStage::none);
    ++changes_;
    notify();
}

Result<void> Gate::wait_empty(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    constexpr std::chrono::microseconds k_look{20};
    constexpr int k_looks_per_question = 500;
    for (int look = 0; !is_empty(); ++look) {
        if (Clock::now() >= deadline)
            return make_error(ErrorCode::timed_out, "a call to the CUDA driver did not return in time: it is "
                                                    "a long copy, or waits for something");
        if (look % k_looks_per_question == 0 && !keep_going())
            return make_error(ErrorCode::cancelled, "the request was withdrawn");
        std::this_thread::sleep_for(k_look);
    }
    return {};
}

} // namespace gpu_sleep::gate
