# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Takes all memory that is free on the GPUs, says how much on standard output, and holds it until its input ends.

Usage: fill_gpu.py [SPARE]. SPARE: bytes of each that it leaves.
"""

import ctypes
import sys

from gpu_commands import Driver

SPARE = 64 << 20 # what the driver may want for itself
LEAST = 2 << 20


def take(device, spare):
    """Returns how many bytes of `device` it has taken."""
    driver = Driver(device)
    wanted = piece = driver.free_and_total()[0] - spare
    taken = 0
    while piece >= LEAST: # memory that is free may lie in pieces
        try:
            address = driver.allocate(piece)
        except RuntimeError:
            piece //= 2
            continue
        driver.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0xA5), ctypes.c_size_t(piece))
        taken += piece
        piece = min(piece, wanted - taken)
    driver.call("cuCtxSynchronize")
    return taken


def main():
    count = ctypes.c_int()
    Driver().call("cuDeviceGetCount", ctypes.byref(count))
    spare = int(sys.argv[1]) if len(sys.argv) > 1 else SPARE
    print(sum(take(device, spare) for device in range(count.value)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())
