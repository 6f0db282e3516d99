/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* The C API of the gpu-sleep agent (libgpu-sleep-agent.so): allocating GPU memory that can be put to sleep,
 * and taking part in sleeping and waking. C11; no CUDA types, so any language with a foreign-function
 * interface can call it. Link the agent (the guide for C and C++ has the flags), dlopen it, or preload it.
 *
 * Unless a declaration says otherwise: every function may be called from any thread, except from a signal
 * handler; sizes are in bytes; devices are CUDA ordinals of this process; strings are UTF-8, ended by NUL,
 * and copied; a function that fails changes nothing and leaves a sentence for gpu_sleep_last_error().
 *
 * A tag is 1 to 64 characters: ASCII letters and digits, '_', '-', '.' and ':'. "Bad tag" below means any
 * other text, or NULL where that is not said to be allowed.
 *
 * Any function that returns a status may return OUT_OF_HOST_MEMORY or INTERNAL, and CONTEXT_LOST where it may
 * return DRIVER; declarations name these where there is more to say.
 *
 * The agent works in the primary context of each device, as the CUDA runtime does, and before a sleep waits
 * for the work in those. A program that makes contexts of its own must synchronize them in a before-sleep
 * callback.
 */

#ifndef GPU_SLEEP_GPU_SLEEP_H
#define GPU_SLEEP_GPU_SLEEP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_SLEEP_API __attribute__((visibility("default")))

/** Version of this API: rises by one whenever a declaration is added; none is ever changed or removed. */
#define GPU_SLEEP_API_VERSION 11

/** The result of a call. Zero is success; the others are kinds of failure. */
typedef enum gpu_sleep_status {
    GPU_SLEEP_OK = 0,
    GPU_SLEEP_ERROR_INTERNAL = 1,              /**< a failure that has no number here, or a bug */
    GPU_SLEEP_ERROR_INVALID_ARGUMENT = 2,      /**< a bad argument, or a call without its counterpart */
    GPU_SLEEP_ERROR_UNKNOWN_TAG = 3,           /**< the process has no such tag */
    GPU_SLEEP_ERROR_TIMED_OUT = 6,             /**< callbacks, GPU work, a hold or copying took too long */
    GPU_SLEEP_ERROR_DAMAGED = 8,               /**< kept contents have changed */
    GPU_SLEEP_ERROR_DRIVER = 9,                /**< a call of the CUDA driver failed */
    GPU_SLEEP_ERROR_OUT_OF_DEVICE_MEMORY = 10, /**< too little GPU memory is free */
    GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY = 11,   /**< too little host memory is available */
    GPU_SLEEP_ERROR_REFUSED = 12,              /**< a callback refused, or may not call this */
    GPU_SLEEP_ERROR_CAPTURE_IN_PROGRESS = 13,  /**< a CUDA graph is being captured */
    GPU_SLEEP_ERROR_IO = 17,                   /**< a file of kept contents cannot be read or written */
    GPU_SLEEP_ERROR_NO_REFILL = 18,            /**< of gpu-sleep --require-refill; no function returns it */
    GPU_SLEEP_ERROR_NO_DRIVER = 19,            /**< no working CUDA driver, or it is too old */
    GPU_SLEEP_ERROR_NOT_OWNED = 20,            /**< the address is not in an allocation of the agent */
    GPU_SLEEP_ERROR_CONTEXT_LOST = 21,         /**< a CUDA context has failed, or the process is ending */
    GPU_SLEEP_ERROR_UNSEEN_LIBRARY = 22,       /**< of gpu-sleep without --force; no function returns it */
    GPU_SLEEP_ERROR_OUT_OF_DISK = 23           /**< too little room for files of kept contents */
} gpu_sleep_status;

/** The agent's version, such as "0.1.0". The string is static. */
GPU_SLEEP_API const char* gpu_sleep_version(void);

/** GPU_SLEEP_API_VERSION of the agent that is loaded. */
GPU_SLEEP_API int gpu_sleep_api_version(void);

/** The message of this thread's last failed call, or "" if none has failed. Valid until this thread's next
 * failing call. */
GPU_SLEEP_API const char* gpu_sleep_last_error(void);

