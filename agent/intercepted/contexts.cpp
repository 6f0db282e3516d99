// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts go with what is known of them. Streams change the list of captures, and the frees that wait for
// them.

#include "intercepted/contexts.hpp"

#include "common/interception.hpp"
#include "intercepted/freeing.hpp"

namespace gpu_sleep::agent::intercepted {

namespace {

/// Which primary context a device has: a later one may get the same handle.
struct Primary {
    CUcontext context = nullptr; ///< null: none is active
    unsigned long long id = 0;
    friend bool operator==(const Primary&, const Primary&) = default;
};

Primary primary_of(const driver::Api& api, CUdevice device) {
    const auto held = driver::active_context(api, device);
    if (!held || !*held) return {};
    Primary primary{(*held)->get(), 0};
    if (api.cuCtxGetId) api.cuCtxGetId(primary.context, &primary.id);
    return primary;
}

/// Runs `end`, which may end the context, with the context out of the books. The caller holds contexts.alive
/// alone.
template <class IsGone>
CUresult end_with(ProgramMemory& memory, CUcontext context, bool is_primary,
                  const std::function<CUresult()>& end, const IsGone& is_gone) noexcept {
    auto departed = books().take(context, is_primary);
    const auto status = end();
    bool has_gone = false;
    ignoring_errors([&] { has_gone = status == CUDA_SUCCESS && is_gone(); });
    if (has_gone)
        free_departed(memory, std::move(departed));
    else
        books().put_back(std::move(departed));
    return status;
}

/// Runs `end` while contexts.alive is held alone, and afterwards frees what may have waited for it.
template <class End>
CUresult end_alone(const End& end) noexcept {
    const auto status = books().contexts.alone(end);
    free_waiting();
    return status;
}

/// Runs `end`, after which a context of the program's own has gone, or `may_stay`.
CUresult end_own_context(CUcontext context, bool may_stay, const std::function<CUresult()>& end) noexcept {
    const auto with = memory();
    if (!with || !context) return end();
    // A context that is detached is current, and stays so if others are attached to it.
    const auto is_gone = [&] {
        CUcontext current = nullptr;
        return !may_stay || with->api().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context;
    };
    return end_alone([&] { return end_with(*with, context, false, end, is_gone); });
}

/// The same for the primary context of a device, if it has one. The caller holds contexts.alive alone, so
/// that nobody else's hold makes it look as if the context stayed.
CUresult end_primary(ProgramMemory& memory, CUdevice device, bool may_stay,
                     const std::function<CUresult()>& end) noexcept {
    const auto primary = primary_of(memory.api(), device);
    if (!primary.context) return end();
    return end_with(memory, primary.context, true, end,
                    [&] { return !may_stay || primary_of(memory.api(), device) != primary; });
}

/// Runs `release`, which takes one of the program's holds of the primary context.
CUresult release_held(ProgramMemory& memory, CUdevice device,
                      const std::function<CUresult()>& release) noexcept {
    auto& contexts = books().contexts;
    const auto letting_go = contexts.let_go(device);
    const auto status = letting_go.is_last ? end_primary(memory, device, true, release) : release();
    if (status != CUDA_SUCCESS && letting_go.was_held) contexts.hold(device);
    return status;
}

/// Its address tells threads apart. A thread's default streams end with it, and so do their captures.
struct ThreadMark {
    ~ThreadMark() {
        if (!intercepts()) return; // a child of fork(), in which nobody may be left who gives the mutex back
        ignoring_errors([&] {
            if (books().captures.forget_thread(number())) free_waiting();
        });
    }
    [[nodiscard]] std::uint64_t number() const noexcept { return reinterpret_cast<std::uint64_t>(this); }
};

std::uint64_t this_thread() noexcept {
    static thread_local ThreadMark s_mark;
    return s_mark.number();
}

Captures::Key capture_key(const StreamKey& key) noexcept {
    return key.stream == CU_STREAM_PER_THREAD ? Captures::Key(key.stream, key.context, this_thread())
                                              : Captures::Key(key.stream, nullptr, 0);
}

void capture_is_over(std::uint64_t number) noexcept {
    if (number == 0) return;
    books().captures.forget(number);
    free_waiting();
}

/// The context of a stream: the current one for the default streams, null where there is no such stream.
CUcontext context_of(const driver::Api& api, CUstream stream) noexcept {
    CUcontext context = nullptr;
    const bool has_handle = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (has_handle && api.cuStreamGetCtx) {
        if (api.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) return context;
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return nullptr;
    }
    return api.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

} // namespace

StreamKey key_of(CUstream stream, bool per_thread) noexcept {
    const auto with = memory();
    return {with ? context_of(with->api(), stream) : nullptr, stream       ? stream
                                                              : per_thread ? CU_STREAM_PER_THREAD
                                                                           : CU_STREAM_LEGACY};
}

bool is_capturing(CUstream stream, bool unknown) noexcept {
    const auto with = memory();
    if (!with || books().captures.count() == 0) return false;
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return with->api().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS
               ? status != CU_STREAM_CAPTURE_STATUS_NONE
               : unknown;
}

std::optional<int> device_of(ProgramMemory& memory, CUcontext context) {
    const driver::CurrentContext entered(memory.api(), context);
    return entered.status() == CUDA_SUCCESS ? driver::current_device(memory.api()) : std::nullopt;
}

CUresult make_context(const CUcontext* context, const std::function<CUresult()>& make) noexcept {
    Contexts::Record made; // what takes memory comes first
    if (!guarded([&] { made = make_entry<Contexts::Records>(); })) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = make();
    if (status != CUDA_SUCCESS) return status;
    const auto with = memory();
    const auto device =
        with ? driver::current_device(with->api()) : std::nullopt; // it is current to its maker
    books().contexts.add(std::move(made), *context, device.value_or(0));
    return status;
}

CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy) noexcept {
    return end_own_context(context, false, destroy);
}

CUresult detach_context(CUcontext context, const std::function<CUresult()>& detach) noexcept {
    return end_own_context(context, true, detach);
}

CUresult make_green_context(const CUgreenCtx* green, CUdevice device, const std::function<CUresult()>& make,
                            const std::function<CUresult(CUcontext*)>& convert) noexcept {
    auto& contexts = books().contexts;
    const std::shared_lock stay(contexts.alive);
    Contexts::GreenRecord made; // what takes memory comes first
    if (!guarded([&] { made = make_entry<Contexts::Greens>(); })) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = make();
    if (status != CUDA_SUCCESS) return status;
    with_memory([&](ProgramMemory& memory) {
        CUcontext context = nullptr;
        if (convert(&context) != CUDA_SUCCESS) context = nullptr;
        contexts.add(std::move(made), *green, {context, primary_of(memory.api(), device).context, device});
    });
    return status;
}

CUresult end_green_context(CUgreenCtx handle, const std::function<CUresult()>& destroy) noexcept {
    const auto with = memory();
    if (!with) return destroy();
    return end_alone([&] {
        auto& all = books();
        const auto green = all.contexts.find(handle);
        if (!green) return destroy();
        auto captures =
            all.hand_on(*green); // for good but for these: if it stays, its blocks wait for events
        const auto ended = release_held(*with, green->device, destroy);
        if (ended == CUDA_SUCCESS)
            all.contexts.forget(handle); // nobody makes another meanwhile
        else
            all.captures.put_back(captures);
        return ended;
    });
}

CUresult retain_primary_context(CUdevice device, const std::function<CUresult()>& retain) noexcept {
    // Not while one is released: neither may count without the other's being seen.
    const std::shared_lock stay(books().contexts.alive);
    const auto status = retain();
    if (status == CUDA_SUCCESS) books().contexts.hold(device);
    return status;
}

CUresult release_primary_context(CUdevice device, const std::function<CUresult()>& release) noexcept {
    const auto with = memory();
    auto& contexts = books().contexts;
    std::optional<CUresult> released;
    {
        // Many may let go at once while others hold it; who may be the last waits until they have.
        const std::shared_lock stay(contexts.alive);
        const auto letting_go = contexts.let_go(device, !with);
        if (!with || !letting_go.is_last) released = release();
        if (released && released != CUDA_SUCCESS && letting_go.was_held) contexts.hold(device);
    }
    if (!released) return end_alone([&] { return release_held(*with, device, release); });
    free_waiting();
    return *released;
}

CUresult reset_primary_context(CUdevice device, const std::function<CUresult()>& reset) noexcept {
    const auto with = memory();
    if (!with) return reset();
    return end_alone([&] { return end_primary(*with, device, false, reset); });
}

CUresult begin_capture(CUstream stream, bool per_thread, bool any_may_end,
                       const std::function<CUresult()>& begin) noexcept {
    std::optional<std::uint64_t> number;
    ignoring_errors([&] {
        auto& captures = books().captures;
        const std::unique_lock order(captures.order);
        const auto key = key_of(stream, per_thread);
        number = captures.note(capture_key(key), key.context, any_may_end);
    });
    if (!number) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = begin();
    if (status != CUDA_SUCCESS) capture_is_over(*number);
    return status;
}

CUresult end_capture(CUstream stream, bool per_thread, const std::function<CUresult()>& end) noexcept {
    const auto key = key_of(stream, per_thread);
    const auto number = books().captures.number_of(capture_key(key));
    const auto status = end();
    // A broken capture is over too, and one that the wrong thread was to end, but not one that the wrong
    // stream was.
    if (status == CUDA_SUCCESS || !is_capturing(key.stream, false)) capture_is_over(number);
    return status;
}

CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept {
    auto& all = books();
    auto captures = all.captures.take(stream);
    all.pools.forget_order_of(stream); // for good: if the stream stays, its blocks wait for their events
    const auto status = destroy();
    if (status == CUDA_SUCCESS) {
        synchronized(); // as the driver's pools have it
        if (!captures.empty()) free_waiting();
    } else {
        all.captures.put_back(captures);
    }
    return status;
}

bool enter_primary_context() noexcept {
    bool has_entered = false;
    ignoring_errors([&] {
        const auto with = memory();
        // Whoever ends a context may wait for work that needs what our caller holds.
        const std::shared_lock contexts(books().contexts.alive, std::try_to_lock);
        if (!with || !contexts) return;
        const auto active = driver::active_contexts(with->api());
        if (!active || active->empty()) return;
        // The primary contexts of a program that is not intercepted are not recorded.
        auto entered = std::ranges::find_if(
            *active, [](const auto& each) { return books().contexts.holds(each.device()); });
        if (entered == active->end()) entered = active->begin();
        has_entered = with->api().cuCtxPushCurrent(entered->get()) == CUDA_SUCCESS;
    });
    return has_entered;
}

} // namespace gpu_sleep::agent::intercepted
