// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hook of every entry point, as its class has it.

#pragma once

#include "hooks/driver_table.hpp"
#include "hooks/named_addresses.hpp"
#include "intercepted/peers.hpp"
#include "intercepted/put_off.hpp"

#include <cstddef>
#include <optional>

namespace gpu_sleep::hooks {

/// Makes a call that copies, or describes a copy: once more if it was refused for want of access that the
/// driver's own plain memory does not need.
template <class Call>
CUresult call_reaching(const gate::Inspector& copy, Call&& call) noexcept {
    const auto status = call();
    const bool may_reach =
        status == CUDA_ERROR_INVALID_VALUE && intercepts() && agent::intercepted::let_copies_reach(copy);
    return may_reach ? call() : status;
}

/// Passes the gate as the entry point's class has it, and calls what `function` gives.
template <Entry entry, class Function, class... Arguments>
CUresult pass(Function function, Arguments... arguments) noexcept {
    if constexpr (k_names_known<entry>) {
        const auto inspector = inspector_of<entry>(arguments...);
        const gate::Passage passage(k_touch<entry>, k_name<entry>, &inspector);
        if (!passage.admitted()) return refused();
        if constexpr (k_copies<entry>)
            return call_reaching(inspector, [&] { return function()(arguments...); });
        else
            return function()(arguments...);
    } else {
        const gate::Passage passage(k_touch<entry>, k_name<entry>);
        return passage.admitted() ? function()(arguments...) : refused();
    }
}

/// The hook of an entry point that touches something.
template <Entry entry, class Type = typename Signature<entry>::Type>
struct Forward;

template <Entry entry, class... Arguments>
struct Forward<entry, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) noexcept {
        return pass<entry>(real<entry>, arguments...);
    }
};

/// Whether the call asks or waits for work that has been given to the GPU. While the process sleeps deeply
/// all of it is done, and who polls for its end is answered without the driver.
constexpr bool asks_for_work(Entry entry) noexcept {
    switch (entry) {
    case Entry::cuStreamQuery:
    case Entry::cuStreamQuery_ptsz:
    case Entry::cuEventQuery:
    case Entry::cuStreamSynchronize:
    case Entry::cuStreamSynchronize_ptsz:
    case Entry::cuEventSynchronize:
    case Entry::cuCtxSynchronize:
    case Entry::cuCtxSynchronize_v2: return true;
    default: return false;
    }
}

/// Whether the call destroys something of the driver's, for which nobody has to wait. What gives memory of
/// the program's own back to it is not among these, for the driver must have let that go; nor what is freed
/// in a stream's turn, for which the stream's context must be current.
constexpr bool only_destroys(Entry entry) noexcept {
    switch (entry) {
    case Entry::cuMemFree:
    case Entry::cuMemFree_v2:
    case Entry::cuMemFreeHost:
    case Entry::cuArrayDestroy:
    case Entry::cuMipmappedArrayDestroy:
    case Entry::cuEventDestroy:
    case Entry::cuEventDestroy_v2:
    case Entry::cuStreamDestroy:
    case Entry::cuStreamDestroy_v2:
    case Entry::cuModuleUnload:
    case Entry::cuLibraryUnload:
    case Entry::cuGraphDestroy:
    case Entry::cuGraphExecDestroy:
    case Entry::cuTexObjectDestroy:
    case Entry::cuSurfObjectDestroy: return true;
    default: return false;
    }
}

/// `call`, unless the process sleeps deeply: then it is answered, put off, held, or fails.
template <Entry entry, class Call>
CUresult ask(Call call) noexcept {
    if (gate::Gate::is_deep()) [[unlikely]] {
        if constexpr (asks_for_work(entry)) return CUDA_SUCCESS;
        if constexpr (only_destroys(entry))
            if (agent::intercepted::put_off([call] { static_cast<void>(call()); })) return CUDA_SUCCESS;
    }
    const gate::Question question(k_name<entry>);
    return question.admitted() ? call() : refused();
}

/// What cuMemGetInfo says while the process sleeps deeply: what there was when it fell asleep. Nothing where
/// that is not known.
inline std::optional<CUresult> answer_while_deep(std::size_t* free, std::size_t* total) noexcept {
    const auto memory = agent::intercepted::memory_while_deep();
    if (!memory || !free || !total) return std::nullopt;
    *free = memory->free;
    *total = memory->total;
    return CUDA_SUCCESS;
}

/// The hook of an entry point that is no touch.
template <Entry entry, class Type = typename Signature<entry>::Type>
struct Ask;

template <Entry entry, class... Arguments>
struct Ask<entry, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) noexcept {
        if constexpr (entry == Entry::cuMemGetInfo_v2)
            if (gate::Gate::is_deep())
                if (const auto answer = answer_while_deep(arguments...)) return *answer;
        if constexpr (asks_for_work(entry) || only_destroys(entry)) {
            return ask<entry>([=] { return real<entry>()(arguments...); });
        } else { // the same, without a type for each of hundreds to compile
            const gate::Question question(k_name<entry>);
            return question.admitted() ? real<entry>()(arguments...) : refused();
        }
    }
};

/// The hook of an entry point that has `hook` of its own; `passes`: which passes the gate itself.
template <Entry entry, auto hook, bool passes, class Type = typename Signature<entry>::Type>
struct Own;

template <Entry entry, auto hook, bool passes, class... Arguments>
struct Own<entry, hook, passes, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) noexcept {
        return ask<entry>([=] {
            if constexpr (passes || k_touch<entry> == gate::Touch::asks)
                return hook(arguments...);
            else
                return pass<entry>([] { return hook; }, arguments...);
        });
    }
};

} // namespace gpu_sleep::hooks
