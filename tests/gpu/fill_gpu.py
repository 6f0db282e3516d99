# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Takes all memory that is free on the GPUs, says how much on standard output, and holds it until its input ends."""

import ctypes
import sys

SPARE = 64 << 20 # what the driver may want for itself
LEAST = 2 << 20


def check(status, call):
    if status != 0:
        sys.exit(f"{call} gave {status}")


def take(cuda, device):
    """Returns how many bytes of `device` it has taken."""
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    taken, piece = 0, max(free.value - SPARE, LEAST)
    address = ctypes.c_uint64()
    while piece >= LEAST and taken + piece <= free.value: # memory that is free may lie in pieces
        if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(piece)) != 0:
            piece //= 2
            continue
        check(cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(0xA5), ctypes.c_size_t(piece)), "cuMemsetD8")
        taken += piece
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    return taken


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0), "cuInit")
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    print(sum(take(cuda, device) for device in range(count.value)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())
