// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The memory that PyTorch keeps unused, as its caching allocator gives it back.

#pragma once

#include <atomic>
#include <cstdint>

namespace gpu_sleep::agent::torch {

/// Something that is done unless it is given up before: who does it and who waits for it agree on which.
/// Thread-safe.
class CacheRequest {
public:
    /// It begins. False: nobody wants it any more.
    [[nodiscard]] bool begin() noexcept { return leave_for(State::begun); }
    /// Nobody wants it any more. False: it has begun.
    [[nodiscard]] bool give_up() noexcept { return leave_for(State::given_up); }

private:
    enum class State : std::uint8_t { wanted, begun, given_up };
    bool leave_for(State next) noexcept {
        auto before = State::wanted;
        return state_.compare_exchange_strong(before, next) || before == next;
    }
    std::atomic<State> state_{State::wanted};
};

/// Asks PyTorch's caching allocator, if Python has loaded it, to give back the blocks that nobody uses. Takes
/// Python's lock, so it may take long; then it does not ask if `request` was given up, or where `prepare`,
/// which is called with the lock and neither throws nor waits, says no. Passes the gate meanwhile: it holds
/// the allocator's mutex, which others wait for. Source: torch.cuda.empty_cache.
void empty_torch_cache(CacheRequest& request, bool (*prepare)()) noexcept;

} // namespace gpu_sleep::agent::torch
