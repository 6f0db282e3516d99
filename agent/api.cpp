// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The C API: checks arguments, calls the agent, and turns errors into statuses. No policy.

#include "gpu_sleep/gpu_sleep.h"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "common/tag_scope.hpp"
#include "lifecycle/agent.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

using namespace gpu_sleep;
using agent::Agent;

namespace {

thread_local std::string t_last_error;

gpu_sleep_status fail(const Error& error) noexcept {
    try {
        t_last_error = error.message;
    } catch (const std::bad_alloc&) {
        t_last_error.clear();
    }
    switch (error.code) { // every code, so that the compiler asks for the status of a new one
    case ErrorCode::invalid_argument:
    case ErrorCode::unknown_tag:
    case ErrorCode::timed_out:
    case ErrorCode::damaged:
    case ErrorCode::driver_failed:
    case ErrorCode::out_of_device_memory:
    case ErrorCode::out_of_host_memory:
    case ErrorCode::refused:
    case ErrorCode::capture_in_progress:
    case ErrorCode::io_failed:
    case ErrorCode::no_refill:
    case ErrorCode::no_driver:
    case ErrorCode::not_owned:
    case ErrorCode::context_lost:
    case ErrorCode::unseen_library:
    case ErrorCode::out_of_disk: return static_cast<gpu_sleep_status>(error.code); // has the same number
    case ErrorCode::no_process: return GPU_SLEEP_ERROR_CONTEXT_LOST; // this one, which is ending
    case ErrorCode::out_of_threads:
        return GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY; // the nearest that callers know
    case ErrorCode::internal:
    case ErrorCode::no_agent: // of commands, not of calls, as those below
    case ErrorCode::not_permitted:
    case ErrorCode::cancelled:
    case ErrorCode::protocol_mismatch:
    case ErrorCode::connection_lost:
    case ErrorCode::outcome_unknown:
    case ErrorCode::ambiguous_name:
    case ErrorCode::agent_unreachable:
    case ErrorCode::inhibited:
    case ErrorCode::stopped: break;
    }
    return GPU_SLEEP_ERROR_INTERNAL;
}

/// Runs the body of an API function, which returns a Result<void> or nothing: nothing it throws reaches the
/// program.
template <class Body>
gpu_sleep_status finish(Body&& body) noexcept {
    const CancellationHold no_cancellation; // which would unwind through what must not throw
    const auto result = guarded(std::forward<Body>(body));
    return result ? GPU_SLEEP_OK : fail(result.error());
}

Error invalid(std::string_view what) {
    return make_error(ErrorCode::invalid_argument, "{}", what);
}

/// `tag` as text. Errors: invalid_argument.
Result<std::string_view> checked_tag(const char* tag) {
    if (!tag || !model::is_valid_tag(tag))
        return invalid("a tag is 1 to 64 letters, digits, '_', '-', '.' or ':'");
    return std::string_view(tag);
}

/// Runs the body of an API function with `tag` as text.
template <class Body>
gpu_sleep_status finish_with(const char* tag, const Body& body) noexcept {
    return finish([&]() -> Result<void> {
        const auto name = checked_tag(tag);
        return name ? body(*name) : Result<void>(name.error());
    });
}

Result<void> run(agent::server::Operation operation) {
    auto outcome = Agent::instance().run_here(std::move(operation));
    if (auto* failure = std::get_if<model::Failure>(&outcome)) return std::move(failure->error);
    return {};
}

std::string_view current_tag() {
    const auto scope = agent::current_scope_tag();
    return scope.empty() ? model::k_default_tag : scope;
}

driver::DeviceAddress address_of(const void* pointer) {
    return reinterpret_cast<driver::DeviceAddress>(pointer);
}

/// The tags of a list; none for NULL, which means all. An empty name is no tag, and is refused as unknown.
std::vector<std::string> split_tags(const char* tags) {
    std::vector<std::string> names;
    if (!tags) return names;
    for (std::string_view rest = tags;;) {
        const auto comma = rest.find(',');
        names.emplace_back(rest.substr(0, comma));
        if (comma == std::string_view::npos) return names;
        rest.remove_prefix(comma + 1);
    }
}

/// The request for a sleep that the program asks for itself. Errors: invalid_argument.
Result<model::SleepRequest> own_sleep(int level, const char* tags, uint32_t timeout_ms) {
    if (level < 0 || level > 2) return invalid("the level must be 0, 1 or 2");
    model::SleepRequest request;
    request.level = static_cast<model::Level>(level);
    request.tags = split_tags(tags);
    request.force = true; // it knows what its libraries do
    request.bounds_all = timeout_ms != 0;
    if (timeout_ms != 0) request.timeout = Milliseconds(timeout_ms);
    return request;
}

model::WakeRequest own_wake(const char* tags, uint32_t wait_ms, uint32_t timeout_ms) {
    model::WakeRequest request;
    request.tags = split_tags(tags);
    request.wait = Milliseconds(wait_ms);
    request.live_bytes = 0; // whoever moved it brings it back
    request.bounds_all = timeout_ms != 0;
    if (timeout_ms != 0) request.timeout = Milliseconds(timeout_ms);
    return request;
}

gpu_sleep_state c_state(model::State state) noexcept {
    switch (state) {
    case model::State::asleep: return GPU_SLEEP_ASLEEP;
    case model::State::partial: return GPU_SLEEP_PARTLY_ASLEEP;
    case model::State::damaged: return GPU_SLEEP_DAMAGED;
    default: return GPU_SLEEP_AWAKE;
    }
}

gpu_sleep_tag_state c_state(const model::TagReport& tag) noexcept {
    gpu_sleep_tag_state state{};
    tag.tag.copy(state.tag, sizeof(state.tag) - 1);
    state.device = tag.device;
    state.state = c_state(tag.state);
    state.retention = static_cast<gpu_sleep_retention>(tag.policy.retention);
    state.needs_refill = tag.needs_refill ? 1 : 0;
    state.bytes = tag.bytes;
    state.resident_bytes = tag.resident;
    state.kept_bytes = tag.kept;
    state.dropped_bytes = tag.dropped;
    return state;
}

} // namespace

