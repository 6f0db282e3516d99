# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Processes, each on a GPU of its own, whose buffers NCCL has registered, so that a rank reads the other's memory in place:
a pool registered by hand, and what a captured graph registers by itself. The graphs are replayed, and a plain all-reduce
runs between them.
"""

import os
import sys

import program
from torch_common import GIB, add_tensors, finish_ranks, join_ranks, paced_ranks, run_ranks

import torch
import torch.distributed as dist

REPLAYS = 20 # of each graph in a step


def captured(values, ranks):
    """A graph of one all-reduce that keeps the sum within bounds."""
    dist.all_reduce(values) # NCCL connects outside of the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
        values.mul_(1 / ranks).add_(0.5).remainder_(4.0)
    return graph


def exchange(rank, arguments):
    ranks = arguments.ranks
    gloo = join_ranks(rank, ranks, rank)
    count = max(1 << 20, round(arguments.gib * arguments.scale * GIB / 4 / 2))
    generator = torch.Generator(device="cuda").manual_seed(20 + rank)
    nccl = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    pool = torch.cuda.MemPool(nccl.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        by_hand = torch.randn(count, device="cuda", generator=generator)
    nccl.register_mem_pool(pool)
    by_graph = torch.randn(count, device="cuda", generator=generator)
    plain = torch.randn(1 << 20, device="cuda", generator=generator)
    graphs = [captured(values, ranks) for values in (by_hand, by_graph)]
    digest = program.Digest()
    for _ in paced_ranks(arguments, gloo):
        for _ in range(REPLAYS):
            for graph in graphs:
                graph.replay()
            dist.all_reduce(plain)
            plain.mul_(1 / ranks).add_(rank + 0.5).remainder_(4.0)
        digest.add(by_hand[::4099].cpu().numpy())
        digest.add(by_graph[::4099].cpu().numpy())
    add_tensors(digest, [by_hand, by_graph, plain])
    for graph in graphs: # before the communicator that they use
        graph.reset()
    nccl.deregister_mem_pool(pool)
    finish_ranks(digest, rank, ranks, gloo)


def main():
    arguments = program.options(__doc__, steps=40, extra=[("--gib", 1.0), ("--ranks", 2)])
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    run_ranks(exchange, arguments)


if __name__ == "__main__":
    sys.exit(main())
