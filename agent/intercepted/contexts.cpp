// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is known of a context goes with it, or comes back if it stays. Streams change the list of captures,
// and the frees that wait for them.

#include "intercepted/contexts.hpp"

#include "common/interception.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "intercepted/allocations.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/objects.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/residual_records.hpp"
#include "intercepted/state.hpp"
#include "intercepted/virtual_memory.hpp"

#include <map>
#include <mutex>
#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {

namespace {

/// Everything that is known of a context, out of the books while it may go.
class Departure {
public:
    Departure(ProgramMemory& memory, CUcontext context, bool is_primary)
        : memory_(memory), context_(context), is_primary_(is_primary) {}
    Departure& operator=(Departure&&) = delete;

    /// Takes it out. May throw for want of memory: then the context stays.
    void begin() {
        // Memory of pools outlives contexts, but for the device's primary one, which takes everything with
        // it. Captures without `this`, as small as those, make a std::function that does not allocate.
        const auto dies = [context = context_, is_primary = is_primary_](const Allocation& a) {
            return !a.is_virtual && a.context == context && (is_primary || !a.pool);
        };
        put_captures_back_ = take_captures_of(context_);
        pools_ = take_pools_of(memory_, context_);
        waiting_ = take_waiting_of(memory_, dies);
        objects_end_with(context_);
        allocations_ = immortal<Allocations>().extract(dies);
        {
            auto& own = immortal<OwnContexts>();
            const MutexLock lock(own.mutex);
            own_ = own.contexts.extract(context_);
        }
        // Only reported: nothing fails for it.
        ignoring_errors([&] { put_allocations_back_ = take_allocations_of_driver(context_, is_primary_); });
        ignoring_errors([&] { put_managed_back_ = take_managed_of(context_); });
    }

    /// The context is gone, and with it its memory.
    void gone() {
        for (const auto& [address, allocation] : allocations_) {
            if (allocation.pool) freed_from_pool(allocation);
            give_allocation(memory_, allocation);
        }
        pools_.gone();
        waiting_.gone();
        // Retained contents may have been pinned in that context, and would be copied slowly.
        if (is_primary_) memory_.forget_retained();
        immortal<Allocations>().change([&](Allocation& a) {
            if (a.pool && a.context == context_) a.context = nullptr;
        });
    }

