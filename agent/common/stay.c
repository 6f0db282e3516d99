/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* In C, where a clean-up handler needs no unwinding of C++ frames. */

#include "common/stay.h"

#include <pthread.h>
#include <unistd.h>

struct told {
    void (*on_stay)(void* argument);
    void* argument;
};

static void stay(void* data) {
    const struct told* const told = data;
    if (told->on_stay) told->on_stay(told->argument);
    for (;;) pause();
}

void gpu_sleep_call_and_stay(void (*body)(void* argument), void* argument, void (*on_stay)(void* argument)) {
    struct told told = {on_stay, argument};
    pthread_cleanup_push(stay, &told);
    body(argument);
    pthread_cleanup_pop(0);
}
