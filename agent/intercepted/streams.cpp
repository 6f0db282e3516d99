// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What of the list of captures, and of the frees that wait for them, changes with streams.

#include "intercepted/streams.hpp"

#include "common/interception.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/pending_removal.hpp"
#include "intercepted/state.hpp"
#include "intercepted/trimming.hpp"
#include "intercepted/waiting_frees.hpp"

#include <mutex>
#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Its address tells threads apart. A thread's default streams end with it, and so do their captures.
struct ThreadMark {
    ~ThreadMark() {
        if (!intercepts()) return; // a child of fork(), in which nobody may be left who gives the mutex back
        ignoring_errors([&] {
            if (forget_captures_of_thread(number())) free_waiting();
        });
    }
    [[nodiscard]] std::uint64_t number() const noexcept { return reinterpret_cast<std::uint64_t>(this); }
};

std::uint64_t this_thread() noexcept {
    static thread_local ThreadMark s_mark;
    return s_mark.number();
}

CaptureKey capture_key(CUstream stream, bool per_thread, CUcontext context) noexcept {
    const bool is_threads_own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return is_threads_own ? CaptureKey(CU_STREAM_PER_THREAD, context, this_thread())
                          : CaptureKey(stream, nullptr, 0);
}

/// The stream's context; null before the agent runs.
CUcontext known_context_of(CUstream stream) noexcept {
    const auto with = memory();
    return with ? context_of(*with, stream) : nullptr;
}

} // namespace

std::optional<std::uint64_t> capture_begins(CUstream stream, bool per_thread, bool any_may_end) noexcept {
    std::optional<std::uint64_t> number;
    ignoring_errors([&] {
        const std::unique_lock order(capture_order());
        auto* const context = known_context_of(stream);
        number = note_capture(capture_key(stream, per_thread, context), context, any_may_end);
    });
    return number;
}

void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept {
    ignoring_errors([&] {
        if (number == 0) return;
        forget_capture(capture_key(stream, per_thread, known_context_of(stream)), number);
        free_waiting();
    });
}

std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept {
    std::uint64_t number = 0;
    ignoring_errors([&] { number = capture_in(capture_key(stream, per_thread, known_context_of(stream))); });
    return number;
}

void capture_ended(CUstream stream, bool per_thread, std::uint64_t number, CUresult status) noexcept {
    ignoring_errors([&] {
        // A broken capture is over too, and one that the wrong thread was to end, but not one that the wrong
        // stream was.
        if (const auto with = memory(); with && status != CUDA_SUCCESS) {
            auto state = CU_STREAM_CAPTURE_STATUS_NONE;
            auto* const handle = !stream && per_thread ? CU_STREAM_PER_THREAD : stream;
            if (with->api().cuStreamIsCapturing(handle, &state) == CUDA_SUCCESS &&
                state != CU_STREAM_CAPTURE_STATUS_NONE)
                return;
        }
        capture_failed(stream, per_thread, number);
    });
}

CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept {
    PutBack put_captures_back;
    ignoring_errors([&] {
        put_captures_back = take_captures_of(stream);
        forget_order_of(stream); // for good: if the stream stays, its blocks wait for their events
    });
    const auto status = destroy();
    if (status == CUDA_SUCCESS) synchronized(); // as the driver's pools have it
    if (put_captures_back) {
        if (status == CUDA_SUCCESS)
            free_waiting();
        else
            ignoring_errors(put_captures_back);
    }
    return status;
}

} // namespace gpu_sleep::agent::intercepted
