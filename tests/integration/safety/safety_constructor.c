/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A library that is linked to libcuda, initialises it in its constructor, where the loader's lock is held,
 * and allocates: a moment late, so that another thread has come as far as it can without that lock. */

#include <cuda.h>
#include <unistd.h>

__attribute__((constructor)) static void start_cuda(void) {
    usleep(300000);
    cuInit(0);
    CUdeviceptr memory;
    cuMemAlloc(&memory, 1 << 20);
}
