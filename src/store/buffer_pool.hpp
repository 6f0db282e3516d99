// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A fixed number of page-aligned buffers, for direct I/O. Internal to this module.

#pragma once

#include "base/pages.hpp"
#include "base/result.hpp"
#include "store/snapshot.hpp"

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace gpu_sleep::store {

/// Thread-safe.
class BufferPool {
public:
    /// Errors: out_of_host_memory.
    [[nodiscard]] static Result<std::unique_ptr<BufferPool>> create(std::size_t count, std::size_t bytes) {
        std::unique_ptr<BufferPool> pool(new BufferPool());
        const auto each = static_cast<std::size_t>(round_up(bytes, k_alignment));
        pool->all_ = Pages::map(count * each);
        if (!pool->all_)
            return make_error(ErrorCode::out_of_host_memory, "no host memory for staging buffers");
        pool->count_ = count;
        for (std::size_t i = 0; i < count; ++i) pool->free_.push_back(&pool->all_.bytes()[i * each]);
        return pool;
    }

    /// Waits for a buffer that is free.
    [[nodiscard]] std::byte* take() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !free_.empty(); });
        auto* const buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void put(std::byte* buffer) {
        // Notified with the lock held: whoever waits for the last one may destroy the pool.
        const std::lock_guard lock(mutex_);
        free_.push_back(buffer);
        changed_.notify_all();
    }
    /// Waits until all are free.
    void wait_for_all() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return free_.size() == count_; });
    }

private:
    BufferPool() = default;

    Pages all_;
    std::size_t count_ = 0;
    std::mutex mutex_; ///< guards the free ones
    std::condition_variable changed_;
    std::vector<std::byte*> free_;
};

} // namespace gpu_sleep::store
