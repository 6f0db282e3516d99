// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Mutexes that clang checks at compile time: what each guards, what must be held, and in which order they are
// taken. Source: clang, Thread Safety Analysis. For other compilers the annotations are empty.

#pragma once

#include "base/units.hpp"

#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#if defined(__clang__)
#define GPU_SLEEP_ANNOTATION(x) __attribute__((x))
#else
#define GPU_SLEEP_ANNOTATION(x)
#endif

/// Of a member: read and written with that mutex held alone.
#define GPU_SLEEP_GUARDED_BY(mutex) GPU_SLEEP_ANNOTATION(guarded_by(mutex))
/// Of a function: its caller holds the mutex, alone or shared.
#define GPU_SLEEP_REQUIRES(...) GPU_SLEEP_ANNOTATION(requires_capability(__VA_ARGS__))
#define GPU_SLEEP_REQUIRES_SHARED(...) GPU_SLEEP_ANNOTATION(requires_shared_capability(__VA_ARGS__))
/// Of a function: its caller does not hold the mutex.
#define GPU_SLEEP_EXCLUDES(...) GPU_SLEEP_ANNOTATION(locks_excluded(__VA_ARGS__))
/// Of a mutex: whoever takes both takes this one first, or last.
#define GPU_SLEEP_ACQUIRED_BEFORE(...) GPU_SLEEP_ANNOTATION(acquired_before(__VA_ARGS__))
#define GPU_SLEEP_ACQUIRED_AFTER(...) GPU_SLEEP_ANNOTATION(acquired_after(__VA_ARGS__))
/// Of a function: it returns with the mutex taken, or given back.
#define GPU_SLEEP_ACQUIRE(...) GPU_SLEEP_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GPU_SLEEP_ACQUIRE_SHARED(...) GPU_SLEEP_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define GPU_SLEEP_TRY_ACQUIRE(...) GPU_SLEEP_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GPU_SLEEP_TRY_ACQUIRE_SHARED(...) GPU_SLEEP_ANNOTATION(try_acquire_shared_capability(__VA_ARGS__))
#define GPU_SLEEP_RELEASE(...) GPU_SLEEP_ANNOTATION(release_capability(__VA_ARGS__))
#define GPU_SLEEP_RELEASE_SHARED(...) GPU_SLEEP_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define GPU_SLEEP_RELEASE_GENERIC(...) GPU_SLEEP_ANNOTATION(release_generic_capability(__VA_ARGS__))
/// Of a function: clang takes the mutex as held from here on. Only where a type proves it; a comment says
/// how.
#define GPU_SLEEP_ASSERTS_HELD(...) GPU_SLEEP_ANNOTATION(assert_capability(__VA_ARGS__))
#define GPU_SLEEP_RETURNS_MUTEX(mutex) GPU_SLEEP_ANNOTATION(lock_returned(mutex))
/// Leaves a function unchecked. A comment says why.
#define GPU_SLEEP_UNCHECKED GPU_SLEEP_ANNOTATION(no_thread_safety_analysis)

namespace gpu_sleep {

/// A std::mutex that clang knows.
class GPU_SLEEP_ANNOTATION(capability("mutex")) Mutex {
public:
    void lock() GPU_SLEEP_ACQUIRE() { mutex_.lock(); }
    void unlock() GPU_SLEEP_RELEASE() { mutex_.unlock(); }
    [[nodiscard]] bool try_lock() GPU_SLEEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
    /// For code that only runs with it held, where clang cannot see that.
    void assert_held() const GPU_SLEEP_ASSERTS_HELD() {}

private:
    friend class MutexLock;
    std::mutex mutex_;
};

/// Holds a Mutex while it lives, but between unlock() and lock().
class GPU_SLEEP_ANNOTATION(scoped_lockable) MutexLock {
public:
    explicit MutexLock(Mutex& mutex) GPU_SLEEP_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
    /// Takes over a mutex that the caller holds.
    MutexLock(Mutex& mutex, std::adopt_lock_t adopt) GPU_SLEEP_REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;
    ~MutexLock() GPU_SLEEP_RELEASE() {}

    void lock() GPU_SLEEP_ACQUIRE() { lock_.lock(); }
    void unlock() GPU_SLEEP_RELEASE() { lock_.unlock(); }

private:
    friend class Condition;
    std::unique_lock<std::mutex> lock_;
};

/// A std::condition_variable for a Mutex. What is waited for is written as a lambda with GPU_SLEEP_REQUIRES.
class Condition {
public:
    void notify_all() noexcept { condition_.notify_all(); }
    void notify_one() noexcept { condition_.notify_one(); }

    void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
    // Clang does not connect the mutex of the lock with the one that the condition needs.
    template <class Predicate>
    void wait(MutexLock& lock, Predicate&& is_met) GPU_SLEEP_UNCHECKED {
        condition_.wait(lock.lock_, std::forward<Predicate>(is_met));
    }
    std::cv_status wait_until(MutexLock& lock, Clock::time_point deadline) {
        return condition_.wait_until(lock.lock_, deadline);
    }
    template <class Predicate>
    bool wait_until(MutexLock& lock, Clock::time_point deadline, Predicate&& is_met) GPU_SLEEP_UNCHECKED {
        return condition_.wait_until(lock.lock_, deadline, std::forward<Predicate>(is_met));
    }
    template <class Predicate>
    bool wait_for(MutexLock& lock, Milliseconds duration, Predicate&& is_met) GPU_SLEEP_UNCHECKED {
        return condition_.wait_for(lock.lock_, duration, std::forward<Predicate>(is_met));
    }

private:
    std::condition_variable condition_;
};

} // namespace gpu_sleep
