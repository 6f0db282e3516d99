// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping pthread_cancel() from unwinding our frames inside somebody else's thread.

#pragma once

#include <pthread.h>

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

} // namespace gpu_sleep
