// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hook of every entry point, as its class has it. A thread that is cancelled while the driver waits
// unwinds through the driver and through what is here up to the program: no such function is noexcept.

#pragma once

#include "base/guard.hpp"
#include "hooks/deep_answers.hpp"
#include "hooks/driver_table.hpp"
#include "hooks/named_addresses.hpp"
#include "intercepted/memory.hpp"

namespace gpu_sleep::hooks {

/// Makes a call that copies, or describes a copy: once more if it was refused for want of access that the
/// driver's own plain memory does not need.
template <class Call>
CUresult call_reaching(const gate::Inspector& copy, Call&& call) {
    const auto status = call();
    const bool may_reach =
        status == CUDA_ERROR_INVALID_VALUE && intercepts() && intercepted::let_copies_reach(copy);
    return may_reach ? call() : status;
}

/// Passes the gate as the entry point's class has it, and calls what `function` gives.
template <Entry entry, class Function, class... Arguments>
[[gnu::always_inline]] inline CUresult pass(Function function, Arguments... arguments) {
    if constexpr (k_names_known<entry>) {
        const auto inspector = inspector_of<entry>(arguments...);
        const gate::Passage passage(k_touch<entry>, k_name<entry>, &inspector);
        if (!passage.admitted()) return refused();
        settle_capture_mode();
        if constexpr (k_copies<entry>)
            return call_reaching(inspector, [&] { return function()(arguments...); });
        else
            return function()(arguments...);
    } else {
        const gate::Passage passage(k_touch<entry>, k_name<entry>);
        if (!passage.admitted()) return refused();
        settle_capture_mode();
        return function()(arguments...);
    }
}

/// The hook of an entry point that touches something.
template <Entry entry, class Type = typename Signature<entry>::Type>
struct Forward;

template <Entry entry, class... Arguments>
struct Forward<entry, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        if constexpr (is_noted(entry))
            return pass<entry>([] { return &call_and_note; }, arguments...);
        else
            return pass<entry>(real<entry>, arguments...);
    }

private:
    /// Noting may ask the driver, so that is within the passage, too.
    static CUresult call_and_note(Arguments... arguments) {
        const auto status = real<entry>()(arguments...);
        note_done<entry>(status, arguments...);
        return status;
    }
};

/// The hook of an entry point that only asks, or orders: `call`, unless the process sleeps deeply. Then it is
/// answered if it is known what the driver would say, and else held, or fails.
template <Entry entry, class Call, class... Arguments>
CUresult ask(const Call& call, Arguments... arguments) {
    const gate::Question question(k_name<entry>,
                                  [&] { return answer_while_deep<entry>(call, arguments...); });
    if (question.is_answered()) [[unlikely]]
        return CUDA_SUCCESS;
    if (!question.admitted()) return refused();
    settle_capture_mode();
    note_end<entry>(arguments...);
    const auto status = call();
    note_done<entry>(status, arguments...);
    return status;
}

/// The hook of an entry point that is no touch.
template <Entry entry, class Type = typename Signature<entry>::Type>
struct Ask;

template <Entry entry, class... Arguments>
struct Ask<entry, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        if constexpr (is_noted(entry)) {
            return ask<entry>([=] { return real<entry>()(arguments...); }, arguments...);
        } else { // the same, without a type for each of hundreds to compile
            const gate::Question question(k_name<entry>);
            if (!question.admitted()) return refused();
            settle_capture_mode();
            return real<entry>()(arguments...);
        }
    }
};

/// The hook of an entry point that has `*hook` of its own; `passes`: which passes the gate itself.
template <Entry entry, auto hook, bool passes, class Type = typename Signature<entry>::Type>
struct Own;

template <Entry entry, auto hook, bool passes, class... Arguments>
struct Own<entry, hook, passes, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        return ask<entry>(
            [=] {
                if constexpr (passes || k_touch<entry> == gate::Touch::asks)
                    return call_hook(arguments...);
                else
                    return pass<entry>([] { return &call_hook; }, arguments...);
            },
            arguments...);
    }

private:
    static CUresult call_hook(Arguments... arguments) {
        // Calls that ask about work wait for it in the driver, and hold nothing. In any other call the
        // agent's record of the program's memory is being changed, so a cancellation of the thread waits for
        // its end.
        if constexpr (asks_about(entry) != Asks::nothing) return (*hook)(arguments...);
        const CancellationHold no_cancellation;
        return (*hook)(arguments...);
    }
};

} // namespace gpu_sleep::hooks
