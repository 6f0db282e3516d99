#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""PyTorch's cache and a gate that checks, on a real GPU, with a program that knows nothing of sleeping.

The program reserves much memory and frees most of it; a sleep must keep what is alive and not what PyTorch caches. Then
it loads weights and a cache under two tags, and with the cache asleep and a gate that checks it goes on training, and
loads its weights anew in place, while a captured graph over the cache waits until the cache is awake.

Usage: torch_cache.py --build DIR [--gib 60] [--json FILE]. Exit status: 0 when all is as it must be.
"""

import argparse
import ctypes
import functools
import os
import subprocess
import sys
import threading

import gpu_commands

GIB = 1 << 30
ALIVE = 8 / 60 # of what is reserved
MOST_KEPT = 9 / 60


def tell(text):
    print(text, flush=True)


def program(gib):
    """Runs under gpu-run; obeys lines of standard input."""
    import torch

    pieces = int(gib * 4)
    held = [torch.full((GIB // 16,), float(i), device="cuda") for i in range(pieces)] # a quarter GiB each
    alive = held[:: pieces // int(pieces * ALIVE)][: int(pieces * ALIVE)]
    expected = [float(tensor[0]) for tensor in alive]
    del held
    torch.cuda.synchronize()
    tell(f"reserved {torch.cuda.memory_reserved()} {sum(t.numel() * 4 for t in alive)}")
    sys.stdin.readline()
    tell("alive " + str(all(bool((t == e).all()) for t, e in zip(alive, expected))))
    del alive
    torch.cuda.empty_cache()

    agent = ctypes.CDLL(None)
    agent.gpu_sleep_push_tag(b"weights")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 2048, device="cuda")

    def train():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return float(loss)

    train()
    agent.gpu_sleep_pop_tag()
    agent.gpu_sleep_push_tag(b"kv_cache")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        cache = torch.ones(GIB // 4, device="cuda")
    agent.gpu_sleep_pop_tag()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cache.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        cache.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    reload = [p.detach().cpu() + 1 for p in model.parameters()]
    tell("tags")
    sys.stdin.readline() # the cache sleeps now
    train()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), reload):
            parameter.copy_(value)
    torch.cuda.synchronize()
    tell("trained")
    replayed = threading.Event()

    def replay():
        graph.replay()
        torch.cuda.synchronize()
        replayed.set()

    threading.Thread(target=replay).start()
    tell("waits " + str(not replayed.wait(1.0)))
    sys.stdin.readline() # the cache is awake again
    tell("replayed " + str(replayed.wait(20.0)) + " " + str(bool((cache == 4).all())))
    same = all(bool((p.detach().cpu() == v).all()) for p, v in zip(model.parameters(), reload))
    tell("weights " + str(same))


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=60, help="to reserve")
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        return program(arguments.gib)

    command = functools.partial(gpu_commands.on_process, arguments.build)
    child = subprocess.Popen([os.path.join(arguments.build, "bin", "gpu-run"), "--", sys.executable, os.path.abspath(__file__),
                              "--program", "--gib", str(arguments.gib)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = str(child.pid)

    def heard():
        line = child.stdout.readline().split()
        if not line:
            raise SystemExit("the program ended")
        print(" ".join(line), flush=True)
        return line

    def go_on():
        child.stdin.write("\n")
        child.stdin.flush()

    _, reserved, alive = heard()
    slept, seconds = command("gpu-sleep", pid)
    kept = sum(device["kept_bytes" if "kept_bytes" in device else "moved_bytes"]
               for device in slept["report"]["devices"])
    command("gpu-wake", pid)
    go_on()
    checks = {"alive": heard()[1] == "True", "kept": kept <= MOST_KEPT * arguments.gib * GIB}
    heard()
    command("gpu-sleep", pid, "--tags", "kv_cache", "--gate", "checked")
    go_on()
    checks["trained in part asleep"] = heard() == ["trained"]
    checks["the graph over the cache waits"] = heard()[1] == "True"
    command("gpu-wake", pid)
    go_on()
    checks["the graph replayed"] = heard()[1:] == ["True", "True"]
    checks["the weights were loaded"] = heard()[1] == "True"
    child.stdin.close()
    checks["the program ended well"] = child.wait() == 0
    figures = {"reserved_bytes": int(reserved), "alive_bytes": int(alive), "kept_bytes": kept,
               "sleep_seconds": seconds}
    return gpu_commands.finish(arguments, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
