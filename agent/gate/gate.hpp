// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate: every call of the program that touches the GPU passes it, and is held while memory sleeps; in a
// deep sleep so is every other call of the driver. Of that it knows how far it is, and else nothing of
// memory, of the driver or of requests.

#pragma once

#include "base/error.hpp"
#include "base/guard.hpp"
#include "base/thread_safety.hpp"
#include "base/threads.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "gate/hold_rule.hpp"
#include "gate/seats.hpp"
#include "interpreter_lock/python_lock.hpp"
#include "model/model.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_sleep::gate {

/// How a call asks for its addresses, only when somebody wants to know. Errors are told by known == false.
class Inspector {
public:
    virtual ~Inspector() = default;
    /// May throw for want of memory. Called without any lock of the gate.
    [[nodiscard]] virtual Named inspect() const = 0;
    /// Whether the call, made now by this thread, gives the GPU no work but is recorded in a graph, and the
    /// driver does not look at what it names. Called without any lock of the gate.
    [[nodiscard]] virtual bool records() const noexcept { return false; }
};

/// How far a deep sleep is, which only the gate knows.
enum class DeepStage : std::uint8_t {
    none,
    shut, ///< the program's calls wait, those that only ask among them; the agent may call the driver
    away, ///< nor may the agent, for the driver's checkpoint of the process is next, or lasts
    deep, ///< checkpointed, as far as is known: nothing of the process is on a GPU
};

/// Thread-safe. One operation at a time closes and opens it. Never destroyed.
///
/// Passing costs no locked instruction: each thread says in its own seat that it is inside, then looks
/// whether the gate is closed; who closes it makes every thread's order of the two visible (membarrier), and
/// pays for that. Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED.
class Gate {
public:
    static Gate& instance() noexcept;

    /// How a closed gate is: which touches it holds.
    enum class Phase : std::uint8_t {
        open,     ///< holds nothing
        draining, ///< a transaction is under way: holds everything, but releases the oldest touch when asked
        asleep,   ///< holds everything, or, when checked, what names a sleeping address or none that is known
        mapped,   ///< memory is back, callbacks run: lets through what takes memory alone, and of that what
                  ///< names nothing that still sleeps
    };

    /// Holds new captures too, until the phase changes. All other calls pass as before, so that captures
    /// under way can end.
    void hold_captures() {
        const MutexLock lock(mutex_);
        if (abandoned_) return;
        holds_captures_ = true;
        s_closed.store(true, std::memory_order_seq_cst);
    }
    /// Holds every touch from here on, and waits until the threads inside have left.
    /// Errors: timed_out, cancelled, refused (the kernel has no membarrier), context_lost (the process is
    /// ending); the gate is as it was before.
    [[nodiscard]] Result<void> close(Clock::time_point deadline, const std::function<bool()>& keep_going);
    /// Waits until nobody is inside; the same errors.
    [[nodiscard]] Result<void> wait_empty(Clock::time_point deadline,
                                          const std::function<bool()>& keep_going);
    /// Lets the touch that has waited longest through, alone; none that begins a capture or ends a context.
    /// False when none waits.
    bool release_oldest() {
        const MutexLock lock(mutex_);
        const bool has_released = waiters_.release_oldest();
        if (has_released) notify();
        return has_released;
    }
    /// How many touches release_oldest() could let through.
    [[nodiscard]] std::uint64_t releasable() const {
        const MutexLock lock(mutex_);
        return waiters_.releasable();
    }

    /// The transaction is over and memory sleeps.
    void keep_shut(HoldRule rule) { set_phase(Phase::asleep, std::move(rule)); }
    /// The memory that slept at these addresses was freed. Opens the gate if nothing sleeps any more.
    void forget(Named::Span gone) noexcept;
    /// The thread whose this is waits no more.
    void forget(Waiter& waiter) noexcept;
    /// Memory is mapped again and callbacks are about to run. `rule` says what still sleeps.
    void let_allocate(HoldRule rule) { set_phase(Phase::mapped, std::move(rule)); }
    void open() { set_phase(Phase::open); }
    /// Opens it for good, and every later touch of sleeping memory fails: the process is ending.
    void abandon() noexcept;
    /// In a child of fork(): a gate that nobody has passed.
    void reset_in_child() noexcept;

