// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving up Python's lock while a thread waits, so that the program's other Python threads (a server's health
// checks) go on.

#pragma once

#include "gate/loader_lock.hpp"

#include <atomic>
#include <cstdint>

namespace gpu_sleep::gate {

/// Gives up Python's global lock if the calling thread holds it, and takes it again when destroyed. Does
/// nothing in a program without Python, nor as long as the loader's lock may be the thread's too: whoever got
/// Python's might need that one and wait for it for ever. Source: Python/C API, PyEval_SaveThread.
class PythonUnlocked {
public:
    explicit PythonUnlocked(LoaderLock& loader_lock) noexcept;
    ~PythonUnlocked();
    PythonUnlocked(const PythonUnlocked&) = delete;
    PythonUnlocked& operator=(const PythonUnlocked&) = delete;

    /// Whether the lock is still held, and to be given up when that is safe.
    [[nodiscard]] bool is_due() const noexcept { return question_ != 0 && !thread_state_; }
    /// Does so if it is by now. Waits a moment to know.
    void give_up_if_safe() noexcept;

private:
    LoaderLock& loader_lock_;
    std::uint64_t question_ = 0; ///< asked of it; 0 when the thread does not hold Python's lock
    void* thread_state_ = nullptr;
};

/// Looks for Python's functions, beforehand, and watches the loader's lock if it finds them: while a thread
/// waits none that it waits for may need that lock.
void find_python() noexcept;

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

} // namespace gpu_sleep::gate
