// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One step after another, and what becomes of the process where one fails.

#include "checkpoint/steps.hpp"

#include "base/log.hpp"

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
                          "{}: it is lost, its calls to the driver never return, and what it had on the GPU "
                          "cannot be saved; end the process",
                          why);
    return make_error(ErrorCode::context_lost,
                      "the driver has lost it ({}): its calls to the driver never return; save what is kept "
                      "of it with gpu-sleep --store file --dir DIR --keep-files, then end it",
                      why);
}

Error lost(Error why, Kept kept) {
    auto said = lost(std::string_view(why.message), kept);
    why.code = said.code;
    why.message = std::move(said.message);
    return why;
}

Result<void> Steps::lock(Milliseconds timeout, State found) const {
    if (found == State::locked) GPU_SLEEP_TRY(unlock());
    const log::Step step("driver: lock");
    auto locked = driver_.lock(pid_, timeout);
    if (locked) return locked;
    auto error = std::move(locked).error();
    if (error.code == ErrorCode::timed_out)
        error.message =
            fmt::format("its GPU work did not finish within {} ms ({})", timeout.count(), error.message);
    return judge(not_done("lock", std::move(error)));
}

Result<void> Steps::checkpoint() const {
    const log::Step step("driver: checkpoint");
    auto done = driver_.checkpoint(pid_);
    return done ? done : undo(not_done("checkpoint", std::move(done).error()));
}

Error Steps::judge(Error why) const {
    const auto stands = driver_.state(pid_);
    return stands && *stands == State::failed ? lost(std::move(why), kept_) : why;
}

Error Steps::undo(Error why) const {
    if (const auto stands = driver_.state(pid_); stands && *stands != State::locked)
        return *stands == State::failed ? lost(std::move(why), kept_) : why;
    const auto unlocked = driver_.unlock(pid_);
    if (unlocked) return why;
    why.message += fmt::format("; the driver did not unlock it: {}", unlocked.error().message);
    return judge(std::move(why));
}

Result<void> Steps::restore(std::span<const GpuPair> pairs) const {
    const log::Step step("driver: restore");
    auto restored = driver_.restore(pid_, pairs);
    if (restored) return restored;
    auto error = std::move(restored).error();
    switch (error.code) {
    case ErrorCode::out_of_device_memory:
        error.message = fmt::format(
            "the driver restored it with too little GPU memory, and cannot try again: {}", error.message);
        return lost(std::move(error), kept_);
    case ErrorCode::invalid_argument:
        error.message += "; gpu-wake without --gpu brings it back to where it was";
        return error;
    default: return judge(std::move(error));
    }
}

Result<void> Steps::unlock() const {
    const log::Step step("driver: unlock");
    auto done = driver_.unlock(pid_);
    return done ? done : judge(not_done("unlock", std::move(done).error()));
}

Result<bool> Steps::settle(State found) const {
    switch (found) {
    case State::running: return false;
    case State::locked: GPU_SLEEP_TRY(unlock()); return false;
    case State::checkpointed: return true;
    case State::failed: break;
    }
    return lost(k_failed_partway, kept_);
}

} // namespace gpu_sleep::checkpoint
