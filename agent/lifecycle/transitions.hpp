// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sleeps, wakes and moves of this process, and how they ended: counted, and a line in the journal for
// each.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "common/settings.hpp"
#include "model/environment.hpp"
#include "model/history.hpp"
#include "model/model.hpp"
#include "server/request_queue.hpp"

namespace gpu_sleep::agent::lifecycle {

/// Thread-safe.
class Transitions {
public:
    Transitions();

    /// Counts an operation that ended with `outcome`, `seconds` after it was asked for. Returns what it was,
    /// or tried to be; nothing where it was no transition: a dry run, or one that found all as it was to be.
    /// Allocates nothing.
    [[nodiscard]] std::optional<model::Transition>
    count(const server::Operation& operation, const server::Outcome& outcome, double seconds) noexcept;

    /// Of each kind that has happened.
    [[nodiscard]] std::vector<model::TransitionCounts> counts() const;

    /// GPU memory in bytes times the seconds for which it has slept.
    [[nodiscard]] std::uint64_t asleep_byte_seconds() const noexcept {
        const MutexLock lock(mutex_);
        return asleep_byte_seconds_until(Clock::now());
    }

    /// Describes one that has just ended with `outcome`; take_events() has it if it is done.
    [[nodiscard]] model::Event describe(model::Transition transition, const server::Job& job,
                                        const server::Outcome& outcome, std::string name);
    /// Those since the last call, up to 100.
    [[nodiscard]] std::vector<model::Event> take_events() noexcept {
        const MutexLock lock(mutex_);
        return std::exchange(events_, {});
    }

private:
    [[nodiscard]] std::uint64_t asleep_byte_seconds_until(Clock::time_point now) const noexcept
        GPU_SLEEP_REQUIRES(mutex_) {
        const std::chrono::duration<double> since = now - summed_;
        return asleep_byte_seconds_ + static_cast<std::uint64_t>(since.count() * asleep_bytes_);
    }

    /// From now on `bytes` sleep.
    void set_asleep_bytes(double bytes) noexcept GPU_SLEEP_REQUIRES(mutex_) {
        const auto now = Clock::now();
        asleep_byte_seconds_ = asleep_byte_seconds_until(now);
        summed_ = now;
        asleep_bytes_ = bytes;
    }

    /// By the numbers of ErrorCode; what has a higher one counts as internal.
    static constexpr std::size_t k_codes = 64;
    struct Counts {
        model::DurationCounts done{};
        double done_seconds = 0;
        std::array<std::uint64_t, k_codes> failed{};
    };

    const std::string notebook_; ///< or the kernel, where Jupyter does not say the notebook
    const std::string job_{setting(model::environment::k_job)};
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::vector<model::Event> events_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::optional<Clock::time_point> asleep_since_ GPU_SLEEP_GUARDED_BY(mutex_); ///< any of it
    std::optional<Bytes> deep_bytes_ GPU_SLEEP_GUARDED_BY(mutex_); ///< of the driver's part, while deep
    bool is_back_ GPU_SLEEP_GUARDED_BY(mutex_) = false; ///< that part, by a wake that failed afterwards
    std::uint64_t asleep_byte_seconds_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< until `summed_`
    Clock::time_point summed_ GPU_SLEEP_GUARDED_BY(mutex_){};
    double asleep_bytes_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< since then
    std::array<Counts, model::k_transitions.size()> counts_ GPU_SLEEP_GUARDED_BY(mutex_){};
};

/// Writes to the journal that listens on `socket`, if that is not empty, that one ended with `outcome`,
/// `seconds` after it was asked for; `event` says the rest. Never waits; what cannot be written is left out.
/// gpu-sleep(7) describes the fields. Thread-safe.
void write_journal(const std::string& socket, model::Transition transition, const server::Outcome& outcome,
                   double seconds, const model::Event& event) noexcept;

} // namespace gpu_sleep::agent::lifecycle
