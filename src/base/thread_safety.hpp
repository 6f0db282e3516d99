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

/// A member: read and written with that mutex held alone.
#define GPU_SLEEP_GUARDED_BY(mutex) GPU_SLEEP_ANNOTATION(guarded_by(mutex))
/// A function: its caller holds the mutex, alone or shared.
#define GPU_SLEEP_REQUIRES(...) GPU_SLEEP_ANNOTATION(requires_capability(__VA_ARGS__))
/// A mutex: a thread that takes both takes this one first, or last.
#define GPU_SLEEP_ACQUIRED_BEFORE(...) GPU_SLEEP_ANNOTATION(acquired_before(__VA_ARGS__))
#define GPU_SLEEP_ACQUIRED_AFTER(...) GPU_SLEEP_ANNOTATION(acquired_after(__VA_ARGS__))
/// A function: it returns with the mutex taken, or given back.
#define GPU_SLEEP_ACQUIRE(...) GPU_SLEEP_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GPU_SLEEP_ACQUIRE_SHARED(...) GPU_SLEEP_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define GPU_SLEEP_TRY_ACQUIRE(...) GPU_SLEEP_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GPU_SLEEP_RELEASE(...) GPU_SLEEP_ANNOTATION(release_capability(__VA_ARGS__))
#define GPU_SLEEP_RELEASE_SHARED(...) GPU_SLEEP_ANNOTATION(release_shared_capability(__VA_ARGS__))
/// Leaves a function unchecked. A comment says why.
#define GPU_SLEEP_UNCHECKED GPU_SLEEP_ANNOTATION(no_thread_safety_analysis)

namespace gpu_sleep {

/// No mutex, but a place in the order of mutexes: each is annotated with those that it comes after and
/// before.
class GPU_SLEEP_ANNOTATION(capability("mutex")) LockLevel {};

/// A std::mutex that clang knows.
class GPU_SLEEP_ANNOTATION(capability("mutex")) Mutex {
public:
    void lock() GPU_SLEEP_ACQUIRE() { mutex_.lock(); }
    void unlock() GPU_SLEEP_RELEASE() { mutex_.unlock(); }
    [[nodiscard]] bool try_lock() GPU_SLEEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

private:
    friend class Condition;
    std::mutex mutex_;
};

/// Holds a Mutex while it lives, but between unlock() and lock().
class GPU_SLEEP_ANNOTATION(scoped_lockable) MutexLock {
public:
    explicit MutexLock(Mutex& mutex) GPU_SLEEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    /// Takes over a mutex that the caller holds.
    MutexLock(Mutex& mutex, std::adopt_lock_t) GPU_SLEEP_REQUIRES(mutex) : mutex_(mutex) {}
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;
    ~MutexLock() GPU_SLEEP_RELEASE() {
        if (is_held_) mutex_.unlock();
    }

    void lock() GPU_SLEEP_ACQUIRE() {
        mutex_.lock();
        is_held_ = true;
    }
    void unlock() GPU_SLEEP_RELEASE() {
        is_held_ = false;
        mutex_.unlock();
    }

private:
    Mutex& mutex_;
    bool is_held_ = true;
};

/// A std::shared_mutex that clang knows.
class GPU_SLEEP_ANNOTATION(capability("mutex")) SharedMutex {
public:
    void lock() GPU_SLEEP_ACQUIRE() { mutex_.lock(); }
    void unlock() GPU_SLEEP_RELEASE() { mutex_.unlock(); }
    void lock_shared() GPU_SLEEP_ACQUIRE_SHARED() { mutex_.lock_shared(); }
    void unlock_shared() GPU_SLEEP_RELEASE_SHARED() { mutex_.unlock_shared(); }

private:
    std::shared_mutex mutex_;
};

/// Holds a SharedMutex alone while it lives.
class GPU_SLEEP_ANNOTATION(scoped_lockable) AloneLock {
public:
    explicit AloneLock(SharedMutex& mutex) GPU_SLEEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    AloneLock(const AloneLock&) = delete;
    AloneLock& operator=(const AloneLock&) = delete;
    ~AloneLock() GPU_SLEEP_RELEASE() { mutex_.unlock(); }

private:
    SharedMutex& mutex_;
};

/// Holds a SharedMutex with others while it lives.
class GPU_SLEEP_ANNOTATION(scoped_lockable) SharedLock {
public:
    explicit SharedLock(SharedMutex& mutex) GPU_SLEEP_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
        mutex_.lock_shared();
    }
    SharedLock(const SharedLock&) = delete;
    SharedLock& operator=(const SharedLock&) = delete;
    ~SharedLock() GPU_SLEEP_RELEASE() { mutex_.unlock_shared(); }

private:
    SharedMutex& mutex_;
};

/// A std::condition_variable for a Mutex, which the caller holds. What is waited for is a lambda with
/// GPU_SLEEP_REQUIRES(the mutex).
class Condition {
public:
    void notify_all() noexcept { condition_.notify_all(); }
    void notify_one() noexcept { condition_.notify_one(); }

    void wait(Mutex& mutex) GPU_SLEEP_REQUIRES(mutex) {
        Held held(mutex);
        condition_.wait(held.lock);
    }
    template <class Predicate>
    void wait(Mutex& mutex, Predicate&& is_met) GPU_SLEEP_REQUIRES(mutex) {
        Held held(mutex);
        condition_.wait(held.lock, std::forward<Predicate>(is_met));
    }
    std::cv_status wait_until(Mutex& mutex, Clock::time_point deadline) GPU_SLEEP_REQUIRES(mutex) {
        Held held(mutex);
        return condition_.wait_until(held.lock, deadline);
    }
    template <class Predicate>
    bool wait_until(Mutex& mutex, Clock::time_point deadline, Predicate&& is_met) GPU_SLEEP_REQUIRES(mutex) {
        Held held(mutex);
        return condition_.wait_until(held.lock, deadline, std::forward<Predicate>(is_met));
    }
    template <class Predicate>
    bool wait_for(Mutex& mutex, Milliseconds duration, Predicate&& is_met) GPU_SLEEP_REQUIRES(mutex) {
        Held held(mutex);
        return condition_.wait_for(held.lock, duration, std::forward<Predicate>(is_met));
    }

private:
    /// The caller's hold of the mutex in the form that the standard library wants; still the caller's after.
    struct Held {
        explicit Held(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
        Held(const Held&) = delete;
        Held& operator=(const Held&) = delete;
        ~Held() { lock.release(); }
        std::unique_lock<std::mutex> lock;
    };

    std::condition_variable condition_;
};

} // namespace gpu_sleep