/* ---- Memory ----------------------------------------------------------------------------------------------
 */

/** Allocates `bytes` of memory on `device` under `tag` and stores its address in `*pointer`.
 *
 *  `tag` may be NULL: the innermost gpu_sleep_push_tag() of this thread, or "default". The address is aligned
 * to 512 bytes and stays the same through every sleep. The contents are not initialised. The first call
 * starts the agent (its thread and its socket) in this process; it initialises CUDA if the program has not
 * yet done so. During a sleep or a wake the call waits until it has ended. Memory that is allocated while
 * its tag sleeps is awake. Errors: INVALID_ARGUMENT (`pointer` is NULL, zero bytes, no such device, bad tag),
 * OUT_OF_DEVICE_MEMORY, DRIVER, CONTEXT_LOST (the process is ending), NO_DRIVER, REFUSED (it sleeps deeply).
 * Source: CUDA Driver API, cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_alloc(void** pointer, size_t bytes, int device, const char* tag);

/** Frees memory of gpu_sleep_alloc(). Like cuMemFree it first waits for the work of the device, so do not
 * call it while a graph is being captured. Sleeping memory is freed without waking, but not in a deep sleep,
 * in which the call waits, wakes the process or fails, as `gpu-sleep --on-touch` has it. NULL is allowed.
 * Errors: NOT_OWNED (not the start of an allocation), CAPTURE_IN_PROGRESS, DRIVER, REFUSED (it sleeps
 * deeply). Source: CUDA Driver API, cuCtxRecordEvent, cuMemUnmap, cuMemRelease. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_free(void* pointer);

/** Lets `device` read and write the allocation at `pointer`, which lies on another device (peer access; both
 *  devices must support it). The access is granted again on waking. Small allocations can share a range;
 * access to one is access to all of them. Errors: NOT_OWNED (in no allocation), INVALID_ARGUMENT (no such
 * device, or it cannot reach the other), DRIVER. Source: CUDA Driver API, cuDeviceCanAccessPeer,
 * cuMemSetAccess. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_allow_access(void* pointer, int device);

/** Sets the tag of this thread's allocations without a tag of their own, until the matching
 * gpu_sleep_pop_tag(). Scopes nest. Errors: INVALID_ARGUMENT (bad tag; nothing pushed). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_push_tag(const char* tag);

/** Ends this thread's innermost tag scope. Errors: INVALID_ARGUMENT (none is open). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_pop_tag(void);

/* ---- Policies --------------------------------------------------------------------------------------------
 */

typedef enum gpu_sleep_retention {
    GPU_SLEEP_OFFLOAD = 0,  /**< kept at level 1, dropped at level 2: the default */
    GPU_SLEEP_PRESERVE = 1, /**< kept at every level */
    GPU_SLEEP_DISCARD = 2   /**< dropped at every level */
} gpu_sleep_retention;

