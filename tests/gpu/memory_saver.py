#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The stand-in for torch_memory_saver with PyTorch on a real GPU, in both hook modes: what is paused leaves the GPU and comes
back bit by bit at its addresses, and a captured graph over it still works.

Usage: memory_saver.py --build DIR [--gib 4]. Exit status: 0 when all is as it must be.
"""

import argparse
import pathlib
import subprocess
import sys

from gpu_commands import installed_packages

GIB = 1 << 30


def program(mode, gib):
    """Runs with the stand-in on Python's path."""
    import torch
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = mode
    count = gib * GIB // 4
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.randint(1 << 30, (count,), dtype=torch.int32, device="cuda")
    with saver.region(tag="kv_cache"):
        cache = torch.ones(count, dtype=torch.int32, device="cuda")
    expected, addresses = weights.cpu(), [weights.data_ptr(), cache.data_ptr()]
    total = torch.zeros((), dtype=torch.int64, device="cuda")

    def work():
        total.copy_((weights[:1 << 20].long() + cache[:1 << 20]).sum())

    work()  # what it loads is loaded
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True) if mode == "preload" else torch.cuda.graph(graph):
        work()

    def replayed():
        graph.replay()
        return int(total)

    before = replayed()
    for _ in range(2):
        free = torch.cuda.mem_get_info()[0]
        saver.pause("kv_cache")
        saver.pause()
        freed = torch.cuda.mem_get_info()[0] - free
        assert freed >= 2 * count * 4 - GIB // 8, freed
        assert torch.equal(saver.get_cpu_backup(weights), expected)
        saver.resume("weights")
        saver.resume()
        assert torch.equal(weights.cpu(), expected) and not cache.any()
        cache.fill_(1)
        assert replayed() == before
    assert addresses == [weights.data_ptr(), cache.data_ptr()]
    print(f"{mode}: {2 * gib} GiB paused and resumed twice")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--program", choices=("preload", "torch"))
    options = parser.parse_args()
    if options.program:
        program(options.program, options.gib)
        return
    with installed_packages(options.build) as (environment, libraries):
        for mode, library in libraries.items():
            preloads = {"LD_PRELOAD": str(library)} if mode == "preload" else {}
            subprocess.run([sys.executable, __file__, "--build", options.build, "--gib", str(options.gib), "--program", mode],
                           env={**environment, **preloads}, check=True)


if __name__ == "__main__":
    main()
