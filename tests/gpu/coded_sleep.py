#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""How fast contents sleep and wake that the GPU codes, beside the same with `--codec raw` in the same run, and whether each
bit is right: normally distributed bf16 weights, AdamW's state, and random bytes; at rest, with all changed, with nothing
changed, and right after a neighbour released 40 GiB.

Usage: coded_sleep.py --build DIR [--gib 14.96] [--kinds LIST] [--release 40] [--rounds 3] [--json FILE]. Exit status 0 when
each bit is right.
"""

import os
import subprocess
import sys

import gpu_commands

GIB = 1 << 30
PIECE = 256 << 20
KINDS = ("bf16", "adamw", "random")


def make(torch, kind, number):
    generator = torch.Generator("cuda").manual_seed(number)
    if kind == "random":
        return torch.randint(0, 256, (PIECE,), dtype=torch.uint8, device="cuda", generator=generator)
    if kind == "bf16":
        return torch.empty(PIECE // 2, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator)
    moment = torch.empty(PIECE // 4, device="cuda").normal_(0, 1e-3, generator=generator)
    return (moment * torch.rand(PIECE // 4, device="cuda", generator=generator)) ** (1 if number % 2 else 2)


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
    def __init__(self, options, kind, script=None, words=()):
        command = [os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, script or os.path.abspath(sys.argv[0]),
                   "--build", options.build, "--gib", str(options.gib), "--kind", kind, "--program", *words]
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


class Released:
    """A neighbour that holds memory, and releases it by a sleep."""

    def __init__(self, options):
        self.options = options
        code = (f"import torch; x = torch.zeros({int(options.release * GIB)}, dtype=torch.uint8, device='cuda'); "
                "torch.cuda.synchronize(); print('ready', flush=True); input()")
        self.process = subprocess.Popen([os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, "-c", code],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def release(self):
        gpu_commands.on_process(self.options.build, "gpu-sleep", str(self.process.pid), "--level", "2", "--yes")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(options, kind, codec):
    program_of = Program(options, kind)
    build, pid = options.build, program_of.pid
    found = {}

    def sleep(name):
        said, seconds = gpu_commands.on_process(build, "gpu-sleep", pid, "--level", "1", "--codec", codec)
        found.setdefault(name, []).append(seconds)
        return said

    def wake(name):
        _, seconds = gpu_commands.on_process(build, "gpu-wake", pid)
        found.setdefault(name, []).append(seconds)

    is_right = True
    sleep("first sleep")
    status = gpu_commands.run(build, "gpu-ps")[1]
    found["status"] = [p for p in status.get("processes", []) if str(p.get("pid")) == pid]
    wake("first wake")
    is_right &= program_of.ask("check") == "right"
    for _ in range(options.rounds):
        program_of.ask("change")
        sleep("sleep, all changed")
        wake("wake")
        is_right &= program_of.ask("check") == "right"
        sleep("sleep, nothing changed")
        if options.release:
            neighbour = Released(options)
            neighbour.release()
            wake("wake after a release")
            neighbour.end()
        else:
            wake("wake")
    is_right &= program_of.ask("check") == "right"
    program_of.end()
    return found, is_right


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=14.96)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--kind", default="bf16", help="of the program")
    parser.add_argument("--release", type=float, default=40, help="GiB that a neighbour releases before a wake; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", action="store_true")
    options = parser.parse_args()
    if options.program:
        return program(options)
    checks, figures = {}, {}
    for kind in options.kinds.split(","):
        for codec in ("raw", "auto"):
            found, is_right = measure(options, kind, codec)
            checks[f"{kind} {codec}: each bit is right"] = is_right
            held = [p.get("host_bytes") for p in found.pop("status")]
            figures[f"{kind} {codec}"] = {name: [round(s, 3) for s in seconds] for name, seconds in found.items()}
            print(kind, codec, figures[f"{kind} {codec}"], held, flush=True)
    return gpu_commands.finish(options, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
