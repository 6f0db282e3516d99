// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graph captures under way.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "gate/gate.hpp"

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <span>
#include <tuple>
#include <vector>

namespace gpu_sleep::agent::registry {

/// Thread-safe.
class Captures {
public:
    /// A stream in which something is captured. The context and the thread count for per-thread streams only:
    /// all others have handles of their own.
    using Key = std::tuple<CUstream, CUcontext, std::uint64_t>;
    struct Capture {
        std::uint64_t number = 0; ///< never used twice
        CUcontext context = nullptr;
        const gate::Seat* seat = nullptr; ///< of the thread that began it; after its end perhaps another's
        bool any_may_end = false;         ///< and not that thread alone
    };
    using Taken = std::map<Key, Capture>;

    /// Held shared from the look for captures until a context's work is noted (PendingWork), which would
    /// break one; alone while a capture is noted, before it begins. Nobody waits under it: a capture must not
    /// begin any later for what other threads do. Comes after the contexts' mutex.
    std::shared_mutex order;

    /// Notes a capture, which the calling thread alone may end or any, before it begins. Returns its number;
    /// 0 if the stream has one already, which goes on. May throw for want of memory.
    [[nodiscard]] std::uint64_t note(const Key& key, CUcontext context, bool any_may_end);
    /// The number of the stream's capture; 0 without one.
    [[nodiscard]] std::uint64_t number_of(const Key& key) const noexcept;
    /// The capture is over.
    void forget(const Key& key, std::uint64_t number) noexcept;
    /// The thread is over, and the captures in its own streams with it. Whether there were any.
    [[nodiscard]] bool forget_thread(std::uint64_t thread) noexcept;
    /// Takes out the captures of the stream, or of the context's streams. Takes no memory.
    [[nodiscard]] Taken take(CUstream stream) noexcept;
    [[nodiscard]] Taken take(CUcontext context) noexcept;
    void put_back(Taken& taken) noexcept;

    /// How many are open; for who holds no mutex.
    [[nodiscard]] unsigned count() const noexcept { return count_.load(std::memory_order_seq_cst); }
    /// Whether one is open that the calling thread began.
    [[nodiscard]] bool has_own() const noexcept;
    /// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
    /// many.
    [[nodiscard]] std::size_t own_streams(std::span<CUstream> streams) const noexcept;
    /// Returns the sleeping memory for which threads with an open capture wait at the gate: such a capture
    /// cannot end before a wake. Empty optional if no such thread waits; an empty list if it is not known for
    /// what memory. May throw for want of memory.
    [[nodiscard]] std::optional<std::vector<gate::Named::Span>> wait_for() const;

private:
    template <class Wanted>
    Taken take_if(const Wanted& wanted) noexcept;

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Taken open_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::uint64_t last_number_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::atomic<unsigned> count_{0};
};

} // namespace gpu_sleep::agent::registry
