/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* The smallest program in C that uses the agent: allocates under a tag, sleeps, wakes, frees. */

#include <gpu_sleep/gpu_sleep.h>

#include <stdio.h>
#include <string.h>

static int failed(const char* call) {
    fprintf(stderr, "%s: %s\n", call, gpu_sleep_last_error());
    return 1;
}

/* Whether the only tag that has memory is "weights", in this state. */
static int stands(gpu_sleep_state state, uint64_t resident_bytes, uint64_t kept_bytes) {
    gpu_sleep_tag_state its[2];
    size_t count = 0;

    if (gpu_sleep_tag_states(its, sizeof its[0], 2, &count) != GPU_SLEEP_OK)
        return !failed("gpu_sleep_tag_states");
    if (count != 1 || strcmp(its[0].tag, "weights") != 0 || its[0].device != 0) return 0;
    printf("%s: state %d, %llu bytes on the GPU\n", its[0].tag, (int)its[0].state,
           (unsigned long long)its[0].resident_bytes);
    return its[0].state == state && its[0].retention == GPU_SLEEP_OFFLOAD && its[0].needs_refill == 0 &&
           its[0].resident_bytes == resident_bytes && its[0].kept_bytes == kept_bytes &&
           its[0].bytes >= (uint64_t)4 << 20 && its[0].dropped_bytes == 0;
}

/* Too many for the array: counted, and not written. Wrong arguments are refused. */
static int is_careful(void) {
    gpu_sleep_tag_state one;
    size_t count = 0;

    memset(&one, 'x', sizeof one);
    return gpu_sleep_tag_states(&one, sizeof one, 0, &count) == GPU_SLEEP_OK && count == 1 &&
           one.tag[0] == 'x' && gpu_sleep_tag_states(NULL, sizeof one, 0, &count) == GPU_SLEEP_OK &&
           count == 1 &&
           gpu_sleep_tag_states(NULL, sizeof one, 1, &count) == GPU_SLEEP_ERROR_INVALID_ARGUMENT &&
           gpu_sleep_tag_states(&one, sizeof one - 1, 1, &count) == GPU_SLEEP_ERROR_INVALID_ARGUMENT &&
           gpu_sleep_tag_states(&one, sizeof one, 1, NULL) == GPU_SLEEP_ERROR_INVALID_ARGUMENT;
}

int main(void) {
    const size_t bytes = (size_t)4 << 20;
    void* weights = NULL;
    size_t count = 1;

    printf("agent %s, API version %d\n", gpu_sleep_version(), gpu_sleep_api_version());
    if (gpu_sleep_api_version() < GPU_SLEEP_API_VERSION) return 1;
    if (gpu_sleep_tag_states(NULL, sizeof(gpu_sleep_tag_state), 0, &count) != GPU_SLEEP_OK || count != 0)
        return 1;
    if (gpu_sleep_alloc(&weights, bytes, 0, "weights") != GPU_SLEEP_OK) return failed("gpu_sleep_alloc");
    if (!stands(GPU_SLEEP_AWAKE, bytes, 0) || !is_careful()) return 1;
    if (gpu_sleep_sleep(1, NULL, 0) != GPU_SLEEP_OK) return failed("gpu_sleep_sleep");
    printf("asleep: %zu bytes\n", gpu_sleep_asleep_bytes());
    if (gpu_sleep_asleep_bytes() < bytes || !stands(GPU_SLEEP_ASLEEP, 0, bytes)) return 1;
    if (gpu_sleep_wake(NULL, 0) != GPU_SLEEP_OK) return failed("gpu_sleep_wake");
    if (gpu_sleep_asleep_bytes() != 0 || !stands(GPU_SLEEP_AWAKE, bytes, 0)) return 1;
    if (gpu_sleep_free(weights) != GPU_SLEEP_OK) return failed("gpu_sleep_free");
    return 0;
}
