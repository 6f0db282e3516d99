// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The records of contexts, and who comes first at their mutex.

#include "registry/contexts.hpp"

#include "base/guard.hpp"

#include <utility>

namespace gpu_sleep::agent::registry {
namespace {

template <class Map>
[[nodiscard]] typename Map::node_type make_node() {
    Map made;
    made.emplace();
    return made.extract(made.begin());
}

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

Contexts::Record Contexts::make_record() {
    return make_node<std::map<CUcontext, Context>>();
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

Contexts::GreenRecord Contexts::make_green() {
    return make_node<std::map<CUgreenCtx, Green>>();
}

void Contexts::add(GreenRecord record, CUgreenCtx handle, const Green& green) noexcept {
    record.key() = handle;
    record.mapped() = green;
    const MutexLock lock(mutex_);
    greens_.erase(handle);
    greens_.insert(std::move(record)); // its end lets go
    ++holds_[green.device];
}

Contexts::GreenRecord Contexts::take(CUgreenCtx handle) noexcept {
    const MutexLock lock(mutex_);
    return greens_.extract(handle);
}

void Contexts::put_back(GreenRecord record) noexcept {
    const MutexLock lock(mutex_);
    greens_.insert(std::move(record));
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

void Contexts::prepare_hold(CUdevice device) {
    const MutexLock lock(mutex_);
    holds_.try_emplace(device);
}

void Contexts::hold(CUdevice device) noexcept {
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        ++holds_[device];
    });
}

Contexts::LettingGo Contexts::let_go(CUdevice device) noexcept {
    const MutexLock lock(mutex_);
    const auto found = holds_.find(device);
    const auto holds = found == holds_.end() ? 0 : found->second;
    if (holds > 0) --found->second;
    return {holds > 0, holds <= 1};
}

bool Contexts::let_go_of_one(CUdevice device) noexcept {
    const MutexLock lock(mutex_);
    const auto found = holds_.find(device);
    const bool is_done = found != holds_.end() && found->second > 1;
    if (is_done) --found->second;
    return is_done;
}

bool Contexts::holds(CUdevice device) const noexcept {
    const MutexLock lock(mutex_);
    const auto found = holds_.find(device);
    return found != holds_.end() && found->second != 0;
}

} // namespace gpu_sleep::agent::registry