    /// From here on the driver is out of the program's reach, in a deep sleep: every touch is held, whatever
    /// it names, and so are questions. Waits until no thread is inside, nor asks, but the caller. The phase
    /// is asleep from here on, by that rule. Errors: those of close(); leave_deep() ends it then, too.
    [[nodiscard]] Result<void> go_deep(HoldRule rule, Clock::time_point deadline,
                                       const std::function<bool()>& keep_going);
    /// How far it is, between go_deep() and leave_deep().
    static void set_deep_stage(DeepStage stage) noexcept {
        s_deep_stage.store(stage, std::memory_order_seq_cst);
    }
    /// The driver is within reach again. The phase stays.
    void leave_deep() noexcept;
    [[nodiscard]] static DeepStage deep_stage() noexcept {
        return s_deep_stage.load(std::memory_order_seq_cst);
    }
    /// Whether calls wait for the end of a deep sleep. Each call of the program looks.
    [[nodiscard]] static bool holds_all() noexcept {
        return s_deep_stage.load(std::memory_order_relaxed) != DeepStage::none;
    }

    [[nodiscard]] Phase phase() const {
        const MutexLock lock(mutex_);
        return phase_;
    }
    /// Whether abandon() was called.
    [[nodiscard]] bool is_abandoned() const {
        const MutexLock lock(mutex_);
        return abandoned_;
    }
    [[nodiscard]] bool is_checked() const {
        const MutexLock lock(mutex_);
        return phase_ == Phase::asleep && rule_.checked;
    }
    [[nodiscard]] Waiting waiting() const {
        const MutexLock lock(mutex_);
        return waiters_.figures();
    }
    /// Whether touches wait for the process to be woken, as they asked.
    [[nodiscard]] bool wants_waking() const {
        const MutexLock lock(mutex_);
        return !waiters_.empty() && rule_.on_touch == model::OnTouch::wake;
    }
    /// How many touches there were so far, held ones among them, and whether one is inside; but for those of
    /// threads that have a pass, which work for an operation. Takes no lock.
    struct Activity {
        std::uint64_t touches = 0;
        bool is_inside = false;
    };
    [[nodiscard]] Activity activity() const noexcept;
    /// Returns the sleeping memory that the touch of the thread in `seat` names; an empty list if that is not
    /// known; nothing if the gate holds no touch because of sleeping memory.
    [[nodiscard]] std::optional<std::vector<Named::Span>> sleeping_for(const Seat* seat) const;

    /// Sets the function that is called, outside of any lock, when a touch wants the process woken. While the
    /// process stays asleep, it is called at most once a second, or twice within the limit of a touch. It
    /// must return at once.
    void set_waker(std::function<void()> waker);
    /// The wake that the waker began has failed, and the process still sleeps. A touch whose limit is over
    /// fails then.
    void wake_refused() {
        const MutexLock lock(mutex_);
        ++refusals_;
        notify();
    }
    /// The wake that the waker began has ended because no touch waited any more. The next touch asks at once.
    void wake_cancelled() {
        const MutexLock lock(mutex_);
        last_wake_ = {};
        notify(); // somebody may wait since
    }
    /// Whether threads that wait give up Python's lock. Those alone that submit work do: a library may hold a
    /// mutex of its own over any other call, as PyTorch's allocator does over those that take memory, and
    /// whoever got Python's lock meanwhile might wait for that mutex and keep it. For the same reason not
    /// while the loader's lock may be theirs.
    void set_releases_python_lock(bool releases) noexcept { releases_python_lock_ = releases; }

    [[nodiscard]] interpreter_lock::LoaderLock& loader_lock() noexcept { return loader_lock_; }

