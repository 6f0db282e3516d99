/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* In C, where a clean-up handler needs no unwinding of C++ frames. */

#include "gate/stay.h"

#include <pthread.h>
#include <unistd.h>

static void stay(void* unused) {
    (void)unused;
    for (;;) pause();
}

void gpu_sleep_call_and_stay(void (*body)(void* argument), void* argument) {
    pthread_cleanup_push(stay, NULL);
    body(argument);
    pthread_cleanup_pop(0);
}
