// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Buffers that begin at pages, a fixed number of them, for files that are read and written past the page
// cache. Internal to this room.

#pragma once

#include "base/result.hpp"
#include "store/snapshot.hpp"

#include <condition_variable>
#include <cstdlib>
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
        for (std::size_t i = 0; i < count; ++i) {
            Buffer buffer(
                static_cast<std::byte*>(std::aligned_alloc(k_alignment, round_up(bytes, k_alignment))));
            if (!buffer)
                return make_error(ErrorCode::out_of_host_memory, "no host memory for staging buffers");
            pool->free_.push_back(buffer.get());
            pool->all_.push_back(std::move(buffer));
        }
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
        changed_.wait(lock, [this] { return free_.size() == all_.size(); });
    }

private:
    struct Free {
        void operator()(std::byte* memory) const noexcept { std::free(memory); }
    };
    using Buffer = std::unique_ptr<std::byte, Free>;

    BufferPool() = default;

    std::vector<Buffer> all_;
    std::mutex mutex_; ///< guards the free ones
    std::condition_variable changed_;
    std::vector<std::byte*> free_;
};

} // namespace gpu_sleep::store
