# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""CuPy: its memory pool, cuBLAS, cuFFT, sorting, elementwise kernels, and a kernel compiled at run time."""

import cupy
import program

MIX = r"""
extern "C" __global__ void mix(unsigned* words, unsigned count, unsigned salt) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] = words[i] * 1664525u + 1013904223u + (salt ^ i);
}
"""


def main():
    arguments = program.options(__doc__, steps=40)
    side = max(256, int(4096 * arguments.scale ** 0.5) // 256 * 256)
    kernel = cupy.RawKernel(MIX, "mix")
    words = cupy.arange(side * side * 4, dtype=cupy.uint32)
    matrix = cupy.zeros((side, side), dtype=cupy.float32)
    spectrum = cupy.zeros((side, side), dtype=cupy.complex64)
    digest = program.Digest()
    for step in program.paced(arguments):
        kernel(((words.size + 255) // 256,), (256,), (words, cupy.uint32(words.size), cupy.uint32(step)))
        fresh = (words[:side * side] >> 8).astype(cupy.float32).reshape(side, side) / (1 << 24)
        matrix = 0.5 * cupy.tanh(matrix @ fresh / side) + fresh
        spectrum = 0.5 * spectrum + cupy.fft.fft2(fresh) / side
        rows = cupy.sort(matrix[step % side])
        cupy.cuda.get_current_stream().synchronize() # the next stream does not wait for this one
        with cupy.cuda.Stream(non_blocking=True) as stream:
            copy = words.copy()
            stream.synchronize()
        words = copy
        digest.add(cupy.asnumpy(rows))
    for array in (words, matrix, spectrum):
        digest.add(cupy.asnumpy(array))
    digest.finish()


main()
