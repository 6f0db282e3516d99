// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The environment's settings, and when it is time to sleep.

#include "lifecycle/idle_timer.hpp"

#include "base/log.hpp"
#include "common/settings.hpp"
#include "model/environment.hpp"

#include <fmt/format.h>

namespace gpu_sleep::agent::lifecycle {
namespace {

constexpr Milliseconds k_second{1'000};

std::string words_of(Milliseconds time) {
    return format_seconds(std::chrono::duration<double>(time).count());
}

constexpr std::string_view k_idle_words = "a number of milliseconds, from 1 to 10000 days";
/// At least one.
std::optional<Milliseconds> parse_idle(std::string_view text) noexcept {
    const auto limit = parse_limit(text);
    return limit && limit->count() > 0 ? limit : std::nullopt;
}

/// Where it is to keep contents; nothing where that makes no sense.
std::optional<model::Placement> parse_stores(std::string_view words) {
    model::Placement placement;
    for (bool is_last = false; !is_last;) {
        const auto comma = words.find(',');
        is_last = comma == std::string_view::npos;
        if (!model::add_store(words.substr(0, comma), placement)) return std::nullopt;
        if (!is_last) words.remove_prefix(comma + 1);
    }
    return placement;
}

model::TimerRequest request_of_environment() {
    namespace environment = model::environment;
    model::TimerRequest request;
    const auto after = parsed_setting(environment::k_idle, k_idle_words, parse_idle);
    if (!after) return request;
    if (auto placement = parsed_setting(environment::k_idle_store,
                                        "host or file, or TAG=STORE, separated by commas", parse_stores))
        static_cast<model::Placement&>(request) = *std::move(placement);
    const auto parse_directory = [](std::string_view text) {
        return text.starts_with('/') ? std::optional(std::string(text)) : std::nullopt;
    };
    if (auto directory = parsed_setting(environment::k_idle_directory, "an absolute path", parse_directory))
        request.directory = *std::move(directory);
    if (!request.directory.empty() && setting(environment::k_idle_store).empty())
        request.store = model::Store::file; // who names a directory means files
    request.deep = switch_setting(environment::k_idle_deep).value_or(false);
    request.after = *after;
    return request;
}

} // namespace

IdleTimer::IdleTimer() : says_touches_(!setting(model::environment::k_on_touch).empty()) {
    set(request_of_environment());
}

void IdleTimer::set(const model::TimerRequest& request) {
    model::SleepRequest sleep;
    const model::Placement& placement = request;
    static_cast<model::Placement&>(sleep) = placement;
    sleep.deep = request.deep;
    sleep.on_touch = request.on_touch;
    // It sleeps until it is used again, unless it was said what its touches do.
    if (!sleep.on_touch && !says_touches_) sleep.on_touch = model::OnTouch::wake;
    const MutexLock lock(mutex_);
    wanted_ = {std::move(sleep), request.after};
    ++settings_;
    trouble_.clear();
    told_.clear();
    goes_less_deep_ = false;
    next_try_ = {};
}

Milliseconds IdleTimer::pause_between_looks() const noexcept {
    const MutexLock lock(mutex_);
    if (!is_set()) return Milliseconds::max();
    const auto may_be_late = std::max(k_second, wanted_.only_if_idle / 10);
    return may_be_late / 4; // idleness is known up to two looks late, and this is one more
}

bool IdleTimer::is_due(double idle_seconds) const noexcept {
    const MutexLock lock(mutex_);
    const auto after = std::chrono::duration<double>(wanted_.only_if_idle).count();
    return is_set() && idle_seconds >= after && Clock::now() >= next_try_;
}

IdleTimer::Try IdleTimer::next() const {
    const MutexLock lock(mutex_);
    Try next{wanted_, settings_};
    next.request.sleep.deep &= !goes_less_deep_;
    return next;
}

void IdleTimer::note_end(const server::Outcome& outcome, const Try& begun) {
    const auto* const failed = std::get_if<model::Failure>(&outcome);
    const auto trouble = failed ? failed->error.message : std::string();
    const bool has_slept = !failed && std::get<model::Report>(outcome).changed;
    MutexLock lock(mutex_);
    if (begun.setting != settings_) return;
    const auto after = wanted_.only_if_idle;
    // One that is refused for being deep is tried again at once, without that.
    goes_less_deep_ = failed && begun.request.sleep.deep && model::is_resident(failed->state) &&
                      failed->error.code == ErrorCode::driver_failed;
    next_try_ = has_slept || goes_less_deep_ ? Clock::time_point()
                                             : Clock::now() + std::clamp(after, k_second, 60 * k_second);
    trouble_ = trouble;
    if (!failed || told_ == trouble) return;
    told_ = trouble;
    lock.unlock();
    log::warning("the process was idle for {}, but its sleep failed: {}", words_of(after), trouble);
}

std::string IdleTimer::note(bool knows_idleness) const {
    const MutexLock lock(mutex_);
    if (!is_set()) return {};
    auto words =
        fmt::format("it sleeps after {} without work on the GPU (--idle)", words_of(wanted_.only_if_idle));
    if (!knows_idleness) words += ", but the agent cannot tell now whether it is idle";
    if (!trouble_.empty()) words += "; its last sleep failed: " + trouble_;
    return words;
}

} // namespace gpu_sleep::agent::lifecycle
