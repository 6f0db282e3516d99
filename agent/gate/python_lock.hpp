// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving up Python's lock while a thread waits, so that the program's other Python threads (a server's health
// checks) go on.

#pragma once

#include <atomic>
#include <cstdint>

namespace gpu_sleep::gate {

/// Gives up Python's global lock if the calling thread holds it, and takes it again when destroyed. Does
/// nothing in a program without Python. Source: Python/C API, PyEval_SaveThread.
class PythonUnlocked {
public:
    PythonUnlocked() noexcept;
    ~PythonUnlocked();
    PythonUnlocked(const PythonUnlocked&) = delete;
    PythonUnlocked& operator=(const PythonUnlocked&) = delete;

private:
    void* thread_state_ = nullptr;
};

/// Looks for Python's functions, beforehand: while a thread waits nobody may need the loader's lock.
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