extern "C" {

const char* gpu_sleep_version(void) {
    return GPU_SLEEP_VERSION;
}

int gpu_sleep_api_version(void) {
    return GPU_SLEEP_API_VERSION;
}

const char* gpu_sleep_last_error(void) {
    return t_last_error.c_str();
}

gpu_sleep_status gpu_sleep_alloc(void** pointer, size_t bytes, int device, const char* tag) {
    return finish([&]() -> Result<void> {
        if (!pointer) return invalid("the pointer for the address is NULL");
        const auto name = tag ? checked_tag(tag) : Result<std::string_view>(current_tag());
        if (!name) return name.error();
        const auto address = Agent::instance().allocate(device, *name, bytes);
        if (!address) return address.error();
        *pointer = reinterpret_cast<void*>(*address);
        return {};
    });
}

gpu_sleep_status gpu_sleep_free(void* pointer) {
    return finish([&] { return pointer ? Agent::instance().free(address_of(pointer)) : Result<void>(); });
}

gpu_sleep_status gpu_sleep_allow_access(void* pointer, int device) {
    return finish([&] { return Agent::instance().allow_access(address_of(pointer), device); });
}

gpu_sleep_status gpu_sleep_push_tag(const char* tag) {
    return finish_with(tag, [](std::string_view name) -> Result<void> {
        agent::t_scope_tags.emplace_back(name);
        return {};
    });
}

gpu_sleep_status gpu_sleep_pop_tag(void) {
    return finish([]() -> Result<void> {
        if (agent::t_scope_tags.empty()) return invalid("no tag scope is open on this thread");
        agent::t_scope_tags.pop_back();
        return {};
    });
}

gpu_sleep_status gpu_sleep_set_policy(const char* tag, gpu_sleep_retention retention, int refillable) {
    return finish_with(tag, [&](std::string_view name) -> Result<void> {
        if (retention < GPU_SLEEP_OFFLOAD || retention > GPU_SLEEP_DISCARD)
            return invalid("there is no such retention policy");
        Agent::instance().memory().set_policy(name,
                                              {static_cast<model::Retention>(retention), refillable != 0});
        return {};
    });
}

gpu_sleep_status gpu_sleep_set_separable(const char* tag, int separable) {
    return finish_with(tag, [&](std::string_view name) -> Result<void> {
        Agent::instance().memory().set_separable(name, separable != 0);
        return {};
    });
}

gpu_sleep_status gpu_sleep_set_retained(uint64_t bytes) {
    return finish([&] { Agent::instance().memory().limit_retained(bytes); });
}

gpu_sleep_status gpu_sleep_prepare(void) {
    return finish([] { Agent::instance().prepare(); });
}

gpu_sleep_status gpu_sleep_preserve(void* pointer, size_t bytes) {
    return finish([&]() -> Result<void> {
        if (bytes == 0) return invalid("a span of zero bytes preserves nothing");
        return Agent::instance().memory().preserve(address_of(pointer), bytes);
    });
}

gpu_sleep_status gpu_sleep_keep_on_gpu(const void* pointer) {
    return finish([&] { return Agent::instance().memory().keep_on_gpu(address_of(pointer)); });
}

gpu_sleep_status gpu_sleep_mark_refilled(const char* tag) {
    return finish_with(tag,
                       [](std::string_view name) { return Agent::instance().memory().mark_refilled(name); });
}

gpu_sleep_status gpu_sleep_set_name(const char* name) {
    return finish([&]() -> Result<void> {
        if (!name) return invalid("the name is NULL");
        if (*name != '\0' && !model::is_valid_name(name))
            return make_error(ErrorCode::invalid_argument, "'{}' is not {}", name, model::k_name_rule);
        Agent::instance().set_name(name);
        return {};
    });
}

gpu_sleep_status gpu_sleep_add_callback(gpu_sleep_callback before_sleep, gpu_sleep_callback after_wake,
                                        void* user, uint32_t deadline_ms, int* id) {
    return finish([&]() -> Result<void> {
        if (!before_sleep && !after_wake) return invalid("both callbacks are NULL");
        auto& callbacks = Agent::instance().callbacks();
        const int added = callbacks.add(before_sleep, after_wake, user, Milliseconds(deadline_ms));
        if (id) *id = added;
        return {};
    });
}

gpu_sleep_status gpu_sleep_add_named_callback(const char* name, gpu_sleep_callback callback, void* user,
                                              uint32_t deadline_ms, int* id) {
    return finish([&]() -> Result<void> {
        if (!name || !model::is_valid_tag(name) || !callback)
            return invalid("a callback by name needs a function, and a name that is valid as a tag");
        const int added =
            Agent::instance().callbacks().add_named(name, callback, user, Milliseconds(deadline_ms));
        if (id) *id = added;
        return {};
    });
}

gpu_sleep_status gpu_sleep_reply(const char* json) {
    return finish([&]() -> Result<void> {
        if (!json) return invalid("the reply is NULL");
        return Agent::instance().callbacks().reply(json);
    });
}

gpu_sleep_status gpu_sleep_remove_callback(int id) {
    return finish([&] { return Agent::instance().callbacks().remove(id); });
}

gpu_sleep_status gpu_sleep_explain(const char* why) {
    return finish([&]() -> Result<void> {
        if (!why) return invalid("the reason is NULL");
        return Agent::instance().callbacks().explain(why);
    });
}

gpu_sleep_status gpu_sleep_enlist(const gpu_sleep_event* event) {
    return finish([&] { return Agent::instance().callbacks().enlist(event); });
}

gpu_sleep_status gpu_sleep_discharge(void) {
    return finish([] { return agent::Callbacks::discharge(); });
}

gpu_sleep_status gpu_sleep_hold(void) {
    return finish([] { Agent::instance().turnstile().hold(agent::Callbacks::works_for_callback()); });
}

gpu_sleep_status gpu_sleep_resume(void) {
    return finish([] { return Agent::instance().turnstile().resume(); });
}

gpu_sleep_status gpu_sleep_inhibit(void) {
    return finish([] { Agent::instance().inhibitors().add(); });
}

gpu_sleep_status gpu_sleep_uninhibit(void) {
    return finish([] { return Agent::instance().inhibitors().remove(); });
}

gpu_sleep_status gpu_sleep_sleep(int level, const char* tags, uint32_t timeout_ms) {
    return finish([&]() -> Result<void> {
        const bool is_deep = (level & GPU_SLEEP_DEEP) != 0;
        level &= ~GPU_SLEEP_DEEP;
        if (is_deep && tags)
            return invalid("a deep sleep takes the whole process: it cannot be limited to tags");
        auto request = own_sleep(level, tags, timeout_ms);
        if (!request) return request.error();
        request->deep = is_deep;
        return run(*std::move(request));
    });
}

gpu_sleep_status gpu_sleep_sleep_in_files(int level, const char* tags, const char* file_tags,
                                          const char* directory, uint32_t timeout_ms) {
    return finish([&]() -> Result<void> {
        auto request = own_sleep(level, tags, timeout_ms);
        if (!request) return request.error();
        if (!directory || *directory != '/')
            return invalid("the directory for files must be an absolute path");
        request->directory = directory;
        if (!file_tags) request->store = model::Store::file;
        for (auto& tag : split_tags(file_tags))
            request->stores.push_back({std::move(tag), model::Store::file});
        return run(*std::move(request));
    });
}

gpu_sleep_status gpu_sleep_read_kept(const void* pointer, size_t bytes, void* to) {
    return finish([&]() -> Result<void> {
        if (!to || bytes == 0) return invalid("the buffer for the contents is missing or empty");
        return Agent::instance().memory().read_kept(address_of(pointer),
                                                    {static_cast<std::byte*>(to), bytes});
    });
}

gpu_sleep_status gpu_sleep_wake(const char* tags, uint32_t wait_ms) {
    return finish([&] { return run(own_wake(tags, wait_ms, 0)); });
}

gpu_sleep_status gpu_sleep_wake_within(const char* tags, uint32_t wait_ms, uint32_t timeout_ms) {
    return finish([&] { return run(own_wake(tags, wait_ms, timeout_ms)); });
}

size_t gpu_sleep_asleep_bytes(void) {
    const CancellationHold no_cancellation;
    return Agent::instance().memory().asleep_bytes();
}

gpu_sleep_status gpu_sleep_tag_states(gpu_sleep_tag_state* states, size_t size, size_t capacity,
                                      size_t* count) {
    return finish([&]() -> Result<void> {
        if (!count || (!states && capacity > 0)) return invalid("the array or the count is NULL");
        if (size < sizeof(gpu_sleep_tag_state)) return invalid("the size is not that of gpu_sleep_tag_state");
        auto* const agent = Agent::existing();
        const auto tags = agent ? agent->status().tags : std::vector<model::TagReport>();
        for (std::size_t i = 0; i < std::min(tags.size(), capacity); ++i) {
            auto* const to = reinterpret_cast<std::byte*>(states) + i * size;
            const auto state = c_state(tags[i]);
            std::memset(to, 0, size); // what later versions have
            std::memcpy(to, &state, sizeof state);
        }
        *count = tags.size();
        return {};
    });
}

void* gpu_sleep_torch_malloc(ssize_t size, int device, void* /*stream*/) {
    void* pointer = nullptr;
    if (size <= 0 ||
        gpu_sleep_alloc(&pointer, static_cast<std::size_t>(size), device, nullptr) != GPU_SLEEP_OK)
        return nullptr;
    return pointer;
}

void gpu_sleep_torch_free(void* pointer, ssize_t /*size*/, int /*device*/, void* /*stream*/) {
    if (gpu_sleep_free(pointer) != GPU_SLEEP_OK) log::error("cannot free {}: {}", pointer, t_last_error);
}
} // extern "C"