/** Sets the policy for the contents of `tag`, for existing and later allocations. `refillable` is
 * non-zero if the program can fill the tag again after its contents were dropped. Errors: INVALID_ARGUMENT
 * (bad tag, no such retention). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_set_policy(const char* tag, gpu_sleep_retention retention,
                                                    int refillable);

/** Declares `tag` separable (`separable` non-zero) or not (0, the default). Separable means: whoever puts it
 * to sleep, the program does not use it until it wakes, and its other work reads no address of it from GPU
 * memory.
 *
 *  Under `gpu-run`, a gate holds the program's GPU work back while anything sleeps. It lets work pass that
 * names no sleeping address (checked) where each part that sleeps is of a separable tag or was put to sleep
 * by gpu_sleep_sleep(), and none otherwise (shut). It is shut, too, after a sleep of all tags, until
 * something is awake. `gpu-run --gate` (GPU_SLEEP_GATE in the environment) overrides this, and
 * `gpu-sleep --gate` overrides both until the whole process is awake. A change takes effect at the next
 * sleep or wake. Since version 3. Errors: INVALID_ARGUMENT (bad tag). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_set_separable(const char* tag, int separable);

/** Lets contents of memory that is awake take at most `bytes` of host memory, so that the next sleep copies
 * only what has changed; 0 for none. More than `gpu-run --retain` (GPU_SLEEP_RETAIN in the environment)
 * allows is never retained, nor more than the host has room for. What is retained beyond the limit is given
 * back in the background. Since version 4. Errors: none of its own. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_set_retained(uint64_t bytes);

/** Makes host memory ready, in the background, for what a sleep of level 1 would keep of the memory that is
 * allocated now, as `gpu-run --prepare` does once that has not changed for a while: the first sleep need not
 * wait for it. What is ready counts as retained (see gpu_sleep_set_retained()), and is given back like that.
 * Since version 5. Errors: none of its own. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_prepare(void);

/** Marks `bytes` from `pointer` on, a part of one allocation, as preserved at every level, even if the rest
 * of its range is dropped. Overlapping spans are merged. The mark ends with the allocation. Errors:
 * NOT_OWNED (not within one allocation), INVALID_ARGUMENT (zero bytes). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_preserve(void* pointer, size_t bytes);

/** Has every sleep leave the allocation at `pointer` on the GPU until it is freed (of memory that the program
 * maps itself, until it is unmapped), and with it all small allocations that share its range: for memory that
 * a library has registered, and reaches by more than its address. gpu-ps lists it as residual. A deep sleep
 * takes it all the same. Since version 9. Errors: NOT_OWNED (in no allocation), REFUSED (it sleeps). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_keep_on_gpu(const void* pointer);

/** Reports that the program has filled `tag` again after a drop.
 *  Errors: INVALID_ARGUMENT (bad tag), UNKNOWN_TAG. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_mark_refilled(const char* tag);

/** Names this process for gpu-ps, and for commands that take a name in place of a pid. Overrides the
 * environment variable GPU_SLEEP_NAME. At most 64 bytes of UTF-8, all of which a terminal can show. Digits
 * alone are not a name, because commands read them as a pid. "" removes the name. Errors: INVALID_ARGUMENT
 * (any other name, NULL).
 */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_set_name(const char* name);

/* ---- Taking part in sleeping and waking ------------------------------------------------------------------
 */

/** The argument of a callback. Valid during the call only. */
typedef struct gpu_sleep_event {
    size_t struct_size; /**< sizeof(gpu_sleep_event) of the agent; later versions are longer */
    int level;          /**< 1 or 2 before a sleep; 0 after a wake */
    size_t tag_count;   /**< tags that go to sleep, or that woke */
    const char* const* tags;
    size_t dropped_tag_count;        /**< of those, the ones whose contents are, or were, dropped */
    const char* const* dropped_tags; /**< after a wake these read as zero, but for preserved spans */
    /** Since version 6, so only where `struct_size` says that it is there: before a sleep whether it is to be
     * a deep one, after a wake whether it was. */
    int deep;
    /** Since version 10: of a callback by name what its caller has sent, "" if nothing; of others NULL. */
    const char* argument;
} gpu_sleep_event;

/** A callback. Before a sleep, a value other than 0 refuses it, and the sleep fails with REFUSED and no
 * change. After a wake, a value other than 0 is reported: the process stays awake and the tags count as not
 * refilled. When a sleep fails after its before-sleep callbacks ran, the after-wake callbacks registered with
 * those run, with no tags: nothing was dropped, and the program can continue. If a before-sleep callback is
 * late, they run after it has ended; the sleep does not wait for that. If the driver cannot undo a failed
 * sleep, the tags that stay asleep are reported to the callbacks when they wake. In a paused program they run
 * while its work waits: one that waits for other threads' work on the GPU is late, unless these are enlisted.
 *
 *  It runs on a thread of the agent's own that runs nothing else and is not cancelled, with no lock of the
 * agent held. An exception that leaves it ends the process. It may call every function of
 * this header except gpu_sleep_sleep(), gpu_sleep_sleep_in_files(), gpu_sleep_wake() and
 * gpu_sleep_wake_within(). Before a sleep all
 * memory that was awake is still there; after a wake all memory of the event is there again. Memory of other
 * sleeping tags is not: under `gpu-run`, calls that name it fail (CUDA_ERROR_SYSTEM_NOT_READY) instead of
 * waiting.
 */
typedef int (*gpu_sleep_callback)(const gpu_sleep_event* event, void* user);

