// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts go with what is known of them. Streams change the list of captures, and the frees that wait for
// them.

#include "intercepted/contexts.hpp"

#include "common/interception.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/pending_work.hpp"

namespace gpu_sleep::agent::intercepted {

namespace {

/// Which primary context a device has: a later one may get the same handle.
struct Primary {
    CUcontext context = nullptr; ///< null: none is active
    unsigned long long id = 0;
    friend bool operator==(const Primary&, const Primary&) = default;
};

Primary primary_of(const driver::Api& api, CUdevice device) {
    if (!driver::is_primary_active(api, device)) return {};
    const auto held = driver::PrimaryContext::retain(api, device);
    if (!held) return {};
    Primary primary{held->get(), 0};
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
    const auto status = [&] {
        const Contexts::Alone alone(books().contexts);
        return end();
    }();
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

Captures::Key capture_key(CUstream stream, bool per_thread, CUcontext context) noexcept {
    const bool is_threads_own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    return is_threads_own ? Captures::Key(CU_STREAM_PER_THREAD, context, this_thread())
                          : Captures::Key(stream, nullptr, 0);
}

/// The stream's context; null before the agent runs.
CUcontext known_context_of(CUstream stream) noexcept {
    const auto with = memory();
    return with ? context_of(*with, stream) : nullptr;
}

void capture_is_over(std::uint64_t number) noexcept {
    if (number == 0) return;
    books().captures.forget(number);
    free_waiting();
}

/// False also where the driver does not say.
bool captures_still(CUstream stream, bool per_thread) noexcept {
    const auto with = memory();
    auto state = CU_STREAM_CAPTURE_STATUS_NONE;
    auto* const handle = !stream && per_thread ? CU_STREAM_PER_THREAD : stream;
    return with && with->api().cuStreamIsCapturing(handle, &state) == CUDA_SUCCESS &&
           state != CU_STREAM_CAPTURE_STATUS_NONE;
}

} // namespace

CUcontext context_of(ProgramMemory& memory, CUstream stream) {
    CUcontext context = nullptr;
    const bool has_handle = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (has_handle && memory.api().cuStreamGetCtx) {
        if (memory.api().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) return context;
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (memory.api().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return nullptr;
    }
    return memory.api().cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
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
        auto* const context = known_context_of(stream);
        number = captures.note(capture_key(stream, per_thread, context), context, any_may_end);
    });
    if (!number) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto status = begin();
    if (status != CUDA_SUCCESS) capture_is_over(*number);
    return status;
}

CUresult end_capture(CUstream stream, bool per_thread, const std::function<CUresult()>& end) noexcept {
    std::uint64_t number = 0;
    ignoring_errors([&] {
        number = books().captures.number_of(capture_key(stream, per_thread, known_context_of(stream)));
    });
    const auto status = end();
    // A broken capture is over too, and one that the wrong thread was to end, but not one that the wrong
    // stream was.
    if (status == CUDA_SUCCESS || !captures_still(stream, per_thread)) capture_is_over(number);
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
        const auto enter = [&](int device) {
            const auto primary = primary_of(with->api(), device);
            return primary.context && with->api().cuCtxPushCurrent(primary.context) == CUDA_SUCCESS;
        };
        // The primary contexts of a program that is not intercepted are not recorded.
        for (const bool is_any : {false, true})
            for (int device = 0; device < driver::k_max_devices && !has_entered; ++device)
                has_entered = (is_any || books().contexts.holds(device)) && enter(device);
    });
    return has_entered;
}

} // namespace gpu_sleep::agent::intercepted
