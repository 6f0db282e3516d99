// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graph captures under way, as the program begins and ends them.

#include "intercepted/captures.hpp"

#include "base/immortal.hpp"
#include "common/lock_order.hpp"
#include "intercepted/plain.hpp"
#include "intercepted/state.hpp"
#include "intercepted/taken.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

/// The context and the thread count for per-thread streams only: all others have handles of their own.
using CaptureKey = std::tuple<CUstream, CUcontext, std::uint64_t>;

struct Capture {
    std::uint64_t number = 0; ///< never used twice
    CUcontext context = nullptr;
    const gate::Seat* seat = nullptr; ///< of the thread that began it; after its end perhaps another's
    bool any_may_end = false;         ///< and not that thread alone
};

struct Captures {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CaptureKey, Capture> open GPU_SLEEP_GUARDED_BY(mutex);
    std::uint64_t last_number GPU_SLEEP_GUARDED_BY(mutex) = 0;
    std::atomic<unsigned> count{0}; ///< of those open, for who holds no mutex
    static Captures& instance() {
        static Immortal<Captures> s_captures;
        return *s_captures;
    }
};

/// Takes captures out of the books. Returns them.
std::map<CaptureKey, Capture>
take_captures(const std::function<bool(const CaptureKey& key, const Capture& capture)>& wanted) {
    auto& all = Captures::instance();
    const MutexLock lock(all.mutex);
    std::map<CaptureKey, Capture> taken;
    for (auto next = all.open.begin(); next != all.open.end();) {
        const auto here = next++;
        if (wanted(here->first, here->second)) taken.insert(all.open.extract(here));
    }
    all.count = static_cast<unsigned>(all.open.size());
    return taken;
}

void put_captures_back(std::map<CaptureKey, Capture>& taken) {
    auto& all = Captures::instance();
    const MutexLock lock(all.mutex);
    all.open.merge(taken);
    all.count = static_cast<unsigned>(all.open.size());
}

/// What goes, for good, with what they were begun in, or is put back.
Taken to_put_back(std::map<CaptureKey, Capture> taken) {
    auto stays = [taken = std::move(taken)]() mutable { put_captures_back(taken); };
    return {[] {}, std::move(stays)};
}

/// Its address tells threads apart. A thread's default streams end with it, and so do their captures.
struct ThreadMark {
    ~ThreadMark() {
        ignoring_errors([&] {
            const auto is_mine = [&](const CaptureKey& key, const Capture&) {
                return std::get<2>(key) == number();
            };
            if (!take_captures(is_mine).empty()) free_waiting();
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

std::shared_mutex& capture_order() noexcept {
    static Immortal<std::shared_mutex> s_order;
    return *s_order;
}

std::uint64_t capture_begins(CUstream stream, bool per_thread, bool any_may_end) noexcept {
    std::uint64_t number = 0;
    ignoring_errors([&] {
        const std::unique_lock order(capture_order());
        auto* const context = known_context_of(stream);
        auto& all = Captures::instance();
        const MutexLock lock(all.mutex);
        auto [place, is_new] = all.open.try_emplace(capture_key(stream, per_thread, context));
        // One that is there already, and goes on, must not be taken for this one.
        place->second = {++all.last_number, context, gate::t_seat, any_may_end};
        if (is_new) number = all.last_number;
        all.count = static_cast<unsigned>(all.open.size());
    });
    return number;
}

void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept {
    ignoring_errors([&] {
        if (number == 0) return;
        const auto key = capture_key(stream, per_thread, known_context_of(stream));
        take_captures([&](const CaptureKey& k, const Capture& c) { return k == key && c.number == number; });
        free_waiting();
    });
}

std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept {
    std::uint64_t number = 0;
    ignoring_errors([&] {
        const auto key = capture_key(stream, per_thread, known_context_of(stream));
        auto& all = Captures::instance();
        const MutexLock lock(all.mutex);
        const auto found = all.open.find(key);
        if (found != all.open.end()) number = found->second.number;
    });
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

Taken take_captures_of(CUstream stream) {
    return to_put_back(
        take_captures([=](const CaptureKey& key, const Capture&) { return std::get<0>(key) == stream; }));
}

Taken take_captures_of(CUcontext context) {
    return to_put_back(
        take_captures([=](const CaptureKey&, const Capture& capture) { return capture.context == context; }));
}

unsigned captures_open() noexcept {
    return Captures::instance().count.load(std::memory_order_seq_cst);
}

bool has_capture_open() noexcept {
    if (captures_open() == 0 || !gate::t_seat) return false;
    auto& all = Captures::instance();
    const MutexLock lock(all.mutex);
    const auto is_mine = [](const auto& capture) { return capture.second.seat == gate::t_seat; };
    return std::any_of(all.open.begin(), all.open.end(), is_mine);
}

std::size_t streams_captured_here(std::span<CUstream> streams) noexcept {
    if (captures_open() == 0 || !gate::t_seat) return 0;
    auto& all = Captures::instance();
    const MutexLock lock(all.mutex);
    std::size_t count = 0;
    for (const auto& [key, capture] : all.open) {
        if (count == streams.size()) break;
        if (capture.seat == gate::t_seat && !capture.any_may_end) streams[count++] = std::get<0>(key);
    }
    return count;
}

std::optional<std::vector<gate::Named::Span>> captures_wait_for() {
    std::vector<const gate::Seat*> seats;
    {
        auto& all = Captures::instance();
        const MutexLock lock(all.mutex);
        for (const auto& [key, capture] : all.open) seats.push_back(capture.seat);
    }
    for (const auto* seat : seats)
        if (auto spans = gate::Gate::instance().sleeping_for(seat)) return spans;
    return std::nullopt;
}

} // namespace gpu_sleep::agent::intercepted