    /// Looked at by every call of the program, so it is found without a call of ours.
    [[nodiscard]] static bool is_open() noexcept { return !s_closed.load(std::memory_order_relaxed); }
    /// The way in when the gate may be closed; the seat says inside. False: the touch fails, and the seat is
    /// left. A thread with a pass never waits, for a wake may wait for that thread: its touch fails if it is
    /// known to name sleeping memory. `until_done` is given to one that has waited: a cancellation that came
    /// meanwhile would strike amid the driver's call, which it would not have met.
    [[nodiscard]] bool admit(Seat& seat, Touch touch, const char* entry_point, const Inspector* inspector,
                             std::optional<CancellationHold>& until_done);

    /// Lets the calling thread through while the pass of this number lives; see Pass.
    void share_pass(std::uint64_t number) noexcept;
    /// Ends that, unless it has ended. False when the thread has shared none since the last time.
    bool unshare_pass() noexcept;
    [[nodiscard]] bool has_pass(const Seat& seat) const noexcept;

private:
    friend class Pass;
    enum class Verdict : std::uint8_t { pass, hold, fail };

    Gate();
    void set_phase(Phase phase, std::optional<HoldRule> rule = {}); ///< the rule there is, if none is given
    /// Has threads that wait judge anew, once the mutex is free.
    void publish(Phase phase) GPU_SLEEP_REQUIRES(mutex_);
    [[nodiscard]] Verdict judge(Touch touch, const Named& named, bool records) const
        GPU_SLEEP_REQUIRES(mutex_);
    /// Whether the answer depends on what the touch names.
    [[nodiscard]] bool wants_names(Touch touch) const noexcept GPU_SLEEP_REQUIRES(mutex_) {
        const bool depends = phase_ == Phase::asleep ? rule_.checked : rule_.something_sleeps();
        return depends && !holds_all() && !begins_capture(touch) && touch != Touch::ends;
    }
    [[nodiscard]] bool admit_with_pass(const Inspector* inspector) const;
    [[nodiscard]] bool hold(Waiter& waiter, std::optional<SignalsBlocked>& signals)
        GPU_SLEEP_REQUIRES(mutex_);
    /// Waits until notify() or `until`, or for no reason.
    void wait(Clock::time_point until, std::optional<SignalsBlocked>& signals) GPU_SLEEP_REQUIRES(mutex_);
    void notify() noexcept GPU_SLEEP_REQUIRES(mutex_);
    /// Calls `body`, which throws nothing, without the mutex: it may wait, or take other locks. Signals are
    /// let in meanwhile, whose handlers may call the driver, wait for other threads, or jump away.
    template <class Body>
    void unlocked(std::optional<SignalsBlocked>& signals, Body&& body) GPU_SLEEP_REQUIRES(mutex_) {
        mutex_.unlock();
        signals.reset();
        body();
        signals.emplace();
        mutex_.lock();
    }
    [[nodiscard]] bool is_empty() noexcept;

    /// Has every thread be seen inside or see what was published, and waits until nobody is inside.
    [[nodiscard]] Result<void> empty_out(Clock::time_point deadline, const std::function<bool()>& keep_going);

    static constinit std::atomic<bool> s_closed;
    static constinit std::atomic<DeepStage> s_deep_stage; ///< to none and from it with the mutex held
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost); ///< held for moments only
    std::atomic<std::uint32_t> changed_{0};                                      ///< counts notify()
    Phase phase_ GPU_SLEEP_GUARDED_BY(mutex_) = Phase::open;
    bool holds_captures_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    std::uint64_t changes_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< of the phase and its rule
    bool abandoned_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    HoldRule rule_ GPU_SLEEP_GUARDED_BY(mutex_);
    Waiters waiters_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::shared_ptr<const std::function<void()>>
        waker_ GPU_SLEEP_GUARDED_BY(mutex_); ///< copied without taking memory
    Clock::time_point last_wake_ GPU_SLEEP_GUARDED_BY(mutex_){};
    std::uint64_t refusals_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< of wakes that it asked for
    std::atomic<bool> releases_python_lock_{true};
    interpreter_lock::LoaderLock loader_lock_;
    std::atomic<std::uint64_t> passes_{0}; ///< made so far
    std::atomic<std::uint64_t> pass_{0};   ///< number of the one that lives, or 0
};

