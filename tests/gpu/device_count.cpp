// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prints how many devices the driver finds: what tests on the GPU are skipped by.

#include <cuda.h>

#include <cstdio>

int main() {
    int count = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
    std::printf("%d\n", count);
    return 0;
}