/** Registers callbacks; either may be NULL. They run in the order of registration, each with `user`.
 *  `deadline_ms` bounds each call: a late one makes a sleep fail with TIMED_OUT and no change, and adds a
 * note to a wake; with 0 only the request's own time limit applies. `*id` (may be NULL) receives a number for
 *  gpu_sleep_remove_callback(). Errors: INVALID_ARGUMENT (both NULL). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_add_callback(gpu_sleep_callback before_sleep,
                                                      gpu_sleep_callback after_wake, void* user,
                                                      uint32_t deadline_ms, int* id);

/** Registers a callback by name, which others have run by gpu-sleep-http(1): `POST /reset_prefix_cache` that
 * of this name, `POST /collective_rpc` the one that its `method` names, and a sleep with `mode=abort` first
 * "abort". It runs as gpu_sleep_callback has it, also while memory sleeps, but not in the middle of a sleep
 * or a wake, and not in a deep sleep. Its event has no tags, and the `argument`, the caller's JSON of at most
 * 64 KiB. A value other than 0 is told to the caller as a failure, and changes nothing else. A `name` is made
 * as a tag is; of several callbacks by one name the last counts. `deadline_ms` and `id` are as for
 * gpu_sleep_add_callback(). Since version 10. Errors: INVALID_ARGUMENT (bad name, NULL). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_add_named_callback(const char* name, gpu_sleep_callback callback,
                                                            void* user, uint32_t deadline_ms, int* id);

/** Gives the caller of the callback by name that runs `json`, a JSON text of at most 65,536 bytes; the last
 * one counts. Call it in the callback, or on a thread that is enlisted for it. Since version 10. Errors:
 * INVALID_ARGUMENT (NULL, longer, or this thread works for no callback by name). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_reply(const char* json);

/** Removes callbacks. When it returns they are not running and will not run again, unless it is called from a
 *  callback. Errors: INVALID_ARGUMENT (no such id). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_remove_callback(int id);

/** Says why the callback that runs is going to refuse the sleep, or to fail after the wake: whoever asked for
 * it is told `why` instead of the callback's value. It counts if that is not 0, and the last one counts.
 * Characters that a terminal cannot show become '?', and what exceeds 1,000 bytes is left out. Call it in the
 * callback, or on a thread that is enlisted for it. Since version 7. Errors: INVALID_ARGUMENT (`why` is NULL,
 * or this thread works for no callback). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_explain(const char* why);

/** Lets the calling thread work for the callback that was given `event`, until gpu_sleep_discharge() or until
 * that callback returns, whichever comes first: its GPU work is not held back, and calls of this header are
 * as from the callback. A callback that has work done by other threads waits for them before it returns;
 * each of them calls this first, for otherwise it waits until the callbacks are done. In the thread of the
 * callback itself it changes nothing. Calls do not nest. Since version 2. Errors: INVALID_ARGUMENT (no
 * callback that was given `event` runs, or it has returned). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_enlist(const gpu_sleep_event* event);

/** Ends this thread's gpu_sleep_enlist(). It may come after the end of the callback, and a thread that ends
 *  need not call it. Since version 2. Errors: INVALID_ARGUMENT (not enlisted since the last call). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_discharge(void);

/** Holds sleeps back until the matching gpu_sleep_resume(): a requested sleep waits, within its time limit,
 * and then fails (TIMED_OUT) with no change. If a sleep is running, the call first waits for it. Use both
 * around the capture of a CUDA graph: the agent cannot see a capture on a non-blocking stream, and a sleep
 * would break it. Holds nest and belong to the process. Errors: none of its own. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_hold(void);

/** Ends a gpu_sleep_hold(). Errors: INVALID_ARGUMENT (none is open). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_resume(void);

/** From now on sleeps that others ask for are refused at once, until the matching gpu_sleep_uninhibit(),
 * unless they say `--ignore-inhibitors`. gpu_sleep_sleep() sleeps as before, and so does a sleep that is
 * under way. Calls nest and belong to the process. gpu-inhibit(1) does the same from outside. Since
 * version 5. Errors: none of its own. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_inhibit(void);

/** Ends a gpu_sleep_inhibit(). Since version 5. Errors: INVALID_ARGUMENT (none is open). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_uninhibit(void);

/** Added to the level of gpu_sleep_sleep(): a deep sleep. Since version 6. */
#define GPU_SLEEP_DEEP 0x100