    void stays() {
        immortal<Allocations>().put_back(allocations_);
        {
            auto& own = immortal<OwnContexts>();
            const MutexLock lock(own.mutex);
            own.contexts.insert(std::move(own_));
        }
        for (const auto* put_back : {&put_captures_back_, &waiting_.stays, &put_allocations_back_,
                                     &put_managed_back_, &pools_.stays})
            if (*put_back) (*put_back)();
    }

private:
    ProgramMemory& memory_;
    CUcontext context_;
    bool is_primary_;
    std::map<CUdeviceptr, Allocation> allocations_;
    std::map<CUcontext, int>::node_type own_;
    PendingRemoval pools_;
    PendingRemoval waiting_;
    PutBack put_captures_back_;
    PutBack put_allocations_back_;
    PutBack put_managed_back_;
};

/// Runs `end`, which may end the context, with the context out of the books. Without memory for that it does
/// not: all is as it was.
template <class IsGone>
CUresult end_with(ProgramMemory& memory, CUcontext context, bool is_primary,
                  const std::function<CUresult()>& end, const IsGone& is_gone) noexcept {
    Departure departure(memory, context, is_primary);
    const auto begun = guarded([&] { departure.begin(); });
    const auto status = begun ? end() : CUDA_ERROR_OUT_OF_MEMORY;
    ignoring_errors([&] {
        if (status == CUDA_SUCCESS && is_gone())
            departure.gone();
        else
            departure.stays();
    });
    return status;
}

/// Runs `end` while contexts_mutex() is held alone, and afterwards frees what may have waited for it.
template <class End>
CUresult end_alone(const End& end) noexcept {
    const auto status = [&] {
        const ContextsAlone alone;
        return end();
    }();
    free_waiting();
    return status;
}

CUresult end_own_context(CUcontext context, const std::function<CUresult()>& end,
                         const std::function<bool(const driver::Api&)>& is_gone) noexcept {
    const auto with = memory();
    if (!with || !context) return end();
    return end_alone(
        [&] { return end_with(*with, context, false, end, [&] { return is_gone(with->api()); }); });
}

struct LettingGo {
    bool was_held = false; ///< else the driver refuses to release it
    bool is_last = false;
};

/// Has `change` change how often the program holds a primary context.
template <class Change>
void change_holds(CUdevice device, const Change& change) noexcept {
    ignoring_errors([&] {
        auto& own = immortal<OwnContexts>();
        const MutexLock lock(own.mutex);
        change(own.primaries[device]);
    });
}

/// The program holds a primary context once less.
LettingGo let_go(CUdevice device) noexcept {
    LettingGo letting_go;
    change_holds(device, [&](unsigned& holds) {
        letting_go = {holds > 0, holds <= 1};
        if (holds > 0) --holds;
    });
    return letting_go;
}

/// The same, unless it would be the last time. Whether it was done.
bool let_go_of_one(CUdevice device) noexcept {
    bool is_done = false;
    change_holds(device, [&](unsigned& holds) {
        is_done = holds > 1;
        if (is_done) --holds;
    });
    return is_done;
}

void hold(CUdevice device) noexcept {
    change_holds(device, [](unsigned& holds) { ++holds; });
}

/// Runs `release`, which takes one of the program's holds of the primary context. The caller holds
/// contexts_mutex() alone, so that nobody else's hold makes it look as if the context stayed.
CUresult release_held(ProgramMemory& memory, CUdevice device,
                      const std::function<CUresult()>& release) noexcept {
    const auto letting_go = let_go(device);
    const auto status = [&] {
        const auto primary = letting_go.is_last ? primary_of(memory.api(), device) : Primary{};
        if (!primary.context) return release();
        return end_with(memory, primary.context, true, release,
                        [&] { return primary_of(memory.api(), device) != primary; });
    }();
    if (status != CUDA_SUCCESS && letting_go.was_held) hold(device);
    return status;
}

/// Its address tells threads apart. A thread's default streams end with it, and so do their captures.
struct ThreadMark {
    ~ThreadMark() {
        if (!intercepts()) return; // a child of fork(), in which nobody may be left who gives the mutex back
        ignoring_errors([&] {
            if (forget_captures_of_thread(number())) free_waiting();
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

CUresult make_context(const CUcontext* context, const std::function<CUresult()>& make) noexcept {
    std::map<CUcontext, int> made; // what takes memory comes first
    if (!guarded([&] { made.emplace(); })) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = make();
    if (status != CUDA_SUCCESS) return status;
    const auto with = memory();
    const auto device = with ? current_device(*with) : std::nullopt; // it is current to its maker
    auto node = made.extract(made.begin());
    node.key() = *context;
    node.mapped() = device.value_or(0);
    auto& own = immortal<OwnContexts>();
    const MutexLock lock(own.mutex);
    own.contexts.erase(*context);
    own.contexts.insert(std::move(node));
    return status;
}

CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy) noexcept {
    return end_own_context(context, destroy, [](const driver::Api&) { return true; });
}

CUresult detach_context(CUcontext context, const std::function<CUresult()>& detach) noexcept {
    // It takes a context that is current, and leaves it so if others are attached to it.
    return end_own_context(context, detach, [context](const driver::Api& api) {
        CUcontext current = nullptr;
        return api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context;
    });
}

CUresult make_green_context(const CUgreenCtx* green, CUdevice device, const std::function<CUresult()>& make,
                            const std::function<CUresult(CUcontext*)>& convert) noexcept {
    const std::shared_lock contexts(contexts_mutex());
    auto& own = immortal<OwnContexts>();
    std::map<CUgreenCtx, Green> made; // what takes memory comes first
    const auto prepared = guarded([&] {
        made.emplace();
        const MutexLock lock(own.mutex);
        own.primaries.try_emplace(device);
    });
    if (!prepared) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = make();
    if (status != CUDA_SUCCESS) return status;
    with_memory([&](ProgramMemory& memory) {
        CUcontext context = nullptr;
        if (convert(&context) != CUDA_SUCCESS) context = nullptr;
        auto node = made.extract(made.begin());
        node.key() = *green;
        node.mapped() = {context, primary_of(memory.api(), device).context, device};
        const MutexLock lock(own.mutex);
        own.greens.erase(*green);
        own.greens.insert(std::move(node)); // its end lets go
        ++own.primaries[device];
    });
    return status;
}

CUresult end_green_context(CUgreenCtx handle, const std::function<CUresult()>& destroy) noexcept {
    const auto with = memory();
    if (!with) return destroy();
    return end_alone([&] {
        auto& own = immortal<OwnContexts>();
        std::map<CUgreenCtx, Green>::node_type node;
        {
            const MutexLock own_lock(own.mutex);
            node = own.greens.extract(handle);
        }
        if (!node) return destroy();
        const auto green = node.mapped();
        PutBack put_captures_back;
        const auto taken = guarded([&] {
            if (!green.context) return;
            put_captures_back = take_captures_of(green.context);
            objects_end_with(green.context);
            immortal<Allocations>().change([&](Allocation& known) {
                if (known.context == green.context) known.context = green.primary;
            });
            // For good: if it stays, its blocks wait for their events.
            forget_order_of(green.context, green.primary);
        });
        const auto ended = taken ? release_held(*with, green.device, destroy) : CUDA_ERROR_OUT_OF_MEMORY;
        ignoring_errors([&] {
            if (ended == CUDA_SUCCESS) return;
            if (put_captures_back) put_captures_back();
            const MutexLock own_lock(own.mutex);
            own.greens.insert(std::move(node));
        });
        return ended;
    });
}

CUresult retain_primary_context(CUdevice device, const std::function<CUresult()>& retain) noexcept {
    // Not while one is released: neither may count without the other's being seen.
    const std::shared_lock contexts(contexts_mutex());
    const auto status = retain();
    if (status == CUDA_SUCCESS) hold(device);
    return status;
}

CUresult release_primary_context(CUdevice device, const std::function<CUresult()>& release) noexcept {
    const auto with = memory();
    if (!with) {
        const auto status = release();
        if (status == CUDA_SUCCESS) let_go(device);
        return status;
    }
    std::optional<CUresult> released;
    {
        // Many may let go at once while others hold it; who may be the last waits until they have.
        const std::shared_lock contexts(contexts_mutex());
        if (let_go_of_one(device)) released = release();
        if (released && released != CUDA_SUCCESS) hold(device);
    }
    if (!released) return end_alone([&] { return release_held(*with, device, release); });
    free_waiting();
    return *released;
}

CUresult reset_primary_context(CUdevice device, const std::function<CUresult()>& reset) noexcept {
    const auto with = memory();
    if (!with) return reset();
    return end_alone([&] {
        const auto primary = primary_of(with->api(), device);
        if (!primary.context) return reset();
        return end_with(*with, primary.context, true, reset, [] { return true; });
    });
}

std::optional<std::uint64_t> capture_begins(CUstream stream, bool per_thread, bool any_may_end) noexcept {
    std::optional<std::uint64_t> number;
    ignoring_errors([&] {
        const std::unique_lock order(capture_order());
        auto* const context = known_context_of(stream);
        number = note_capture(capture_key(stream, per_thread, context), context, any_may_end);
    });
    return number;
}

void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept {
    ignoring_errors([&] {
        if (number == 0) return;
        forget_capture(capture_key(stream, per_thread, known_context_of(stream)), number);
        free_waiting();
    });
}

std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept {
    std::uint64_t number = 0;
    ignoring_errors([&] { number = capture_in(capture_key(stream, per_thread, known_context_of(stream))); });
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

CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept {
    PutBack put_captures_back;
    ignoring_errors([&] {
        put_captures_back = take_captures_of(stream);
        forget_order_of(stream); // for good: if the stream stays, its blocks wait for their events
    });
    const auto status = destroy();
    if (status == CUDA_SUCCESS) synchronized(); // as the driver's pools have it
    if (put_captures_back) {
        if (status == CUDA_SUCCESS)
            free_waiting();
        else
            ignoring_errors(put_captures_back);
    }
    return status;
}

} // namespace gpu_sleep::agent::intercepted
