# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Triton kernels, compiled with a cold cache, over tensors of PyTorch."""

import os
import tempfile

CACHE = tempfile.TemporaryDirectory(prefix="gpu-sleep-triton-")
os.environ["TRITON_CACHE_DIR"] = CACHE.name

import program # noqa: E402
from torch_common import GIB, add_tensors, make_deterministic # noqa: E402

import torch # noqa: E402
import triton # noqa: E402
import triton.language as tl # noqa: E402


@triton.jit
def mix(words, count, salt, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(words + place, mask=inside, other=0)
    tl.store(words + place, value * 1664525 + 1013904223 + (place.to(tl.int32) ^ salt), mask=inside)


@triton.jit
def row_sums(words, sums, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for begin in range(0, columns, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        total += tl.load(words + row * columns + place, mask=place < columns, other=0)
    tl.store(sums + row, tl.sum(total, 0))


def main():
    arguments = program.options(__doc__, steps=60, extra=[("--gib", 1.5)])
    make_deterministic()
    columns = 1 << 16
    rows = max(1, int(arguments.gib * arguments.scale * GIB / 4 / columns))
    words = torch.arange(rows * columns, device="cuda", dtype=torch.int64).to(torch.int32)
    sums = torch.zeros(rows, device="cuda", dtype=torch.int32)
    digest = program.Digest()
    blocks = (512, 1024, 2048) # each is compiled when its turn comes
    for step in program.paced(arguments):
        block = blocks[step * len(blocks) // arguments.steps]
        mix[(triton.cdiv(words.numel(), block),)](words, words.numel(), step, BLOCK=block)
        row_sums[(rows,)](words, sums, columns, BLOCK=block)
        digest.add(sums.cpu().numpy())
    add_tensors(digest, [words])
    digest.finish()


main()