/** Puts this process to sleep, as `gpu-sleep --level LEVEL --tags TAGS` does from outside. `level` is 1 or 2,
 * or 0 for a pause; `tags` is a list separated by commas, or NULL for all (an empty name is an UNKNOWN_TAG).
 * `timeout_ms` bounds all until memory is released, copying included; with 0, callbacks and GPU work have 30
 * seconds together, and copying takes as long as it takes. On return the memory is released, and no GPU work
 * may touch it until it is awake, by whichever library: unlike `gpu-sleep` without --force, this does not
 * refuse where use of the GPU cannot be seen. Work on memory that is awake goes on, as
 * gpu_sleep_set_separable() has it. Already asleep: OK. Errors: INVALID_ARGUMENT (another level),
 * UNKNOWN_TAG, REFUSED (by a callback, or called by one or for one), TIMED_OUT, CAPTURE_IN_PROGRESS,
 * OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY (for the agent's own fingerprints), IO (no random numbers for
 * their key), DRIVER, NO_DRIVER, CONTEXT_LOST; after each of them the memory is awake and unchanged.
 *
 *  Level 0 releases nothing: the GPU finishes its work, and whatever this process would submit waits until a
 * wake of any tags. The program has to run under `gpu-run` (DRIVER), and `tags` must be NULL
 * (INVALID_ARGUMENT, as from agents that know no pause). Callbacks are not called.
 *
 *  With `level | GPU_SLEEP_DEEP` the driver then takes the rest of the process from the GPUs, its contexts
 * among it, as `gpu-sleep --deep` has it. The program has to run under `gpu-run`, and `tags` must be NULL
 * (INVALID_ARGUMENT). The driver checkpoints no process that asks for it itself, so the agent starts a
 * program outside that does, for a moment; it is no child of this process. It has until `timeout_ms` are
 * over, or five seconds if those are more, to have the process locked. Until it wakes no thread may call the
 * driver in a way that the agent does not see. A deep sleep that is refused (DRIVER) has changed nothing. One
 * that fails at the driver's part (DRIVER) leaves the process asleep as without the flag, which
 * gpu_sleep_asleep_bytes() shows; CONTEXT_LOST there means that the driver has lost the process. Source: CUDA
 * Driver API, cuMemUnmap, cuMemRelease, cuCheckpointProcessLock, cuCheckpointProcessCheckpoint. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_sleep(int level, const char* tags, uint32_t timeout_ms);

/** As gpu_sleep_sleep() with `level` 1 or 2, but what it keeps of `file_tags`, a list as `tags` is (NULL: of
 * all), goes to files in `directory`, an absolute path, as `gpu-sleep --store TAG=file --dir DIRECTORY` has
 * it. They go when the memory wakes. What sleeps already stays where it is. Since version 8. Errors: those of
 * gpu_sleep_sleep(); INVALID_ARGUMENT (no absolute path), OUT_OF_DISK, IO (files cannot be written there). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_sleep_in_files(int level, const char* tags, const char* file_tags,
                                                        const char* directory, uint32_t timeout_ms);

/** Copies `bytes` of kept contents, of the memory at `pointer`, a part of one allocation, to host memory at
 * `to`: while it sleeps, and after it woke those of its last sleep for as long as they are retained (see
 * gpu_sleep_set_retained()). Small allocations can share a range, and what is retained of it may be of one
 * that was freed: of those it reads only what sleeps. Since version 8. Errors: NOT_OWNED (not within one
 * allocation), INVALID_ARGUMENT (zero bytes, `to` is NULL), REFUSED (not all of it is kept, it is in files,
 * or it sleeps in the host memory that it runs from; awake memory of a shared range), IO (the kernel does not
 * let the process read its own memory). Source: proc(5), /proc/self/mem. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_read_kept(const void* pointer, size_t bytes, void* to);

/** Wakes this process, or some of its tags. `wait_ms` is how long to try again while GPU memory is short,
 * during which other sleeps and wakes go past it; behind one that is under way it waits as long as that
 * takes. `tags` is as for gpu_sleep_sleep(); for an order, call it once for each tag. From a deep sleep the
 * driver brings the process back first; calls of this header that need the driver wait for that, as touches
 * do. Already awake: OK. Errors: UNKNOWN_TAG, REFUSED (called by a callback or for one), TIMED_OUT (work that
 * a checked gate had let in), OUT_OF_DEVICE_MEMORY, OUT_OF_HOST_MEMORY, DRIVER, NO_DRIVER, CONTEXT_LOST;
 * after each of them what was asleep is still asleep, with its contents. DAMAGED, IO, INTERNAL: tags whose
 * contents are not what they were, or whose file cannot or may not be read, stay asleep, and all the others
 * are awake. Source: CUDA Driver API, cuMemCreate, cuMemMap, cuMemSetAccess. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_wake(const char* tags, uint32_t wait_ms);

/** As gpu_sleep_wake(), which it is with 0, but within `timeout_ms`, as `gpu-wake --timeout` has it: the
 * limit covers all until the memory is back, not counting `wait_ms`; the after-wake callbacks together then
 * have as long again (with 0, 30 seconds). A callback that is late runs on, and the memory is awake. Since
 * version 9. Errors: those of gpu_sleep_wake(), TIMED_OUT. */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_wake_within(const char* tags, uint32_t wait_ms, uint32_t timeout_ms);

