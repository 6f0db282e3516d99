# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Processes, each on a GPU of its own, that exchange by NCCL without a rest: all-reduce, a pipeline's sends and receives,
and all-to-all, each computed upon what the one before has brought.

--only all_reduce, pipeline or all_to_all leaves out the other two.
--ranks 1 is for one GPU: NCCL and what watches over its work are there, and nobody to exchange with.
"""

import sys

import program
from torch_common import GIB, add_tensors, finish_ranks, join_ranks, paced_ranks, run_ranks

import torch
import torch.distributed as dist

ROUNDS = 20 # in a step


def pass_on(values, rank, ranks):
    """A stage of a pipeline: from the rank before, and on to the next."""
    if ranks == 1:
        return
    if rank > 0:
        dist.recv(values, rank - 1)
    values.mul_(0.75).add_(rank + 1)
    dist.send(values, (rank + 1) % ranks)
    if rank == 0:
        dist.recv(values, ranks - 1)


def exchange(rank, arguments):
    ranks = arguments.ranks
    gloo = join_ranks(rank, ranks, rank)
    count = max(1 << 20, round(arguments.gib * arguments.scale * GIB / 4 / 2)) // ranks * ranks
    generator = torch.Generator(device="cuda").manual_seed(20 + rank)
    values = torch.randn(count, device="cuda", generator=generator)
    others = torch.empty_like(values)
    digest = program.Digest()
    does = {kind: arguments.only in ("", kind) for kind in ("all_reduce", "pipeline", "all_to_all")}
    for _ in paced_ranks(arguments, gloo):
        for _ in range(ROUNDS):
            if does["all_reduce"]:
                dist.all_reduce(values[:1 << 20])
                values[:1 << 20].mul_(1 / ranks)
            values.add_(rank + 0.5).remainder_(4.0) # each word changes, and none becomes zero for good
            if does["pipeline"]:
                pass_on(values[:1 << 18], rank, ranks)
            if does["all_to_all"]:
                dist.all_to_all_single(others, values)
                values, others = others, values
        digest.add(values[::4099].cpu().numpy())
    add_tensors(digest, [values])
    finish_ranks(digest, rank, ranks, gloo)


def main():
    arguments = program.options(__doc__, steps=40,
                                extra=[("--gib", 1.0), ("--ranks", 2), ("--only", "")])
    run_ranks(exchange, arguments)


if __name__ == "__main__":
    sys.exit(main())
