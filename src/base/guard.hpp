// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where exceptions of the standard library end: at the bodies of threads and at the C API.

#pragma once

#include "base/cancellation.hpp"
#include "base/result.hpp"

#include <exception>
#include <new>
#include <type_traits>

namespace gpu_sleep {

/// Says so in words that a string holds without memory of its own.
[[nodiscard]] inline Error out_of_memory() noexcept {
    return Error{ErrorCode::out_of_host_memory, "no memory left", "operator new", 0};
}

/// Calls `body`, which returns a Result, and turns what it throws into an Error: nothing in this project
/// throws by design, but the standard library does when memory runs out. The thread is not cancelled
/// meanwhile, which would unwind frames that nothing may leave: `body` may wait. Errors: those of `body`;
/// out_of_host_memory, internal.
template <class Body>
[[nodiscard]] std::invoke_result_t<Body> guarded(Body&& body) noexcept {
    const CancellationHold no_cancellation;
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return out_of_memory();
    } catch (const std::exception& unexpected) {
        try {
            return Error{ErrorCode::internal, unexpected.what(), {}, 0};
        } catch (const std::bad_alloc&) {
            return out_of_memory();
        }
    }
}

/// The same for what returns nothing: what fails for want of memory is left at that.
template <class Body>
void noted(Body&& body) noexcept {
    static_cast<void>(guarded([&]() -> Result<void> {
        body();
        return {};
    }));
}

} // namespace gpu_sleep
