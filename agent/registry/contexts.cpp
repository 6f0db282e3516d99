// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The records of contexts, who comes first at their mutex, and the list of captures.

#include "registry/contexts.hpp"

#include "base/guard.hpp"
#include "registry/allocations.hpp"

namespace gpu_sleep::agent::registry {
namespace {

/// Where memory is short the events are lost.
void give_events(Context& to, const std::vector<CUevent>& events) noexcept {
    ignoring_errors([&] { to.events.insert(to.events.end(), events.begin(), events.end()); });
}

} // namespace

Contexts::Alone::Alone(Contexts& contexts) : contexts_(contexts) {
    contexts_.count_ender(1);
    contexts_.alive.lock();
    contexts_.count_ender(-1);
}

void Contexts::count_ender(int change) {
    const MutexLock lock(enders_mutex_);
    enders_ += static_cast<unsigned>(change);
    if (enders_ == 0) none_waits_.notify_all();
}

void Contexts::let_end() noexcept {
    // Bounded, because a thread that holds the mutex may wait for work that needs the caller to go on.
    constexpr Milliseconds k_time_to_leave{5'000};
    if (!one_waits_to_end()) return;
    MutexLock lock(enders_mutex_);
    none_waits_.wait_for(enders_mutex_, k_time_to_leave, [this] { return enders_ == 0; });
}

void Contexts::add(Record record, CUcontext context, int device) noexcept {
    record.key() = context;
    record.mapped().device = device;
    const MutexLock lock(mutex_);
    contexts_.erase(context);
    contexts_.insert(std::move(record));
}

Contexts::Record Contexts::take(CUcontext context) noexcept {
    const MutexLock lock(mutex_);
    return contexts_.extract(context);
}

void Contexts::put_back(Record record) noexcept {
    if (record.empty()) return;
    const MutexLock lock(mutex_);
    auto [place, is_back, other] = contexts_.insert(std::move(record));
    if (is_back) return;
    // An event was taken meanwhile, which made a record anew.
    place->second.device = other.mapped().device;
    std::swap(place->second.events, other.mapped().events);
    give_events(place->second, other.mapped().events);
}

std::vector<CUcontext> Contexts::made_on(std::optional<int> device) const {
    const MutexLock lock(mutex_);
    std::vector<CUcontext> found;
    for (const auto& [handle, context] : contexts_)
        if (context.device && (!device || context.device == device)) found.push_back(handle);
    return found;
}

CUevent Contexts::take_event(CUcontext context) {
    const MutexLock lock(mutex_);
    auto& events = contexts_[context].events;
    if (events.empty()) return nullptr;
    auto* const event = events.back();
    events.pop_back();
    return event;
}

void Contexts::give_event(CUcontext context, CUevent event) noexcept {
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        const auto found = contexts_.find(context);
        if (found != contexts_.end()) found->second.events.push_back(event);
    });
}

void Contexts::add(GreenRecord record, CUgreenCtx handle, const Green& green) noexcept {
    record.key() = handle;
    record.mapped() = green;
    const MutexLock lock(mutex_);
    greens_.erase(handle);
    greens_.insert(std::move(record)); // its end lets go
    if (auto* const holds = holds_of(green.device)) ++*holds;
}

std::optional<Green> Contexts::find(CUgreenCtx handle) const noexcept {
    const MutexLock lock(mutex_);
    const auto found = greens_.find(handle);
    return found == greens_.end() ? std::nullopt : std::optional(found->second);
}

void Contexts::forget(CUgreenCtx handle) noexcept {
    const MutexLock lock(mutex_);
    greens_.erase(handle);
}

void Contexts::hand_events_on(const Green& green) noexcept {
    const MutexLock lock(mutex_);
    auto taken = contexts_.extract(green.context);
    if (!taken) return;
    taken.key() = green.primary;
    const auto [primary, is_first, again] = contexts_.insert(std::move(taken));
    if (!is_first) give_events(primary->second, again.mapped().events);
}

CUcontext Contexts::owner_of_memory_in(CUcontext context) const noexcept {
    const MutexLock lock(mutex_);
    for (const auto& [handle, green] : greens_)
        if (context && green.context == context) return green.primary;
    return context;
}

unsigned* Contexts::holds_of(CUdevice device) noexcept {
    return device >= 0 && device < driver::k_max_devices ? &holds_[static_cast<std::size_t>(device)]
                                                         : nullptr;
}

void Contexts::hold(CUdevice device) noexcept {
    const MutexLock lock(mutex_);
    if (auto* const holds = holds_of(device)) ++*holds;
}

Contexts::LettingGo Contexts::let_go(CUdevice device, bool also_last) noexcept {
    const MutexLock lock(mutex_);
    auto* const holds = holds_of(device);
    const LettingGo going{holds && *holds > 0, !holds || *holds <= 1};
    if (going.was_held && (also_last || !going.is_last)) --*holds;
    return going;
}

bool Contexts::holds(CUdevice device) noexcept {
    const MutexLock lock(mutex_);
    const auto* const holds = holds_of(device);
    return holds && *holds != 0;
}

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
