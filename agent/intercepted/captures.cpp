// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of graph captures under way.

#include "intercepted/captures.hpp"

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

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
};

/// Takes captures out of the books. Returns them.
template <class Wanted>
std::map<CaptureKey, Capture> take_captures(const Wanted& wanted) {
    auto& all = immortal<Captures>();
    const MutexLock lock(all.mutex);
    auto taken = move_out(all.open, wanted);
    all.count = static_cast<unsigned>(all.open.size());
    return taken;
}

void put_captures_back(std::map<CaptureKey, Capture>& taken) {
    auto& all = immortal<Captures>();
    const MutexLock lock(all.mutex);
    all.open.merge(taken);
    all.count = static_cast<unsigned>(all.open.size());
}

PutBack to_put_back(std::map<CaptureKey, Capture> taken) {
    return [taken = std::move(taken)]() mutable { put_captures_back(taken); };
}

} // namespace

std::shared_mutex& capture_order() noexcept {
    static Immortal<std::shared_mutex> s_order;
    return *s_order;
}

std::uint64_t note_capture(const CaptureKey& key, CUcontext context, bool any_may_end) {
    auto& all = immortal<Captures>();
    const MutexLock lock(all.mutex);
    auto [place, is_new] = all.open.try_emplace(key);
    // One that is there already, and goes on, must not be taken for this one.
    place->second = {++all.last_number, context, gate::t_seat, any_may_end};
    all.count = static_cast<unsigned>(all.open.size());
    return is_new ? all.last_number : 0;
}

std::uint64_t capture_in(const CaptureKey& key) {
    auto& all = immortal<Captures>();
    const MutexLock lock(all.mutex);
    const auto found = all.open.find(key);
    return found == all.open.end() ? 0 : found->second.number;
}

void forget_capture(const CaptureKey& key, std::uint64_t number) {
    take_captures([&](const auto& each) { return each.first == key && each.second.number == number; });
}

bool forget_captures_of_thread(std::uint64_t thread) {
    return !take_captures([=](const auto& each) { return std::get<2>(each.first) == thread; }).empty();
}

PutBack take_captures_of(CUstream stream) {
    auto taken = take_captures([=](const auto& each) { return std::get<0>(each.first) == stream; });
    return taken.empty() ? PutBack() : to_put_back(std::move(taken));
}

PutBack take_captures_of(CUcontext context) {
    const auto taken = std::make_shared<std::map<CaptureKey, Capture>>();
    PutBack put_back = [taken] { put_captures_back(*taken); };
    *taken = take_captures([=](const auto& each) { return each.second.context == context; });
    return put_back;
}

unsigned captures_open() noexcept {
    return immortal<Captures>().count.load(std::memory_order_seq_cst);
}

bool has_capture_open() noexcept {
    if (captures_open() == 0 || !gate::t_seat) return false;
    auto& all = immortal<Captures>();
    const MutexLock lock(all.mutex);
    const auto is_mine = [](const auto& capture) { return capture.second.seat == gate::t_seat; };
    return std::any_of(all.open.begin(), all.open.end(), is_mine);
}

std::size_t streams_captured_here(std::span<CUstream> streams) noexcept {
    if (captures_open() == 0 || !gate::t_seat) return 0;
    auto& all = immortal<Captures>();
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
        auto& all = immortal<Captures>();
        const MutexLock lock(all.mutex);
        for (const auto& [key, capture] : all.open) seats.push_back(capture.seat);
    }
    for (const auto* seat : seats)
        if (auto spans = gate::Gate::instance().sleeping_for(seat)) return spans;
    return std::nullopt;
}

} // namespace gpu_sleep::agent::intercepted
