// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which calls are answered while the process sleeps deeply, and what is noted of others for that. What is
// said then is what the driver would say; where that is not known, the call is held.

#pragma once

#include "hooks/driver_table.hpp"
#include "intercepted/objects.hpp"

namespace gpu_sleep::hooks {

using intercepted::Object;

/// For a call that asks about GPU work or waits for it: the object that it asks about.
enum class Asks : std::uint8_t { nothing, stream, event, context, current_context };
/// Whether the thread has another current context after the call: that of the first argument, or one that is
/// not known.
enum class Enters : std::uint8_t { nothing, first_argument, unknown };

namespace table {
using enum Entry;

/// Says something of the entry points in its rows, and of others the first of all values: nothing.
template <class Value>
struct Table {
    struct Row {
        Value value;
        std::initializer_list<Entry> entries;
    };
    std::initializer_list<Row> rows;
    constexpr Value operator()(Entry entry) const noexcept {
        for (const auto& row : rows)
            if (std::find(row.entries.begin(), row.entries.end(), entry) != row.entries.end())
                return row.value;
        return Value{};
    }
};

/// The kind of object whose handle a successful call writes to where its first argument points.
constexpr Table<Object> made_by{{
    {Object::stream, {cuStreamCreate, cuStreamCreateWithPriority}},
    {Object::event, {cuEventCreate}},
    {Object::memory, {cuMemAlloc_v2, cuMemAllocPitch_v2}},
    {Object::host_memory, {cuMemAllocHost_v2, cuMemHostAlloc}},
    {Object::array, {cuArrayCreate_v2, cuArray3DCreate_v2}},
    {Object::mipmapped_array, {cuMipmappedArrayCreate}},
    {Object::module, {cuModuleLoad, cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary}},
    {Object::library, {cuLibraryLoadData, cuLibraryLoadFromFile}},
    {Object::graph_exec,
     {cuGraphInstantiate, cuGraphInstantiate_v2, cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams,
      cuGraphInstantiateWithParams_ptsz}},
    {Object::texture, {cuTexObjectCreate}},
    {Object::surface, {cuSurfObjectCreate}},
    {Object::shared_event, {cuIpcOpenEventHandle}},
    {Object::external_memory, {cuImportExternalMemory}},
    {Object::external_semaphore, {cuImportExternalSemaphore}},
}};

/// The kind of object, given by the first argument, whose destruction can be put off: no call waits for that.
/// Left out are frees that return memory to the program, which the driver must have released first; frees in
/// stream order, for which the stream's context must be current; and graphs, whose handle may be another's by
/// then.
constexpr Table<Object> ended_by{{
    {Object::stream, {cuStreamDestroy, cuStreamDestroy_v2}},
    {Object::event, {cuEventDestroy, cuEventDestroy_v2}},
    {Object::memory, {cuMemFree, cuMemFree_v2}},
    {Object::host_memory, {cuMemFreeHost}},
    {Object::array, {cuArrayDestroy}},
    {Object::mipmapped_array, {cuMipmappedArrayDestroy}},
    {Object::module, {cuModuleUnload}},
    {Object::library, {cuLibraryUnload}},
    {Object::graph_exec, {cuGraphExecDestroy}},
    {Object::texture, {cuTexObjectDestroy}},
    {Object::surface, {cuSurfObjectDestroy}},
}};

/// Another kind of object that the first argument may be. The call destroys it at once, and is not put off
/// for it. External memory and pools are left out: what was mapped or allocated of them lives on.
constexpr Table<Object> forgotten_by{{
    {Object::memory, {cuMemFreeAsync, cuMemFreeAsync_ptsz}},
    {Object::shared_event, {cuEventDestroy, cuEventDestroy_v2}},
    {Object::shared_memory, {cuMemFree_v2}},
    {Object::external_semaphore, {cuDestroyExternalSemaphore}},
}};

constexpr Table<Asks> asks_about{{
    {Asks::stream, {cuStreamQuery, cuStreamQuery_ptsz, cuStreamSynchronize, cuStreamSynchronize_ptsz}},
    {Asks::event, {cuEventQuery, cuEventSynchronize}},
    {Asks::context, {cuCtxSynchronize_v2}},
    {Asks::current_context, {cuCtxSynchronize}},
}};
/// Whether that waits, which pools heed, and does not only look.
constexpr Table<bool> waits{{{true,
                              {cuStreamSynchronize, cuStreamSynchronize_ptsz, cuEventSynchronize,
                               cuCtxSynchronize, cuCtxSynchronize_v2}}}};
/// Whether it asks which context, or whose device, is the calling thread's, or whether a device has a primary
/// one. Runtimes do so before other calls.
constexpr Table<bool> asks_for_context{
    {{true, {cuCtxGetCurrent, cuCtxGetDevice, cuCtxGetDevice_v2, cuDevicePrimaryCtxGetState}}}};
constexpr Table<Enters> enters{{
    {Enters::first_argument, {cuCtxSetCurrent, cuCtxPushCurrent, cuCtxPushCurrent_v2}},
    {Enters::unknown,
     {cuCtxAttach, cuCtxCreate, cuCtxCreate_v2, cuCtxCreate_v3, cuCtxCreate_v4, cuCtxDestroy, cuCtxDestroy_v2,
      cuCtxDetach, cuCtxPopCurrent, cuCtxPopCurrent_v2, cuGreenCtxDestroy, cuDevicePrimaryCtxRelease,
      cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2}},
}};
} // namespace table

using table::asks_about;
using table::asks_for_context;
using table::ended_by;
using table::enters;
using table::forgotten_by;
using table::made_by;
using table::waits;

/// Whether anything of the call is noted, or answered in a deep sleep.
constexpr bool is_noted(Entry entry) noexcept {
    return made_by(entry) != Object::none || ended_by(entry) != Object::none ||
           forgotten_by(entry) != Object::none || asks_about(entry) != Asks::nothing ||
           enters(entry) != Enters::nothing || asks_for_context(entry) ||
           entry == Entry::cuThreadExchangeStreamCaptureMode || entry == Entry::cuMemGetInfo_v2;
}

template <class First, class... Rest>
First first_of(First first, Rest...) noexcept {
    return first;
}

template <class Handle>
std::uint64_t bits_of(Handle handle) noexcept {
    if constexpr (std::is_pointer_v<Handle>)
        return reinterpret_cast<std::uint64_t>(handle);
    else
        return handle;
}

/// Before a call that destroys something.
template <Entry entry, class... Arguments>
void note_end(Arguments... arguments) noexcept {
    if constexpr (ended_by(entry) != Object::none || forgotten_by(entry) != Object::none) {
        if (!intercepts()) return;
        for (const auto kind : {ended_by(entry), forgotten_by(entry)})
            static_cast<void>(intercepted::object_ends(kind, bits_of(first_of(arguments...))));
    }
}

/// The kind of event that cuEventCreate makes. Other processes may record one that is for interprocess use.
inline Object event_of(unsigned flags) noexcept {
    return (flags & CU_EVENT_INTERPROCESS) != 0 ? Object::shared_event : Object::event;
}

/// After a call.
template <Entry entry, class... Arguments>
void note_done(CUresult status, Arguments... arguments) noexcept {
    if (status != CUDA_SUCCESS || !intercepts()) return;
    if constexpr (entry == Entry::cuEventCreate) {
        [](const CUevent* event, unsigned flags) {
            intercepted::object_made(event_of(flags), bits_of(*event));
        }(arguments...);
    } else if constexpr (made_by(entry) != Object::none) {
        intercepted::object_made(made_by(entry), bits_of(*first_of(arguments...)));
    } else if constexpr (enters(entry) == Enters::first_argument) {
        intercepted::set_current_context(first_of(arguments...));
    } else if constexpr (enters(entry) == Enters::unknown) {
        intercepted::set_current_context(nullptr);
    } else if constexpr (asks_about(entry) != Asks::nothing || entry == Entry::cuMemGetInfo_v2) {
        intercepted::learn_current_context();
    }
}

/// Answers a call of asks_for_context() without the driver. False: only the driver can answer it.
inline bool tell_context(CUcontext* context) noexcept {
    auto* const current = intercepted::current_context_while_deep();
    if (!current || !context) return false;
    *context = current;
    return true;
}
inline bool tell_context(CUdevice* device, CUcontext context = nullptr) noexcept {
    if (!context) context = intercepted::current_context_while_deep();
    const auto known = intercepted::device_while_deep(context);
    if (!known || !device) return false;
    *device = *known;
    return true;
}
inline bool tell_context(CUdevice device, unsigned* flags, int* active) noexcept {
    const auto known = intercepted::primary_state_while_deep(device);
    if (!known || !flags || !active) return false;
    *flags = known->flags;
    *active = known->active;
    return true;
}

struct CaptureMode {
    CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;    ///< as the thread has set it
    CUstreamCaptureMode driver = CU_STREAM_CAPTURE_MODE_GLOBAL; ///< as the driver knows it
};
/// The calling thread's capture mode. Nobody waits to change it: in a deep sleep the agent remembers it, and
/// the driver is told before the thread's next call.
inline constinit thread_local CaptureMode t_capture_mode __attribute__((tls_model("initial-exec")));

/// Does the work of cuThreadExchangeStreamCaptureMode without the driver. False: the argument is wrong, and
/// only the driver can say how.
inline bool exchange_capture_mode(CUstreamCaptureMode* mode) noexcept {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    std::swap(*mode, t_capture_mode.own);
    return true;
}

[[gnu::noinline]] inline void tell_driver_capture_mode() noexcept {
    auto mode = t_capture_mode.own;
    t_capture_mode.driver = t_capture_mode.own; // once: what fails now fails again
    static_cast<void>(real<Entry::cuThreadExchangeStreamCaptureMode>()(&mode));
}
/// After the thread has passed the gate, and before its call.
inline void settle_capture_mode() noexcept {
    if (t_capture_mode.own != t_capture_mode.driver) [[unlikely]]
        tell_driver_capture_mode();
}

/// Whether the call is answered while the process sleeps deeply: what it asks about is known, it changes
/// nothing, or what it destroys is put off. `call` makes it.
template <Entry entry, class Call, class... Arguments>
bool answer_while_deep([[maybe_unused]] const Call& call, [[maybe_unused]] Arguments... arguments) noexcept {
    using namespace intercepted;
    if constexpr (asks_about(entry) == Asks::stream) return is_stream_done(arguments..., waits(entry));
    if constexpr (asks_about(entry) == Asks::event) return is_event_done(arguments..., waits(entry));
    if constexpr (asks_about(entry) == Asks::context) return is_context_done(arguments..., waits(entry));
    if constexpr (asks_about(entry) == Asks::current_context) return is_current_context_done(waits(entry));
    if constexpr (entry == Entry::cuThreadExchangeStreamCaptureMode)
        return exchange_capture_mode(arguments...);
    if constexpr (asks_for_context(entry)) return tell_context(arguments...);
    if constexpr (entry == Entry::cuCtxSetCurrent) { // to that which it is already
        auto* const current = current_context_while_deep();
        return current && current == first_of(arguments...);
    }
    if constexpr (ended_by(entry) != Object::none)
        return is_current_context_done() && put_off(ended_by(entry), bits_of(first_of(arguments...)),
                                                    [call] { static_cast<void>(call()); });
    if constexpr (entry == Entry::cuMemGetInfo_v2) {
        const auto tell = [](std::size_t* free, std::size_t* total) {
            const auto memory = memory_while_deep();
            if (!memory || !free || !total) return false;
            *free = memory->free;
            *total = memory->total;
            return true;
        };
        return is_current_context_done() && tell(arguments...);
    }
    return false;
}

} // namespace gpu_sleep::hooks
