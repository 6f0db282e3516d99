/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* clang-format off */
/* What tests may ask of the simulated driver beside the driver API: to fail, to be slow, to corrupt, to
 * count, and to run host functions as kernels. C11. Link libcuda.so.1 of the build's simulated/ folder, or
 * find the names with dlsym.
 *
 * Every function may be called from any thread, before cuInit too, and is not counted as a driver call. Sizes
 * are in bytes. Names of driver functions are those of the documentation ("cuMemAlloc"), for all symbols of a name.
 *
 * The environment sets up a process that a test cannot reach into. Read once, at the first driver call:
 *
 *   GPU_SLEEP_SIM_DEVICES=2             number of devices (at most 16)
 *   GPU_SLEEP_SIM_MEMORY=8589934592     bytes of each device
 *   GPU_SLEEP_SIM_CONTEXT_BYTES=8388608 device memory that a context takes
 *   GPU_SLEEP_SIM_STREAM_BYTES=0        device memory that a context's streams take together, from the second one that
 *                                       cuStreamCreate makes on, for as long as there are two
 *   GPU_SLEEP_SIM_STATE=FILE            processes that name the same file share the devices' memory, and can
 *                                       checkpoint each other; the others are on machines of their own
 *   GPU_SLEEP_SIM_CHECKPOINT=fails      a checkpoint of the process gives CUDA_ERROR_UNKNOWN and leaves it as
 *                                       CU_PROCESS_STATE_FAILED
 *   GPU_SLEEP_SIM_SHARING=mig           each device is a part of a GPU; =mps: the process is a client of MPS
 *   GPU_SLEEP_SIM_HOST_NUMA=0           no host memory can be mapped at addresses of a device
 *   GPU_SLEEP_SIM_POISON=0              fresh memory reads as zeros; =1: as a pattern. Otherwise the pattern
 *                                       is in the lowest 128 MiB of each device; what is above stays sparse
 *   GPU_SLEEP_SIM_FAIL=NAME:N:STATUS[:forever][,...]
 *                                       see sim_fail()
 *   GPU_SLEEP_SIM_DELAY=NAME:TIME[,...] see sim_delay(); TIME is like 5ms, 200us or 1s. For the library that stands
 *                                       for NVML nvmlDeviceGetMemoryInfo can be named, in milliseconds
 *   GPU_SLEEP_SIM_DELAY=NAME:until=FILE ends when FILE is there, within a minute
 *   GPU_SLEEP_SIM_TRACE=FILE            one line a call: thread, name, status, nanoseconds
 *
 * Simpler than the real driver: managed memory lies on its device and never moves; a pool gives memory back
 * when the free is executed, where the real one waits for the next synchronisation; a graph's memory is taken
 * when it is launched and given back when it is freed, with nothing kept in between but what a launch took that did
 * not find all of its memory; graphs have an order and no edges; the contents of a checkpointed process stay where
 * they are, and only the devices' memory is free, also when it is restored on another; memory that was shared by legacy
 * IPC can be shared again after a restore, and a pool that was exported still allocates.
 *
 * Not simulated: what green contexts have of a device, textures, levels of mipmapped arrays, what is no whole row of an
 * array, sparse arrays, global variables of modules,
 * multicast objects, memory pools of other processes, external semaphores, child and conditional
 * graph nodes.
 */
/* clang-format on */

#ifndef GPU_SLEEP_TESTS_SUPPORT_SIMULATED_DRIVER_CONTROL_H
#define GPU_SLEEP_TESTS_SUPPORT_SIMULATED_DRIVER_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_API __attribute__((visibility("default")))

/* ---- Failures, delays, corruption ---- */

/** How long an injected failure applies. */
enum {
    SIM_ONCE = 0,     /**< the N-th call only */
    SIM_FOREVER = 1,  /**< the N-th call and all after it */
    SIM_UNCOUNTED = 2 /**< added to one of these: not among injected_failures, nor sim_last_failed() */
};

/** Makes the `nth` call from now (1 is the next) of `name` return `status` (a CUresult) and do nothing. "*"
 * counts the calls of all names together, except those that work before cuInit. Failures add up until
 * sim_clear(). */
SIM_API void sim_fail(const char* name, uint64_t nth, int status, unsigned flags);

/** Makes each call of `name` take `microseconds` longer: work for a stream when it is executed, other calls
 * when they are made. Zero ends it. */
SIM_API void sim_delay(const char* name, uint64_t microseconds);

/** Flips one bit in what the `nth` copy from now of `name` ("*": of any name) wrote, when it was executed.
 * For cuLaunchKernel, a block that gpu_sleep_copy wrote. */
SIM_API void sim_corrupt_copy(const char* name, uint64_t nth);

/** Flips bit `bit` of the byte `offset` bytes after `address`: host memory, or device memory that is mapped.
 */
SIM_API void sim_flip_bit(uint64_t address, uint64_t offset, unsigned bit);

/** Takes back every failure, delay and corruption, those of the environment too. */
SIM_API void sim_clear(void);

/* ---- Counts ---- */

