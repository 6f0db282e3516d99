/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* Preloaded, it has each flush take as many seconds as GPU_SLEEP_TEST_FLUSH says. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fsync(int descriptor) {
    int (*real)(int) = NULL;
    const char* const seconds = getenv("GPU_SLEEP_TEST_FLUSH");
    *(void**)&real = dlsym(RTLD_NEXT, "fsync");
    if (seconds) sleep((unsigned)atoi(seconds));
    return real ? real(descriptor) : -1;
}
