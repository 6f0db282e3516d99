/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* The smallest program in C that uses the agent: allocates under a tag, sleeps, wakes, frees. */

#include <gpu_sleep/gpu_sleep.h>

#include <stdio.h>

static int failed(const char* call) {
    fprintf(stderr, "%s: %s\n", call, gpu_sleep_last_error());
    return 1;
}

int main(void) {
    const size_t bytes = (size_t)4 << 20;
    void* weights = NULL;

    printf("agent %s, API version %d\n", gpu_sleep_version(), gpu_sleep_api_version());
    if (gpu_sleep_api_version() < GPU_SLEEP_API_VERSION) return 1;
    if (gpu_sleep_alloc(&weights, bytes, 0, "weights") != GPU_SLEEP_OK) return failed("gpu_sleep_alloc");
    if (gpu_sleep_sleep(1, NULL, 0) != GPU_SLEEP_OK) return failed("gpu_sleep_sleep");
    printf("asleep: %zu bytes\n", gpu_sleep_asleep_bytes());
    if (gpu_sleep_asleep_bytes() < bytes) return 1;
    if (gpu_sleep_wake(NULL, 0) != GPU_SLEEP_OK) return failed("gpu_sleep_wake");
    if (gpu_sleep_asleep_bytes() != 0) return 1;
    if (gpu_sleep_free(weights) != GPU_SLEEP_OK) return failed("gpu_sleep_free");
    return 0;
}
