# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""One process that drives both GPUs with NCCL: two threads, each with its own GPU, meet in all-reduces.

A collective that one thread has submitted does not end before the other has submitted its part.
"""

import sys
import threading

import program
from torch_common import GIB, add_tensors, make_deterministic

import torch
import torch.cuda.nccl as nccl

GPUS = 2


def main():
    arguments = program.options(__doc__, steps=60, extra=[("--gib", 1.0)])
    make_deterministic()
    count = max(1 << 20, round(arguments.gib * arguments.scale * GIB / 4 / 3))
    generators = [torch.Generator(device=f"cuda:{gpu}").manual_seed(gpu) for gpu in range(GPUS)]
    values = [torch.randn(count, device=f"cuda:{gpu}", generator=generators[gpu]) for gpu in range(GPUS)]
    digest = program.Digest()
    lock = threading.Barrier(GPUS)

    def work(gpu):
        with torch.cuda.device(gpu):
            for _ in range(4):
                values[gpu].mul_(0.999).add_(0.001 * gpu)
            lock.wait()

    for _ in program.paced(arguments):
        threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(GPUS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        nccl.all_reduce(values)
        for value in values:
            value.mul_(0.5)
        for value in values:
            digest.add(value[::4099].cpu().numpy())
    add_tensors(digest, values)
    digest.finish()


if __name__ == "__main__":
    sys.exit(main())
