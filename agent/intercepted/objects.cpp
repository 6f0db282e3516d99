// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of objects, asking the driver for what they say, and the frees that are put off.

#include "intercepted/objects.hpp"

#include "intercepted/freeing.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

constinit thread_local CUcontext t_current __attribute__((tls_model("initial-exec"))) = nullptr;

std::uint64_t bits(const void* handle) noexcept {
    return reinterpret_cast<std::uint64_t>(handle);
}

/// An entry of a table, once what is done is known, and after `note` was called with it. Nothing also once
/// the process does not sleep deeply any more.
template <class Table, class Note>
std::optional<typename Table::mapped_type>
find_known(Table Objects::*table, const typename Table::key_type& key, const Note& note) noexcept {
    auto& objects = books().objects;
    constexpr std::chrono::microseconds k_look{200};
    const CancellationHold no_cancellation;
    while (!objects.is_known.load(std::memory_order_acquire)) {
        if (!gate::Gate::holds_all()) return std::nullopt;
        std::this_thread::sleep_for(k_look);
    }
    const MutexLock lock(objects.mutex);
    const auto found = (objects.*table).find(key);
    if (found == (objects.*table).end()) return std::nullopt;
    note(found->second);
    return found->second;
}

constexpr auto k_only_look = [](const auto&) {};

bool is_done(Object kind, std::uint64_t handle, bool waits) noexcept {
    const auto known = find_known(&Objects::all, {kind, handle},
                                  [=](Made& made) { made.was_waited_for |= made.is_done && waits; });
    return known && known->is_done;
}

std::map<Objects::Key, Made> all_of(Objects& objects) {
    const MutexLock lock(objects.mutex);
    return objects.all;
}

std::map<CUdevice, PrimaryState> primary_states(const driver::Api& api) {
    std::map<CUdevice, PrimaryState> states;
    const auto count = driver::device_count(api);
    for (CUdevice device = 0; count && device < *count; ++device) {
        PrimaryState state;
        if (api.cuDevicePrimaryCtxGetState(device, &state.flags, &state.active) == CUDA_SUCCESS)
            states.emplace(device, state);
    }
    return states;
}

/// Whether all that is done is in one primary context, where whichever thread may free it.
bool has_one_context() noexcept {
    auto& objects = books().objects;
    const MutexLock lock(objects.mutex);
    return objects.done.size() == 1 && std::any_of(objects.primary.begin(), objects.primary.end(),
                                                   [](const auto& each) { return each.second.active != 0; });
}

} // namespace

void object_made(Object kind, std::uint64_t handle) noexcept {
    if (handle == 0) return;
    learn_current_context();
    ignoring_errors([&] { // what is not in the table wakes the process
        auto& objects = books().objects;
        const MutexLock lock(objects.mutex);
        objects.all.insert_or_assign({kind, handle}, Made{t_current, false});
    });
}

bool object_ends(Object kind, std::uint64_t handle) noexcept {
    auto& objects = books().objects;
    const MutexLock lock(objects.mutex);
    return objects.all.erase({kind, handle}) != 0;
}

bool has_any(Object kind) noexcept {
    auto& objects = books().objects;
    const MutexLock lock(objects.mutex);
    const auto first = objects.all.lower_bound({kind, 0});
    return first != objects.all.end() && first->first.first == kind;
}

void set_current_context(CUcontext context) noexcept {
    t_current = context;
}

void learn_current_context() noexcept {
    if (t_current) return;
    const auto with = memory();
    if (with && with->api().cuCtxGetCurrent(&t_current) != CUDA_SUCCESS) t_current = nullptr;
}

Result<void> note_what_is_done(const driver::Api& api, const std::vector<CUcontext>& contexts,
                               const driver::DrainLimits& limits) {
    GPU_SLEEP_TRY(driver::drain(api, contexts, limits));
    auto& objects = books().objects;
    std::map<CUcontext, Objects::Done> done;
    std::set<Objects::Key> done_objects;
    const auto all = all_of(objects);
    for (auto* const context : contexts) {
        const driver::CurrentContext current(api, context);
        CUdevice device = 0;
        auto& known = done[context];
        if (current.status() == CUDA_SUCCESS && api.cuCtxGetDevice(&device) == CUDA_SUCCESS)
            known.device = device;
        for (const auto& [key, made] : all)
            if (made.context == context && // an event that was captured, say, is an error
                (key.first != Object::event ||
                 api.cuEventQuery(reinterpret_cast<CUevent>(key.second)) == CUDA_SUCCESS))
                done_objects.insert(key);
    }
    auto primary = primary_states(api);
    const MutexLock lock(objects.mutex);
    objects.primary.swap(primary);
    for (auto& [key, made] : objects.all) made = {made.context, done_objects.contains(key)};
    objects.done.swap(done);
    objects.is_known.store(true, std::memory_order_release);
    return {};
}

