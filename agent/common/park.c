/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* In C, where a clean-up handler needs no unwinding of C++ frames. */

#include "common/park.h"

#include <pthread.h>
#include <unistd.h>

struct told {
    void (*on_park)(void* argument);
    void* argument;
};

static void park(void* data) {
    const struct told* const told = data;
    if (told->on_park) told->on_park(told->argument);
    for (;;) pause();
}

void gpu_sleep_call_or_park(void (*body)(void* argument), void* argument, void (*on_park)(void* argument)) {
    struct told told = {on_park, argument};
    pthread_cleanup_push(park, &told);
    body(argument);
    pthread_cleanup_pop(0);
}
