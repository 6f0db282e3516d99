// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of graph captures under way.

#include "registry/captures.hpp"

#include "registry/allocations.hpp"

#include <algorithm>

namespace gpu_sleep::agent::registry {

std::uint64_t Captures::note(const Key& key, CUcontext context, bool any_may_end) {
    const MutexLock lock(mutex_);
    auto [place, is_new] = open_.try_emplace(key);
    // One that is there already, and goes on, must not be taken for this one.
    place->second = {++last_number_, context, gate::t_seat, any_may_end};
    count_ = static_cast<unsigned>(open_.size());
    return is_new ? last_number_ : 0;
}

std::uint64_t Captures::number_of(const Key& key) const noexcept {
    const MutexLock lock(mutex_);
    const auto found = open_.find(key);
    return found == open_.end() ? 0 : found->second.number;
}

template <class Wanted>
Captures::Taken Captures::take_if(const Wanted& wanted) noexcept {
    const MutexLock lock(mutex_);
    auto taken = move_out(open_, wanted);
    count_ = static_cast<unsigned>(open_.size());
    return taken;
}

void Captures::forget(const Key& key, std::uint64_t number) noexcept {
    take_if([&](const auto& each) { return each.first == key && each.second.number == number; });
}

bool Captures::forget_thread(std::uint64_t thread) noexcept {
    return !take_if([=](const auto& each) { return std::get<2>(each.first) == thread; }).empty();
}

Captures::Taken Captures::take(CUstream stream) noexcept {
    return take_if([=](const auto& each) { return std::get<0>(each.first) == stream; });
}

Captures::Taken Captures::take(CUcontext context) noexcept {
    return take_if([=](const auto& each) { return each.second.context == context; });
}

void Captures::put_back(Taken& taken) noexcept {
    const MutexLock lock(mutex_);
    open_.merge(taken);
    count_ = static_cast<unsigned>(open_.size());
}

bool Captures::has_own() const noexcept {
    if (count() == 0 || !gate::t_seat) return false;
    const MutexLock lock(mutex_);
    return std::any_of(open_.begin(), open_.end(),
                       [](const auto& capture) { return capture.second.seat == gate::t_seat; });
}

std::size_t Captures::own_streams(std::span<CUstream> streams) const noexcept {
    if (count() == 0 || !gate::t_seat) return 0;
    const MutexLock lock(mutex_);
    std::size_t found = 0;
    for (const auto& [key, capture] : open_) {
        if (found == streams.size()) break;
        if (capture.seat == gate::t_seat && !capture.any_may_end) streams[found++] = std::get<0>(key);
    }
    return found;
}

std::optional<std::vector<gate::Named::Span>> Captures::wait_for() const {
    std::vector<const gate::Seat*> seats;
    {
        const MutexLock lock(mutex_);
        for (const auto& [key, capture] : open_) seats.push_back(capture.seat);
    }
    for (const auto* seat : seats)
        if (auto spans = gate::Gate::instance().sleeping_for(seat)) return spans;
    return std::nullopt;
}

} // namespace gpu_sleep::agent::registry