void forget_what_is_done() noexcept {
    books().objects.is_known.store(false, std::memory_order_release);
}

void synchronize_as_answered(const driver::Api& api) noexcept {
    ignoring_errors([&] {
        auto& objects = books().objects;
        std::multimap<CUcontext, Objects::Key> waited_for; // of a context itself: none
        {
            const MutexLock lock(objects.mutex);
            for (const auto& [context, done] : objects.done)
                if (done.was_waited_for) waited_for.emplace(context, Objects::Key{Object::none, 0});
            for (auto& [key, made] : objects.all)
                if (std::exchange(made.was_waited_for, false)) waited_for.emplace(made.context, key);
            objects.done.clear();
        }
        if (waited_for.empty()) return;
        const driver::RelaxedCaptureMode relaxed(api);
        for (const auto& [context, key] : waited_for) {
            const driver::CurrentContext current(api, context);
            if (key.first == Object::stream)
                api.cuStreamSynchronize(reinterpret_cast<CUstream>(key.second));
            else if (key.first == Object::event)
                api.cuEventSynchronize(reinterpret_cast<CUevent>(key.second));
            else
                api.cuCtxSynchronize();
        }
        synchronized();
    });
}

bool is_stream_done(CUstream stream, bool waits) noexcept {
    // Each context has such a stream of its own, and so has each thread.
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return is_current_context_done(waits);
    return is_current_context_done() && is_done(Object::stream, bits(stream), waits);
}

bool is_event_done(CUevent event, bool waits) noexcept {
    return is_current_context_done() && is_done(Object::event, bits(event), waits);
}

bool is_context_done(CUcontext context, bool waits) noexcept {
    const auto note = [=](Objects::Done& done) { done.was_waited_for |= waits; };
    return context && find_known(&Objects::done, context, note);
}

bool is_current_context_done(bool waits) noexcept {
    return is_context_done(t_current, waits);
}

CUcontext current_context_while_deep() noexcept {
    return is_current_context_done() ? t_current : nullptr;
}

std::optional<CUdevice> device_while_deep(CUcontext context) noexcept {
    const auto done = find_known(&Objects::done, context, k_only_look);
    return done ? done->device : std::nullopt;
}

std::optional<PrimaryState> primary_state_while_deep(CUdevice device) noexcept {
    return find_known(&Objects::primary, device, k_only_look);
}

bool put_off(Object kind, std::uint64_t handle, std::function<void()> free) noexcept {
    if (!has_one_context()) return false;
    Later::Calls one;
    const auto remembered = guarded([&] { one.push_back(std::move(free)); });
    return remembered && object_ends(kind, handle) && books().later.put_off(one);
}

void free_what_was_put_off(const driver::Api& api) noexcept {
    auto next = books().later.take_call();
    if (next.empty()) return;
    std::optional<driver::PrimaryContext> alive;
    ignoring_errors([&] {
        if (auto found = driver::first_active_context(api)) alive = *std::move(found);
    });
    const driver::CurrentContext current(api, alive ? alive->get() : nullptr);
    for (; !next.empty(); next = books().later.take_call()) ignoring_errors([&] { next.front()(); });
}

void set_memory_while_deep(std::optional<driver::MemoryInfo> memory) noexcept {
    auto& objects = books().objects;
    const MutexLock lock(objects.mutex);
    objects.memory = memory;
}

std::optional<driver::MemoryInfo> memory_while_deep() noexcept {
    auto& objects = books().objects;
    const MutexLock lock(objects.mutex);
    return gate::Gate::holds_all() ? objects.memory : std::nullopt;
}

} // namespace gpu_sleep::agent::intercepted
