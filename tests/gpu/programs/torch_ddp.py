# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Distributed training: processes that have a GPU each, two by default, and all-reduce by NCCL. Says "quiet" when no
collective is under way. With --gpus 1 all are on one GPU, and all-reduce by Gloo.

Every few steps all ranks finish their work, meet on the CPU, and rest for a while; rank 0 then writes "quiet N" to
standard error. What is done to the ranks meanwhile is no business of theirs.
"""

import sys
import time

import program
from torch_common import GIB, add_tensors, finish_ranks, join_ranks, learn, mlp, paced_ranks, run_ranks

import torch
import torch.distributed as dist

WIDTH = 2048
QUIET_EVERY = 4
QUIET_SECONDS = 0.5


def rest(arguments, rank, gloo, number):
    torch.cuda.synchronize()
    dist.barrier(group=gloo)
    if rank == 0:
        program.heartbeat(f"quiet {number}")
    if arguments.seconds > 0:
        time.sleep(QUIET_SECONDS)


def train(rank, arguments):
    device = rank % arguments.gpus
    ranks = arguments.ranks
    gloo = join_ranks(rank, ranks, device, "nccl" if arguments.gpus == ranks else "gloo") # NCCL takes one process on a GPU
    layers = max(1, round(arguments.gib * arguments.scale * GIB / (WIDTH * WIDTH * 20)))
    model = torch.nn.parallel.DistributedDataParallel(mlp(WIDTH, layers), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator(device="cuda").manual_seed(10 + rank)
    digest = program.Digest()
    for step in paced_ranks(arguments, gloo):
        inputs = torch.randn(256, WIDTH, device="cuda", generator=generator)
        loss = learn(model, optimizer, inputs)
        dist.all_reduce(loss)
        digest.add(loss.cpu().numpy())
        if step % QUIET_EVERY == QUIET_EVERY - 1:
            rest(arguments, rank, gloo, step // QUIET_EVERY)
    add_tensors(digest, model.parameters())
    finish_ranks(digest, rank, ranks, gloo)


def main():
    arguments = program.options(__doc__, steps=40, extra=[("--gib", 2.0), ("--ranks", 2), ("--gpus", 2)])
    run_ranks(train, arguments)


if __name__ == "__main__":
    sys.exit(main())
