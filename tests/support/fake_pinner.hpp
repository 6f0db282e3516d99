// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A pinner without a driver, which remembers what it was asked.

#pragma once

#include "store/host_arena.hpp"
#include "support/mapping.hpp"

namespace gpu_sleep::test {

/// Its switches are set before, and its records read after, other threads use it.
class FakePinner final : public store::Pinner {
public:
    Result<void> pin(std::span<std::byte> memory) override {
        const std::lock_guard lock(mutex_);
        if (fails) return make_error(ErrorCode::driver_failed, "no pinning today");
        was_populated = was_populated && is_populated(memory);
        order.push_back(memory.data());
        pinned += memory.size();
        return {};
    }
    bool unpin(std::span<std::byte> memory) noexcept override {
        const std::lock_guard lock(mutex_);
        if (memory.data() == stuck) return false;
        was_populated = was_populated && is_populated(memory);
        pinned -= memory.size();
        return true;
    }

    bool fails = false;
    const std::byte* stuck = nullptr; ///< memory that cannot be unpinned

    bool was_populated = true;           ///< whether all memory had its pages all the time that it was pinned
    std::vector<const std::byte*> order; ///< in which memory was pinned
    Bytes pinned = 0;                    ///< and not unpinned

private:
    std::mutex mutex_;
};

} // namespace gpu_sleep::test