/** How much of this process is asleep, in bytes of GPU memory released. Never fails. */
GPU_SLEEP_API size_t gpu_sleep_asleep_bytes(void);

typedef enum gpu_sleep_state {
    GPU_SLEEP_AWAKE = 0,
    GPU_SLEEP_PARTLY_ASLEEP = 1, /**< some ranges of it sleep */
    GPU_SLEEP_ASLEEP = 2,
    GPU_SLEEP_DAMAGED = 3 /**< asleep, and kept contents are not what they were */
} gpu_sleep_state;

/** The state of one tag on one device. Later versions are longer. */
typedef struct gpu_sleep_tag_state {
    char tag[72]; /**< ended by NUL */
    int device;
    gpu_sleep_state state;
    gpu_sleep_retention retention;
    int needs_refill;        /**< awake, but dropped before and not yet reported as filled again */
    uint64_t bytes;          /**< all of its memory, asleep or awake, as the GPU allots it */
    uint64_t resident_bytes; /**< of those, in GPU memory */
    uint64_t kept_bytes;     /**< contents in host memory or files */
    uint64_t dropped_bytes;  /**< asleep without contents */
} gpu_sleep_tag_state;

/** Reads the states of all tags that have memory, one for each tag and device, into `states`, an array of
 * `capacity` elements of `size` bytes each, which is sizeof(gpu_sleep_tag_state) of the caller. `*count`
 * receives how many there are: if that is more than `capacity`, the others are not written; with `capacity`
 * 0, `states` may be NULL. They are of one moment. While a sleep or a wake moves contents, the call waits for
 * at most 20 ms, and then reads the states before it. It starts no agent and wakes nothing, and callbacks may
 * call it. Since version 11. Errors: INVALID_ARGUMENT (`count` is NULL; `states` is NULL with a capacity;
 * `size` is smaller than in version 11). */
GPU_SLEEP_API gpu_sleep_status gpu_sleep_tag_states(gpu_sleep_tag_state* states, size_t size, size_t capacity,
                                                    size_t* count);

/* ---- PyTorch ---------------------------------------------------------------------------------------------
 */

/** The two functions that torch.cuda.memory.CUDAPluggableAllocator takes. They allocate under the innermost
 * tag scope of the calling thread. `gpu_sleep_torch_malloc` returns NULL for every failure and every size
 * below 1, and PyTorch then raises its own error; what `gpu_sleep_torch_free` cannot free it logs. `stream`
 * is a CUstream, and not used: freeing waits for the work of the device. Source: PyTorch,
 * CUDAPluggableAllocator. */
GPU_SLEEP_API void* gpu_sleep_torch_malloc(ssize_t size, int device, void* stream);
GPU_SLEEP_API void gpu_sleep_torch_free(void* pointer, ssize_t size, int device, void* stream);

#ifdef __cplusplus
}
#endif

#endif
