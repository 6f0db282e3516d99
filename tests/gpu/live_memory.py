#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Moves the weights of a program to host memory and back while it works, on a real GPU: how long that takes, for how long
the program's work waits, how fast it is from there, and whether each bit of each result is right.

The program works under gpu-run: it replays a captured graph of products with all its weights, in which a counter among
the weights is increased, and multiplies eagerly besides. It compares each result with its first.

Usage: live_memory.py --build DIR [--gib 4] [--pause SECONDS] [--json FILE]. Exit status 0 when each bit is right, so much
GPU memory was freed, and no piece held work back for longer than SECONDS.
"""

import os
import pathlib
import sys
import threading
import time

import gpu_commands

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "agent/python"))
import gpu_sleep  # noqa: E402

GIB = 1 << 30
SIDE = 8192  # of a weight: 128 MiB of 2 bytes each
ROWS = 16


class Work:
    """Products with all weights, and what they ought to be."""

    def __init__(self, torch, gib):
        self._torch = torch
        torch.manual_seed(7)
        count = max(2, round(gib * GIB / (2 * SIDE * SIDE)))
        with gpu_sleep.tag("weights"):
            self.weights = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
            self.counter = torch.zeros(32 << 20, dtype=torch.int64, device="cuda")
        self.bytes = sum(weight.numel() * 2 for weight in self.weights) + self.counter.numel() * 8
        self._input = torch.randn(ROWS, SIDE, dtype=torch.bfloat16, device="cuda")
        self._output = torch.empty(count, ROWS, SIDE, dtype=torch.bfloat16, device="cuda")
        self._eager = self._input @ self.weights[0]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self._multiply()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._multiply()
        self.counter.zero_()
        self.count = 0
        self._graph.replay()
        self.count += 1
        torch.cuda.synchronize()
        self._expected = self._bits(self._output).clone()
        self._digests = [self._digest(weight) for weight in self.weights]
        self.wrong = 0

    def _bits(self, tensor):
        return tensor.view(self._torch.int16)

    def _digest(self, tensor):
        return int(self._bits(tensor).view(self._torch.int32).sum(dtype=self._torch.int64))

    def _multiply(self):
        for weight, output in zip(self.weights, self._output):
            self._torch.mm(self._input, weight, out=output)
        self.counter[:1].add_(1)

    def step(self):
        """One round, checked. Returns its seconds."""
        start = time.perf_counter()
        self._output.zero_()
        self._graph.replay()
        self.count += 1
        eager = self._input @ self.weights[0]
        is_right = (self._torch.equal(self._bits(self._output), self._expected)
                    and self._torch.equal(self._bits(eager), self._bits(self._eager)))
        self.wrong += not is_right
        return time.perf_counter() - start

    def is_whole(self):
        return (self.wrong == 0 and int(self.counter[0]) == self.count and int(self.counter[1:].count_nonzero()) == 0
                and [self._digest(weight) for weight in self.weights] == self._digests)


def speed_of(work, seconds):
    """Rounds in a second."""
    start = time.perf_counter()
    rounds = 0
    while time.perf_counter() - start < seconds:
        work.step()
        rounds += 1
    return rounds / (time.perf_counter() - start)


def while_it_works(work, build, command, *words):
    """Runs a command for this process. Returns its report, its seconds, and the longest round meanwhile."""
    found = []

    def run():
        found.append(gpu_commands.run(build, command, str(os.getpid()), *words))

    thread = threading.Thread(target=run)
    thread.start()
    longest = 0.0
    while thread.is_alive():
        longest = max(longest, work.step())
    thread.join()
    done, answer, seconds = found[0]
    if done.returncode != 0:
        raise SystemExit(f"{command} {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return answer["processes"][0]["report"], seconds, longest


def bytes_from_host(report):
    return sum(tag["host_backed_bytes"] for tag in report["tags"])


def program(options):
    """Runs under gpu-run."""
    import torch

    work = Work(torch, options.gib)
    figures = {"gpu": torch.cuda.get_device_name(0), "bytes": work.bytes, "rounds_a_second": {}}
    speeds = figures["rounds_a_second"]
    speeds["on the GPU"] = speed_of(work, options.seconds)
    checks = {"right at first": work.is_whole()}  # which takes what memory the check needs, too
    free = torch.cuda.mem_get_info()[0]
    for command, words, name in [("gpu-sleep", ["--live", "--tags", "weights"], "out"), ("gpu-wake", [], "back")]:
        report, seconds, longest = while_it_works(work, options.build, command, *words)
        figures[name] = {"seconds": seconds, "longest_pause": report["longest_pause_seconds"], "longest_round": longest,
                         "from_host": bytes_from_host(report), "notes": report["notes"],
                         "steps": [device.get("steps") for device in report["devices"]]}
        freed = torch.cuda.mem_get_info()[0] - free
        if name == "out":
            figures["freed"] = freed
            checks["freed"] = freed >= 0.99 * work.bytes and bytes_from_host(report) >= work.bytes
        else:
            checks["all came back"] = abs(freed) < 0.01 * work.bytes and bytes_from_host(report) == 0
        checks[f"right after the move {name}"] = work.is_whole()
        checks[f"short pauses of the move {name}"] = report["longest_pause_seconds"] <= options.pause
        speeds[f"after the move {name}"] = speed_of(work, options.seconds)
        checks[f"right while it worked after the move {name}"] = work.is_whole()
    return gpu_commands.finish(options, figures, checks)


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=4, help="of weights")
    parser.add_argument("--seconds", type=float, default=2, help="for which the speed is measured")
    parser.add_argument("--pause", type=float, default=0.3,
                        help="seconds that a piece may hold work back, a round under way included")
    return gpu_commands.under_gpu_run(parser, program)


if __name__ == "__main__":
    sys.exit(main())
