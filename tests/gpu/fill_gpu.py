# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Takes all memory that is free on the GPUs, says how much on standard output, and holds it until its input ends."""

import ctypes
import sys

from gpu_commands import Driver

SPARE = 64 << 20 # what the driver may want for itself
LEAST = 2 << 20


def take(device):
    """Returns how many bytes of `device` it has taken."""
    driver = Driver(device)
    free, _ = driver.free_and_total()
    taken, piece = 0, max(free - SPARE, LEAST)
    while piece >= LEAST and taken + piece <= free: # memory that is free may lie in pieces
        try:
            address = driver.allocate(piece)
        except RuntimeError:
            piece //= 2
            continue
        driver.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0xA5), ctypes.c_size_t(piece))
        taken += piece
    driver.call("cuCtxSynchronize")
    return taken


def main():
    count = ctypes.c_int()
    Driver().call("cuDeviceGetCount", ctypes.byref(count))
    print(sum(map(take, range(count.value))), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())
