// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping exceptions of the standard library and pthread_cancel() from unwinding our frames: at the bodies
// of threads, in the C API, and inside somebody else's thread.

#pragma once

#include "base/error.hpp"

#include <pthread.h>

#include <exception>
#include <new>
#include <type_traits>

namespace gpu_sleep {

/// While it exists, the calling thread cannot be cancelled: a request stays pending until the program's own
/// code runs again. Source: pthread_setcancelstate(3).
class CancellationHold {
public:
    CancellationHold() noexcept { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~CancellationHold() { ::pthread_setcancelstate(before_, nullptr); }
    CancellationHold(const CancellationHold&) = delete;
    CancellationHold& operator=(const CancellationHold&) = delete;

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

/// The error for failed allocation. Its message is short enough for a string that allocates nothing.
[[nodiscard]] inline Error out_of_memory() noexcept {
    return Error{ErrorCode::out_of_host_memory, "no memory left", "operator new", 0};
}

/// Calls `body`, which returns a Result or nothing, and turns an exception into an Error: nothing in this
/// project throws by design, but the standard library does when memory runs out. Meanwhile the thread cannot
/// be cancelled, which would unwind noexcept frames; so `body` may wait. Errors: those of `body`;
/// out_of_host_memory, internal.
template <class Body, class Returned = std::invoke_result_t<Body>>
[[nodiscard]] std::conditional_t<std::is_void_v<Returned>, Result<void>, Returned>
guarded(Body&& body) noexcept {
    const CancellationHold no_cancellation;
    try {
        if constexpr (std::is_void_v<Returned>) {
            body();
            return {};
        } else {
            return body();
        }
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

/// The same for a `body` without a result: a failure is ignored. For records that may be missing when memory
/// runs out.
template <class Body>
void ignoring_errors(Body&& body) noexcept {
    static_cast<void>(guarded(body));
}

} // namespace gpu_sleep