/** Calls of `name` since the start or sim_reset_counts(), failed ones included; "*" for all names. */
SIM_API uint64_t sim_calls(const char* name);

/** Nanoseconds that threads spent inside the driver's functions, added up; waiting and delays included. */
SIM_API uint64_t sim_nanoseconds_inside(void);

/** What was done wrong since the start or sim_reset_counts(). */
typedef struct sim_faults {
    uint64_t illegal_accesses;  /**< work that touched memory not mapped, not granted or released meanwhile */
    uint64_t broken_captures;   /**< stream captures that a forbidden call invalidated */
    uint64_t corrupted_copies;  /**< bits flipped by sim_corrupt_copy() */
    uint64_t injected_failures; /**< calls failed by sim_fail() */
} sim_faults;
SIM_API sim_faults sim_fault_counts(void);

/** The name of the call that sim_fail() failed last, since the start or sim_reset_counts(); "" when there was
 * none. The string is static. */
SIM_API const char* sim_last_failed(void);

/** Sets the counts of calls, nanoseconds and faults to zero. */
SIM_API void sim_reset_counts(void);

/** What this process holds now; default streams are not counted. */
typedef struct sim_live {
    uint64_t handles;        /**< physical memory: handles not yet released */
    uint64_t physical_bytes; /**< physical memory: held by handles, mappings and every kind of allocation */
    uint64_t mappings;       /**< this and the next three: by the program's own calls */
    uint64_t mapped_bytes;
    uint64_t reservations;
    uint64_t plain_allocations; /**< managed ones and those of other processes among them */
    uint64_t plain_bytes;
    uint64_t host_registrations; /**< page-locked host memory, registered or allocated */
    uint64_t host_bytes;
    uint64_t contexts;
    uint64_t streams;
    uint64_t events;
    uint64_t modules; /**< and libraries */
    uint64_t graphs;
    uint64_t pool_allocations;    /**< stream-ordered: until the free was executed */
    uint64_t pool_bytes;          /**< of those, as asked for */
    uint64_t pool_reserved_bytes; /**< of those and what pools keep, in whole pages */
    uint64_t graph_allocations;   /**< memory of allocation nodes, from a launch until it is freed */
    uint64_t memory_pools;        /**< that the program created */
} sim_live;
SIM_API sim_live sim_live_objects(void);

/** Bytes free on `device` now, for all processes that share it; 0 for a device that there is not. */
SIM_API uint64_t sim_free_bytes(int device);

/** A process that uses a device. */
typedef struct sim_process {
    int pid;
    uint64_t bytes;
} sim_process;

/** The processes that use `device`, which share it by GPU_SLEEP_SIM_STATE: writes at most `most` of them, and
 * returns how many there are, or, if `found` is null, how many there were. */
SIM_API size_t sim_processes(sim_process* found, size_t most, int device);

/* ---- Kernels ---- */

/** One launch, as its kernel sees it. Valid while the kernel runs. */
typedef struct sim_launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    int device;
    const void* internal; /**< the driver's own */
} sim_launch;

/** A host function that stands for a kernel: called once a launch, on the stream's thread, for all of its
 * blocks. `arguments[i]` points to a copy of parameter i. It may read and write simulated device memory and
 * page-locked host memory; a fault in it becomes CUDA_ERROR_ILLEGAL_ADDRESS, and then its destructors do not
 * run. */
typedef void (*sim_kernel)(const sim_launch* launch, void** arguments);

/** Makes `function` the kernel `name` in every module, now and later. The parameters' sizes are copied; a
 * parameter of 8 bytes that lies in device memory when the kernel starts is checked for access. */
SIM_API void sim_register_kernel(const char* name, sim_kernel function, const size_t* parameter_bytes,
                                 size_t parameter_count);

/** Ends the kernel with CUDA_ERROR_ILLEGAL_ADDRESS, without returning, unless the device of `launch` may read
 * (or, if `write` is not 0, write) `bytes` bytes at `address`. For addresses that a kernel finds in memory.
 * Returns where this process has them: at `address`, or elsewhere, which is faster for pages that nobody has
 * touched at `address`. There nothing faults when the memory goes away meanwhile: ask again afterwards. */
SIM_API void* sim_require_access(const sim_launch* launch, uint64_t address, uint64_t bytes, int write);

/** Not 0 when the context is being destroyed, so that a kernel that waits can end. */
SIM_API int sim_launch_cancelled(const sim_launch* launch);

/* Kernels that are always there:
 *   sim_fill(uint32_t* to, uint64_t count, uint32_t value)
 *   sim_add(uint32_t* to, uint64_t count, uint32_t increment)
 *   sim_copy(uint32_t* to, const uint32_t* from, uint64_t count)
 *   sim_spin(uint64_t milliseconds)
 *   sim_spin_until(const uint32_t* flag)     until *flag (page-locked host or device memory) is not 0
 *   gpu_sleep_fingerprint, gpu_sleep_copy, gpu_sleep_measure_blocks, gpu_sleep_encode_blocks,
 *   gpu_sleep_decode_blocks                  the product's own, compiled for the host
 */

#ifdef __cplusplus
}
#endif

#endif
