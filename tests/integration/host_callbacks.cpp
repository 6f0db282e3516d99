// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the host program does before a sleep and after a wake.

#include "host_callbacks.hpp"

#include <chrono>

namespace gpu_sleep::test {

Result<std::string> HostCallbacks::install(std::istream& words) {
    std::string kind;
    std::uint32_t deadline_ms = 0;
    words >> kind >> deadline_ms;
    for (const int old : std::exchange(ids_, {})) GPU_SLEEP_TRY(checked(gpu_sleep_remove_callback(old)));
    {
        const std::lock_guard lock(mutex_);
        kind_ = kind;
        may_go_ = false;
        before_ = after_ = 0;
    }
    const auto add = [&](const char* name, gpu_sleep_callback callback) {
        return checked(gpu_sleep_add_named_callback(name, callback, this, deadline_ms, &ids_.emplace_back()));
    };
    if (kind.starts_with("named")) {
        GPU_SLEEP_TRY(add("abort", before_sleep));
        GPU_SLEEP_TRY(add("reset_prefix_cache", reply));
        GPU_SLEEP_TRY(add("broken", [](const gpu_sleep_event*, void*) {
            gpu_sleep_explain("the file is gone");
            return 1;
        }));
        GPU_SLEEP_TRY(add("linger", [](const gpu_sleep_event*, void* self) {
            return static_cast<HostCallbacks*>(self)->linger();
        }));
        return std::string();
    }
    if (kind != "none")
        GPU_SLEEP_TRY(checked(
            gpu_sleep_add_callback(before_sleep, after_wake, this, deadline_ms, &ids_.emplace_back())));
    return std::string();
}

Result<std::string> HostCallbacks::let_go() {
    {
        const std::lock_guard lock(mutex_);
        may_go_ = true;
    }
    gone_.notify_all();
    return std::string();
}

Result<std::string> HostCallbacks::calls() {
    const std::lock_guard lock(mutex_);
    return fmt::format("{} {} {} {}", before_, after_, level_, dropped_);
}

void HostCallbacks::note(const gpu_sleep_event& event, int& count) {
    const std::lock_guard lock(mutex_);
    ++count;
    level_ = event.level;
    dropped_ = event.dropped_tag_count;
}

int HostCallbacks::before_sleep(const gpu_sleep_event* event, void* self) {
    auto& callbacks = *static_cast<HostCallbacks*>(self);
    callbacks.note(*event, callbacks.before_);
    if (callbacks.kind_.ends_with("linger")) return callbacks.linger();
    if (callbacks.kind_ == "touch") return spin(1) ? 0 : 1;
    return 0;
}

int HostCallbacks::reply(const gpu_sleep_event* event, void* /*self*/) {
    return gpu_sleep_reply(event->argument) == GPU_SLEEP_OK ? 0 : 1;
}

int HostCallbacks::after_wake(const gpu_sleep_event* event, void* self) {
    auto& callbacks = *static_cast<HostCallbacks*>(self);
    callbacks.note(*event, callbacks.after_);
    return 0;
}

int HostCallbacks::linger() {
    std::unique_lock lock(mutex_);
    gone_.wait_for(lock, std::chrono::minutes(1), [this] { return may_go_; });
    return 0;
}

} // namespace gpu_sleep::test
