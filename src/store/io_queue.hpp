// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading and writing files, several parts at a time, past the cache where that is possible, and the page-
// aligned buffers for that. Internal to this module.

#pragma once

#include "base/thread_safety.hpp"
#include "store/snapshot.hpp"

#include <memory>

namespace gpu_sleep::store {

/// Thread-safe.
class BufferPool {
public:
    /// Errors: out_of_host_memory.
    [[nodiscard]] static Result<std::unique_ptr<BufferPool>> create(std::size_t count, std::size_t bytes) {
        const auto each = static_cast<std::size_t>(round_up(bytes, k_alignment));
        auto all = Pages::map(count * each);
        if (!all) return make_error(ErrorCode::out_of_host_memory, "no host memory for staging buffers");
        return std::unique_ptr<BufferPool>(new BufferPool(std::move(all), count, each));
    }

    /// Waits for a buffer that is free.
    [[nodiscard]] std::byte* take() {
        const MutexLock lock(mutex_);
        changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return !free_.empty(); });
        auto* const buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void put(std::byte* buffer) {
        // Notified with the lock held: whoever waits for the last one may destroy the pool.
        const MutexLock lock(mutex_);
        free_.push_back(buffer);
        changed_.notify_all();
    }
    /// Waits until all are free.
    void wait_for_all() {
        const MutexLock lock(mutex_);
        changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return free_.size() == count_; });
    }

private:
    BufferPool(Pages all, std::size_t count, std::size_t each) : all_(std::move(all)), count_(count) {
        for (std::size_t i = 0; i < count; ++i) free_.push_back(&all_.bytes()[i * each]);
    }

    Pages all_;
    std::size_t count_;
    Mutex mutex_;
    Condition changed_;
    std::vector<std::byte*> free_ GPU_SLEEP_GUARDED_BY(mutex_);
};

struct IoRequest {
    enum class Kind { read, write };
    Kind kind = Kind::read;
    int fd = -1;
    std::byte* data = nullptr; ///< read from when writing
    std::size_t bytes = 0;
    Bytes offset = 0;
    /// Called once, on a thread of the queue or on the one that submits, when all bytes are moved or it has
    /// failed. Must not throw, though memory run out. Errors: out_of_disk, damaged (the file ends too early),
    /// io_failed, out_of_host_memory.
    std::function<void(Result<void>)> done{};
    /// The file that `fd` means: nothing is moved once the program has closed that, and may use the number
    /// for a file of its own. Empty: any.
    FileIdentity file{};
};

/// Thread-safe. Destroyed only when no request is under way.
class IoQueue {
public:
    /// More requests are accepted, but not run at once.
    static constexpr unsigned k_depth = 64;

    virtual ~IoQueue() = default;
    /// Where it throws for want of memory, the request was not taken: `done` is not called.
    virtual void submit(IoRequest request) = 0;
};

enum class IoKind {
    automatic, ///< io_uring if it was built in, the kernel permits it, no seccomp filter could end the
               ///< process for it, and the file uses direct I/O
    threads,   ///< pread and pwrite
};

/// What a queue is for.
enum class IoUse {
    direct, ///< files with direct I/O
    cached_reads,
    cached_writes, ///< of one file
};

/// Through the page cache, io_uring copies on the thread that submits, so threads of our own are faster:
/// several that read, but one that writes, because the kernel allows one writer of a file at a time. Errors:
/// out_of_host_memory (no thread could be started). Source: io_uring(7).
[[nodiscard]] Result<std::unique_ptr<IoQueue>> open_io_queue(IoKind kind = IoKind::automatic,
                                                             IoUse use = IoUse::direct);

/// Moves the bytes at once, on the calling thread, and calls nobody. Errors: as for IoRequest::done.
[[nodiscard]] Result<void> move_bytes(IoRequest request);

} // namespace gpu_sleep::store
