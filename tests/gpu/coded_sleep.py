#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""How fast contents sleep and wake that the GPU codes, beside the same with `--codec raw` in the same run, and whether each
bit is right: normally distributed bf16 weights, a model's layers, AdamW's state, and random bytes; at rest, with all changed,
with nothing changed, right after a neighbour released 40 GiB, and beside one that computes all the time.

Usage: coded_sleep.py --build DIR [--gib 14.96] [--kinds LIST] [--release 40] [--busy] [--rounds 3] [--json FILE]. Exit
status 0 when each bit is right.
"""

import argparse
import os
import subprocess
import sys
import threading
import time

import gpu_commands

GIB = 1 << 30
PIECE = 256 << 20
KINDS = ("bf16", "layers", "adamw", "random")


def make(torch, kind, number):
    generator = torch.Generator("cuda").manual_seed(number)
    if kind == "random":
        return torch.randint(0, 256, (PIECE,), dtype=torch.uint8, device="cuda", generator=generator)
    if kind == "bf16":
        return torch.empty(PIECE // 2, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator)
    if kind == "layers":
        return layers(torch, number, generator)
    moment = torch.empty(PIECE // 4, device="cuda").normal_(0, 1e-3, generator=generator)
    return (moment * torch.rand(PIECE // 4, device="cuda", generator=generator)) ** (1 if number % 2 else 2)


def layers(torch, number, generator):
    """An embedding, whose rows differ in scale, or matrices of a layer, each with its scale and a norm beside it."""
    values = torch.empty(PIECE // 2 // 4096, 4096, device="cuda").normal_(0, 1, generator=generator)
    if number % 8 == 0:
        return values.mul_(torch.empty(len(values), 1, device="cuda").log_normal_(-4, 0.7, generator=generator)).bfloat16()
    scales = torch.empty(8, device="cuda").log_normal_(-4 - 0.05 * number, 0.5, generator=generator)
    values.mul_(scales.repeat_interleave(len(values) // 8)[:, None])
    values[:: len(values) // 8] = 1 + values[:: len(values) // 8]
    return values.bfloat16()


def change(torch, pieces):
    """Changes every block, and leaves the distribution as it was."""
    for piece in pieces:
        view = piece.view(-1)
        half = view.numel() // 2
        view[:half], view[half:] = view[half:].clone(), view[:half].clone()
    torch.cuda.synchronize()


def sum_of(torch, pieces):
    return [int(piece.view(torch.int32).to(torch.int64).mul_(2654435761).sum().item()) ^
            int(piece.view(torch.int32)[::1023].to(torch.int64).cumsum(0).sum().item()) for piece in pieces]


def program(options):
    """Runs under gpu-run; obeys lines of standard input."""
    import torch

    pieces = [make(torch, options.kind, i) for i in range(max(1, int(options.gib * GIB / PIECE)))]
    torch.cuda.synchronize()
    sums = sum_of(torch, pieces)
    torch.cuda.empty_cache()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "change":
            change(torch, pieces)
            sums = sum_of(torch, pieces)
        else:
            print("right" if sum_of(torch, pieces) == sums else "WRONG", flush=True)
            continue
        torch.cuda.empty_cache()
        print("done", flush=True)
    return 0


class Program:
    def __init__(self, options, kind, role="--program"):
        command = [os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, os.path.abspath(sys.argv[0]),
                   "--build", options.build, "--gib", str(options.gib), "--release", str(options.release), "--kind", kind, role]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = str(self.process.pid)
        self.read()

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise EOFError("the program has ended")
        return line

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def neighbour(options):
    """Holds memory, or computes; says with each line of standard input how many launches are done."""
    import torch

    held = torch.zeros(int(options.release * GIB), dtype=torch.uint8, device="cuda")
    if options.kind == "idle":
        torch.cuda.synchronize()
        print("ready", flush=True)
        sys.stdin.read()
        return 0
    del held
    torch.cuda.empty_cache()
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    done, is_over = [0], threading.Event()

    def compute():
        while not is_over.is_set():
            for _ in range(8):
                left @ right
            torch.cuda.synchronize()
            done[0] += 8

    worker = threading.Thread(target=compute)
    worker.start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(done[0], flush=True)
    is_over.set()
    worker.join()
    return 0


def measure(options, kind, codec):
    program_of = Program(options, kind)
    build, pid = options.build, program_of.pid
    found = {}

    def sleep(name):
        seconds = gpu_commands.on_process(build, "gpu-sleep", pid, "--level", "1", "--codec", codec)[1]
        found.setdefault(name, []).append(seconds)

    def wake(name):
        seconds = gpu_commands.on_process(build, "gpu-wake", pid)[1]
        found.setdefault(name, []).append(seconds)
        return seconds

    is_right = True
    sleep("first sleep")
    wake("first wake")
    is_right &= program_of.ask("check") == "right"
    for _ in range(options.rounds):
        program_of.ask("change")
        sleep("sleep, all changed")
        wake("wake")
        is_right &= program_of.ask("check") == "right"
        sleep("sleep, nothing changed")
        if options.release:
            idle = Program(options, "idle", "--neighbour")
            gpu_commands.on_process(build, "gpu-sleep", idle.pid, "--level", "2", "--yes")
            wake("wake after a release")
            idle.end()
        else:
            wake("wake")
    if options.busy:
        busy = Program(options, "busy", "--neighbour")
        for _ in range(options.rounds):
            sleep("sleep beside a neighbour")
            start, before = time.monotonic(), int(busy.ask("count"))
            time.sleep(1)
            alone = (int(busy.ask("count")) - before) / (time.monotonic() - start)
            before = int(busy.ask("count"))
            seconds = wake("wake beside a neighbour")
            found.setdefault("the neighbour's speed", []).append((int(busy.ask("count")) - before) / seconds / alone)
        busy.end()
    is_right &= program_of.ask("check") == "right"
    program_of.end()
    return {name: [round(each, 3) for each in values] for name, values in found.items()}, is_right


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=14.96)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--kind", default="bf16", help=argparse.SUPPRESS)
    parser.add_argument("--release", type=float, default=40, help="GiB that a neighbour releases before a wake; 0: none")
    parser.add_argument("--busy", action="store_true", help="also beside a neighbour that computes")
    parser.add_argument("--rounds", type=int, default=3)
    for role in ("--program", "--neighbour"):
        parser.add_argument(role, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program or options.neighbour:
        return program(options) if options.program else neighbour(options)
    checks, figures = {}, {}
    for kind in options.kinds.split(","):
        for codec in ("raw", "auto"):
            figures[f"{kind} {codec}"], checks[f"{kind} {codec}: each bit is right"] = measure(options, kind, codec)
            print(kind, codec, figures[f"{kind} {codec}"], flush=True)
    return gpu_commands.finish(options, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
