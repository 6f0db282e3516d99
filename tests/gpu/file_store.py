#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Contents of a real GPU in snapshot files: sizes, times and safety, with a program that knows nothing of sleeping.

For each kind of contents a PyTorch process is put to sleep into files and woken, several times, on each directory; and
what sleeps in host memory is moved to files and back. Beside it the same bytes are written and read as a raw file, past
the page cache where the file system can. Sums over all contents must stay the same, and no file may stay behind. Rates
count contents.

Usage: file_store.py --build DIR --dir DIR [--dir DIR...] [--gib 16] [--cycles 3] [--json FILE]
Exit status: 0 when no byte was lost and nothing stayed behind; targets that were missed are printed, not failed.
"""

import argparse
import functools
import json
import mmap
import os
import shutil
import subprocess
import sys
import time

from gpu_commands import on_process

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
PIECE = 1 << 30
KINDS = ("bf16", "e4m3", "fp32", "random")
MOST_STORED = {"bf16": 0.67, "e4m3": 0.83, "fp32": 0.84, "random": 1.001}
MOST_MOVE_TIME = 1.10 # of the time of a sleep to files
SHARE = {"bf16": 1.0, "e4m3": 0.5, "fp32": 0.5, "random": 0.5} # of --gib


def program(kind, gib):
    """Runs under gpu-run; a line of standard input asks for the sum."""
    sys.path.insert(0, os.path.join(HERE, "programs"))
    import torch
    from torch_common import weighted_sum

    generator = torch.Generator(device="cuda").manual_seed(1)

    def piece():
        if kind == "random":
            return torch.randint(-2**31, 2**31, (PIECE // 4,), generator=generator, device="cuda", dtype=torch.int32)
        element = {"bf16": 2, "e4m3": 1, "fp32": 4}[kind]
        values = torch.empty(PIECE // element, device="cuda", dtype=torch.bfloat16 if element < 4 else torch.float32)
        values.normal_(0, 0.02 if element > 1 else 1.0, generator=generator)
        return values.to(torch.float8_e4m3fn) if element == 1 else values

    pieces = [piece() for _ in range(round(gib))]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for line in sys.stdin:
        if line.startswith("save"):
            pieces[0].view(torch.uint8).cpu().numpy().tofile(line.split(maxsplit=1)[1].strip())
        sums = [weighted_sum(tensor.view(torch.int32)) for tensor in pieces]
        torch.cuda.empty_cache()
        print("sums", *sums, flush=True)


class Program:
    def __init__(self, build, kind, gib):
        self.child = subprocess.Popen(
            [os.path.join(build, "bin", "gpu-run"), "--tag", "weights", "--", sys.executable, os.path.abspath(__file__),
             "--program", kind, "--gib", str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line="sum"):
        print(line, file=self.child.stdin, flush=True)
        return self.child.stdout.readline().strip()

    def end(self):
        self.child.stdin.close()
        return self.child.wait()


def raw_rates(directory, sample, gib):
    """Rates of writing and reading `gib` GiB as they are; the writing is flushed."""
    path = os.path.join(directory, "raw")
    size = 16 << 20
    with open(sample, "rb") as file:
        blocks = [file.read(size) for _ in range(16)]
    buffers = []
    for block in blocks:
        buffer = mmap.mmap(-1, size)
        buffer.write(block)
        buffers.append(buffer)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(path, flags | os.O_DIRECT, 0o600)
        direct = os.O_DIRECT
    except OSError:
        fd, direct = os.open(path, flags, 0o600), 0
    count = gib * GIB // size
    # As many writers as the disk may want at a time: one thread each, for Python's lock is free meanwhile.
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        started = time.monotonic()
        list(pool.map(lambda i: os.pwrite(fd, buffers[i % 16], i * size), range(count)))
        os.fsync(fd)
        written = time.monotonic() - started
        os.close(fd)
        fd = os.open(path, os.O_RDONLY | direct)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.monotonic()
        list(pool.map(lambda i: os.preadv(fd, [buffers[i % 16]], i * size), range(count)))
        read = time.monotonic() - started
    os.close(fd)
    os.unlink(path)
    return gib * GIB / written / 1e9, gib * GIB / read / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--dir", action="append", help="where snapshots go; may be given several times")
    parser.add_argument("--gib", type=int, default=16, help="of bf16; of the others half")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        return program(arguments.program, arguments.gib)

    command = functools.partial(on_process, arguments.build)
    figures = []
    failures = 0
    for directory in arguments.dir or ["/tmp"]:
        place = os.path.join(directory, f"gpu-sleep-file-store-{os.getpid()}")
        os.mkdir(place, 0o700)
        raw = None
        for kind in arguments.kinds.split(","):
            gib = max(1, round(arguments.gib * SHARE[kind]))
            child = Program(arguments.build, kind, gib)
            sample = os.path.join(directory, f"gpu-sleep-sample-{os.getpid()}")
            before = child.ask(f"save {sample}")
            if raw is None:
                raw = raw_rates(place, sample, min(gib, 8))
                print(f"{directory}: a raw file is written at {raw[0]:.2f} GB/s and read at {raw[1]:.2f}", flush=True)
            os.unlink(sample)
            pid = str(child.child.pid)
            sleeps, wakes, stored = [], [], 0
            moves, returns = [], []
            for _ in range(arguments.cycles):
                slept, down = command("gpu-sleep", pid, "--store", "file", "--dir", place)
                kept = sum(tag["kept_bytes"] for tag in slept["report"]["tags"])
                stored = slept["report"]["file_bytes"] / kept
                _, up = command("gpu-wake", pid)
                sleeps.append(kept / down / 1e9)
                wakes.append(kept / up / 1e9)
                command("gpu-sleep", pid)
                _, moved = command("gpu-sleep", pid, "--store", "file", "--dir", place)
                _, back = command("gpu-sleep", pid, "--store", "host")
                command("gpu-wake", pid)
                moves.append(kept / moved / 1e9)
                returns.append(kept / back / 1e9)
            same = child.ask() == before
            left = os.listdir(place)
            child.end()
            row = {"directory": directory, "kind": kind, "gib": gib, "stored": stored, "sleep_gb_s": max(sleeps),
                   "wake_gb_s": max(wakes), "raw_write_gb_s": raw[0], "raw_read_gb_s": raw[1], "same": same,
                   "move_gb_s": max(moves), "move_back_gb_s": max(returns)}
            figures.append(row)
            failures += not same or bool(left)
            phases = slept["report"]["times"]
            print("  the last sleep: " + ", ".join(f"{k.removesuffix('_seconds')} {v:.2f} s" for k, v in phases.items()))
            print(f"{directory} {kind:6} {gib:3} GiB: stored {stored:.4f} (at most {MOST_STORED[kind]}), "
                  f"sleep {max(sleeps):.2f} GB/s = {max(sleeps) / raw[0]:.2f} x raw, "
                  f"wake {max(wakes):.2f} GB/s = {max(wakes) / raw[1]:.2f} x raw; "
                  f"{'the same bytes' if same else 'BYTES DIFFER'}{', FILES LEFT: ' + str(left) if left else ''}",
                  flush=True)
            slower = max(sleeps) / max(moves)
            print(f"  asleep, from host memory to files: {max(moves):.2f} GB/s, {slower:.2f} x the time of a sleep to files "
                  f"(at most {MOST_MOVE_TIME}); back: {max(returns):.2f} GB/s", flush=True)
        shutil.rmtree(place)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