/// One touch, from before the call until after it. One at a time in a function, whose frame is
/// `here`.
class Passage {
public:
    Passage(Touch touch, const char* entry_point, const Inspector* inspector = nullptr,
            std::uintptr_t here = GPU_SLEEP_HERE) noexcept
        : seat_(t_seat ? *t_seat : Seats::own()) {
        if (seat_.calls.enter(here)) [[unlikely]]
            return;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (!Gate::is_open()) [[unlikely]]
            admitted_ = Gate::instance().admit(seat_, touch, entry_point, inspector, no_cancellation_);
    }
    ~Passage() { seat_.calls.leave(); }
    Passage& operator=(Passage&&) = delete;

    /// False: the call must not be made, and fails.
    [[nodiscard]] bool admitted() const noexcept { return admitted_; }

private:
    Seat& seat_;
    bool admitted_ = true;
    std::optional<CancellationHold> no_cancellation_;
};

/// Lets `time` pass amid a touch that waits for another process: meanwhile no sleep waits for it, and it has
/// to pass the gate anew. False: the call has to fail.
[[nodiscard]] bool step_aside(Milliseconds time, Touch touch, const char* entry_point) noexcept;

/// One call that is no touch, from before it until after it: it passes every gate but that of a deep sleep.
/// One at a time in a function, whose frame is `here`.
class Question {
public:
    /// `answer` is called in a deep sleep, before the call is held: whether it needs no driver any more.
    template <class Answer>
    Question(const char* entry_point, Answer&& answer, std::uintptr_t here = GPU_SLEEP_HERE) noexcept
        : seat_(t_seat ? *t_seat : Seats::own()) {
        if (seat_.questions.enter(here)) [[unlikely]]
            return;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (!Gate::holds_all()) [[likely]]
            return;
        seat_.questions.leave(); // the answer may have to wait until nobody is inside
        is_answered_ = answer();
        static_cast<void>(seat_.questions.enter(here));
        if (!is_answered_)
            admitted_ = Gate::instance().admit(seat_, Touch::asks, entry_point, nullptr, no_cancellation_);
    }
    explicit Question(const char* entry_point, std::uintptr_t here = GPU_SLEEP_HERE) noexcept
        : Question(
              entry_point, [] { return false; }, here) {}
    ~Question() { seat_.questions.leave(); }
    Question& operator=(Question&&) = delete;

    /// False: the call must not be made, and fails.
    [[nodiscard]] bool admitted() const noexcept { return admitted_; }
    /// True: the call must not be made, and succeeds.
    [[nodiscard]] bool is_answered() const noexcept { return is_answered_; }

private:
    Seat& seat_;
    bool admitted_ = true;
    bool is_answered_ = false;
    std::optional<CancellationHold> no_cancellation_;
};

/// Lets the calling thread through while it lives, for it runs a callback, and those that share it. One at a
/// time. Its end touches no seat but the caller's: a seat may have gone to a thread that shares nothing.
class Pass {
public:
    Pass() noexcept : seat_(Seats::own()), number_(++Gate::instance().passes_) {
        seat_.stop_counting();
        Gate::instance().pass_ = number_;
        seat_.has_pass = true;
    }
    ~Pass() { end(); }
    Pass& operator=(Pass&&) = delete;

    /// Ends it early, on its thread, which may be parked. Does nothing the second time.
    void end() noexcept {
        if (seat_.has_pass.load(std::memory_order_relaxed)) seat_.count_again();
        seat_.has_pass = false;
        auto expected = number_;
        Gate::instance().pass_.compare_exchange_strong(expected, 0);
    }

    /// Never 0, and never that of another.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

private:
    Seat& seat_;
    std::uint64_t number_;
};

/// Lets the calling thread alone through while it lives, whatever passes there are besides. It has no Pass.
class Exemption {
public:
    Exemption() noexcept : seat_(Seats::own()) {
        seat_.stop_counting();
        seat_.has_pass = true;
    }
    ~Exemption() {
        seat_.count_again();
        seat_.has_pass = false;
    }
    Exemption& operator=(Exemption&&) = delete;

private:
    Seat& seat_;
};

} // namespace gpu_sleep::gate
