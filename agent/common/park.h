/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* Surviving a pthread_exit() in somebody else's function. */

#ifndef GPU_SLEEP_AGENT_COMMON_PARK_H
#define GPU_SLEEP_AGENT_COMMON_PARK_H

#ifdef __cplusplus
extern "C" {
#endif

/** Calls `body(argument)`. If that ends the thread, as Python before 3.14 does when a thread asks for its
 * lock after the interpreter's end has begun, the thread waits here for the end of the process instead: to
 * unwind our frames would end the process itself. `on_park(argument)`, if there is one, is called first.
 * `body` has no destructors to run and catches no exception. Source: pthread_cleanup_push(3). */
void gpu_sleep_call_or_park(void (*body)(void* argument), void* argument, void (*on_park)(void* argument));

#ifdef __cplusplus
}
#endif

#endif
