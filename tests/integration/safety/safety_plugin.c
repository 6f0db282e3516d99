/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A library that is linked to libcuda and allocates, for programs that load it at run time. */

#include <cuda.h>
#include <stddef.h>

#define EXPORTED __attribute__((visibility("default")))

/* Allocates `bytes` in the first device's primary context; returns the first status that is no success. */
EXPORTED int plugin_allocate(CUdeviceptr* address, size_t bytes) {
    CUcontext context = NULL;
    CUresult status = cuInit(0);
    if (status == CUDA_SUCCESS) status = cuDevicePrimaryCtxRetain(&context, 0);
    if (status == CUDA_SUCCESS) status = cuCtxSetCurrent(context);
    if (status == CUDA_SUCCESS) status = cuMemAlloc(address, bytes);
    return status;
}

EXPORTED int plugin_touch(CUdeviceptr address, size_t bytes) {
    return cuMemsetD8(address, 0x5A, bytes);
}
