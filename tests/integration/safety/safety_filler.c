/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright the gpu-sleep authors. */
/* A library that uses the driver as soon as it is loaded, while the loader holds its lock. */

#include <cuda.h>

__attribute__((constructor)) static void fill(void) {
    cuMemsetD8(0, 0, 1); /* refused, but only behind the gate */
}
