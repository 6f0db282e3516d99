/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A program that is built with a sanitizer: it allocates, says "ready", and ends when it is sent a line. */

#include <cuda.h>
#include <stdio.h>

int main(void) {
    CUcontext context = NULL;
    CUdeviceptr address = 0;
    char line[64];
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (cuMemAlloc(&address, (size_t)4 << 20) || cuMemsetD8(address, 0x5A, (size_t)4 << 20)) return 2;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 3;
    if (cuMemcpyDtoH(line, address, sizeof line)) return 4;
    return line[0] == 0x5A ? 0 : 5;
}
