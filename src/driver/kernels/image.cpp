// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The compiled kernels, carried inside the library.

#include "driver/kernels/image.hpp"

asm(R"(
    .section .rodata
    .balign 16
    .hidden gpu_sleep_kernel_image
    .globl gpu_sleep_kernel_image
gpu_sleep_kernel_image:
    .incbin ")" GPU_SLEEP_FATBIN R"("
    .byte 0
    .previous
)");

extern "C" const unsigned char gpu_sleep_kernel_image[];

namespace gpu_sleep::driver {

const void* kernel_image() noexcept {
    return gpu_sleep_kernel_image;
}

} // namespace gpu_sleep::driver
