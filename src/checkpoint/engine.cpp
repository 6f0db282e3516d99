// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One step after another, and what becomes of the process where one fails.

#include "checkpoint/engine.hpp"

#include <utility>

namespace gpu_sleep::checkpoint {
namespace {

Error not_done(std::string_view step, Error error) {
    error.message = fmt::format("the driver did not {} it: {}", step, error.message);
    return error;
}

} // namespace

Error lost(std::string_view why, Kept kept) {
    if (kept == Kept::nothing)
        return make_error(ErrorCode::context_lost,
                          "{}: it is lost, and what it had on the GPU cannot be saved; end it", why);
    return make_error(ErrorCode::context_lost,
                      "the driver has lost it ({}): its calls of the driver never return; save what is kept "
                      "of it with gpu-sleep --store file --dir DIR --keep-files, then end it",
                      why);
}

Result<void> Engine::lock(Milliseconds timeout, State found) const {
    if (found == State::locked) GPU_SLEEP_TRY(driver_.unlock(pid_));
    auto locked = driver_.lock(pid_, timeout);
    if (locked) return locked;
    auto error = std::move(locked).error();
    if (error.code == ErrorCode::timed_out)
        error.message =
            fmt::format("its GPU work did not finish within {} ms ({})", timeout.count(), error.message);
    return judge(not_done("lock", std::move(error)));
}

Result<void> Engine::checkpoint() const {
    auto done = driver_.checkpoint(pid_);
    return done ? done : undo(not_done("checkpoint", std::move(done).error()));
}

Error Engine::judge(Error why) const {
    const auto stands = driver_.state(pid_);
    return stands && *stands == State::failed ? lost(why.message, kept_) : why;
}

Error Engine::undo(Error why) const {
    const auto stands = driver_.state(pid_);
    if (!stands || *stands != State::locked) return judge(std::move(why));
    if (const auto unlocked = driver_.unlock(pid_); !unlocked)
        why.message += fmt::format("; nor unlock it: {}", unlocked.error().message);
    return why;
}

Result<void> Engine::restore(std::span<const GpuPair> pairs) const {
    auto restored = driver_.restore(pid_, pairs);
    if (restored) return restored;
    auto error = std::move(restored).error();
    switch (error.code) {
    case ErrorCode::out_of_device_memory:
        return lost(error.message + "; the driver restores no process a second time", kept_);
    case ErrorCode::invalid_argument:
        error.message += "; gpu-wake without --gpu brings it back to where it was";
        return error;
    default: return judge(std::move(error));
    }
}

Result<bool> Engine::settle(State found) const {
    switch (found) {
    case State::running: return false;
    case State::locked: GPU_SLEEP_TRY(driver_.unlock(pid_)); return false;
    case State::checkpointed: return true;
    case State::failed: break;
    }
    return lost(k_failed_partway, kept_);
}

} // namespace gpu_sleep::checkpoint
