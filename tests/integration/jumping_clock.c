/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* Preloaded, it has the clock on the wall jump by a day, forth and back, whenever somebody looks. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static time_t jump(void) {
    static atomic_uint s_looks;
    const time_t day = 24 * 60 * 60;
    return atomic_fetch_add(&s_looks, 1) % 2 == 0 ? day : -day;
}

EXPORTED int clock_gettime(clockid_t clock, struct timespec* now) {
    const int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return status;
}

EXPORTED int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    struct timespec time;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

EXPORTED time_t time(time_t* now) {
    struct timespec moment;
    if (clock_gettime(CLOCK_REALTIME, &moment) != 0) return -1;
    if (now) *now = moment.tv_sec;
    return moment.tv_sec;
}
