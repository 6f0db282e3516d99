// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of objects, and asking the driver for what they say.

#include "intercepted/objects.hpp"

#include "base/cancellation.hpp"
#include "base/guard.hpp"
#include "base/immortal.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"
#include "intercepted/state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace gpu_sleep::agent::intercepted {
namespace {

struct Made {
    CUcontext context = nullptr; ///< where it was made; null: not known
    bool is_done = false;        ///< its work, while what is done is known
};

struct Objects {
    using Key = std::pair<Object, std::uint64_t>;
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<Key, Made> all GPU_SLEEP_GUARDED_BY(mutex);
    std::vector<CUcontext> done GPU_SLEEP_GUARDED_BY(mutex); ///< contexts whose work is
    std::atomic<bool> is_known{false};                       ///< what is done

    static Objects& instance() {
        static Immortal<Objects> s_objects;
        return *s_objects;
    }
};

constinit thread_local CUcontext t_current __attribute__((tls_model("initial-exec"))) = nullptr;

std::uint64_t bits(const void* handle) noexcept {
    return reinterpret_cast<std::uint64_t>(handle);
}

/// Waits until what is done is known. False: the process does not sleep deeply any more.
bool await_knowledge(const Objects& objects) noexcept {
    constexpr std::chrono::microseconds k_look{200};
    const CancellationHold no_cancellation;
    while (!objects.is_known.load(std::memory_order_acquire)) {
        if (!gate::Gate::is_deep()) return false;
        std::this_thread::sleep_for(k_look);
    }
    return true;
}

bool is_done(Object kind, std::uint64_t handle) noexcept {
    auto& objects = Objects::instance();
    if (!await_knowledge(objects)) return false;
    const MutexLock lock(objects.mutex);
    const auto found = objects.all.find({kind, handle});
    return found != objects.all.end() && found->second.is_done;
}

/// The events of each context.
std::multimap<CUcontext, CUevent> all_events(Objects& objects) {
    std::multimap<CUcontext, CUevent> events;
    const MutexLock lock(objects.mutex);
    for (const auto& [key, made] : objects.all)
        if (key.first == Object::event) events.emplace(made.context, reinterpret_cast<CUevent>(key.second));
    return events;
}

} // namespace

void object_made(Object kind, std::uint64_t handle) noexcept {
    if (handle == 0) return;
    learn_current_context();
    ignoring_errors([&] { // what is not in the table wakes the process
        auto& objects = Objects::instance();
        const MutexLock lock(objects.mutex);
        objects.all.insert_or_assign({kind, handle}, Made{t_current, false});
    });
}

bool object_ends(Object kind, std::uint64_t handle) noexcept {
    auto& objects = Objects::instance();
    const MutexLock lock(objects.mutex);
    return objects.all.erase({kind, handle}) != 0;
}

void objects_end_with(CUcontext context) noexcept {
    auto& objects = Objects::instance();
    const MutexLock lock(objects.mutex);
    std::erase_if(objects.all, [=](const auto& made) { return made.second.context == context; });
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
    auto& objects = Objects::instance();
    std::set<CUevent> undone;
    const auto events = all_events(objects);
    for (auto* const context : contexts) {
        const driver::CurrentContext current(api, context);
        const auto [begin, end] = events.equal_range(context);
        for (auto each = begin; each != end; ++each) // an event that was captured, say, is an error
            if (api.cuEventQuery(each->second) != CUDA_SUCCESS) undone.insert(each->second);
    }
    const MutexLock lock(objects.mutex);
    for (auto& [key, made] : objects.all)
        made.is_done =
            std::find(contexts.begin(), contexts.end(), made.context) != contexts.end() &&
            (key.first != Object::event || !undone.contains(reinterpret_cast<CUevent>(key.second)));
    objects.done = contexts;
    objects.is_known.store(true, std::memory_order_release);
    return {};
}

void forget_what_is_done() noexcept {
    Objects::instance().is_known.store(false, std::memory_order_release);
}

bool is_stream_done(CUstream stream) noexcept {
    // Of these each context has its own, and so has each thread.
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return is_current_context_done();
    return is_current_context_done() && is_done(Object::stream, bits(stream));
}

bool is_event_done(CUevent event) noexcept {
    return is_current_context_done() && is_done(Object::event, bits(event));
}

bool is_context_done(CUcontext context) noexcept {
    auto& objects = Objects::instance();
    if (!context || !await_knowledge(objects)) return false;
    const MutexLock lock(objects.mutex);
    return std::find(objects.done.begin(), objects.done.end(), context) != objects.done.end();
}

bool is_current_context_done() noexcept {
    return is_context_done(t_current);
}

} // namespace gpu_sleep::agent::intercepted
