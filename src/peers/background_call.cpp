// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A detached thread and an eventfd.

#include "peers/background_call.hpp"

#include "base/guard.hpp"
#include "base/quiet_thread.hpp"
#include "base/thread_safety.hpp"

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace gpu_sleep::peers {
namespace {

std::atomic<int> s_under_way{0};

} // namespace

struct BackgroundCall::State {
    UniqueFd end;
    Mutex mutex;
    std::optional<Result<void>> result GPU_SLEEP_GUARDED_BY(mutex);
    UniqueFd kept GPU_SLEEP_GUARDED_BY(mutex);
};

Result<BackgroundCall> BackgroundCall::start(std::function<Result<void>()> call) {
    auto state = std::make_shared<State>();
    state->end = opened([&] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!state->end) return errno_error(ErrorCode::io_failed, errno, "eventfd", "cannot start a call");
    ++s_under_way;
    auto thread = start_quiet_thread("gpu-sleep-call", [state, call = std::move(call)] {
        auto result = guarded([&] { return call(); });
        --s_under_way;
        {
            const MutexLock lock(state->mutex);
            state->result = std::move(result);
            state->kept.reset();
        }
        ::eventfd_write(state->end.get(), 1);
    });
    if (!thread) {
        --s_under_way;
        return std::move(thread).error();
    }
    thread->detach();
    return BackgroundCall(std::move(state));
}

int BackgroundCall::end_fd() const noexcept {
    return state_->end.get();
}

std::optional<Result<void>> BackgroundCall::result() const {
    const MutexLock lock(state_->mutex);
    return state_->result;
}

void BackgroundCall::close_after(UniqueFd fd) {
    const MutexLock lock(state_->mutex);
    if (!state_->result) state_->kept = std::move(fd);
}

bool BackgroundCall::is_any_under_way() noexcept {
    return s_under_way > 0;
}

} // namespace gpu_sleep::peers
