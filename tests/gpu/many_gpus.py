#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""All GPUs of a machine at once, however many it has: jobs that span them, a server of as many ranks, moves, and room.

  exchange  PyTorch ranks that exchange by NCCL, with peers, without a rest (all-reduce, a pipeline, all-to-all, buffers
            registered in graphs, data-parallel training) sleep and wake as one at random moments, plainly and deeply, and
            must compute what they compute undisturbed
  server    ranks that hold memory sleep and wake as one, for one rank, two, four and so on: how fast, and what is left
  move      a deep sleeper comes back on each GPU in turn, and on the first in the end
  room      with all GPUs in use, room is made on each, and a pass of the timer puts all to sleep

Usage: many_gpus.py --build DIR [--gpus N] [--parts LIST] [--cycles 50] [--deep-cycles 50] [--jobs 1] [--gib 8].
Prints tables; exit status 0 when all is right.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import tempfile
import time

import gpu_commands
import program_sleeper
import real_programs
from real_programs import GIB, torch_program

PARTS = ("exchange", "server", "move", "room")
EXCHANGES = ("all_reduce", "pipeline", "all_to_all", "registered", "ddp")
WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}
CYCLE_SECONDS, DEEP_CYCLE_SECONDS = 1, 5 # at most, so that all cycles fall into a program's life
PIECE = 64 << 20
problems = []


def expect(is_right, what):
    if not is_right:
        problems.append(what)
        print(f"NOT RIGHT: {what}", flush=True)


def table(headings, rows):
    print("".join(f"| {' | '.join(map(str, row))} |\n" for row in (headings, ["---"] * len(headings), *rows)), flush=True)


# What holds memory on one GPU, and obeys lines of standard input.

def hold(device, size):
    start = time.monotonic()
    driver = gpu_commands.Driver(device)
    started = time.monotonic() - start
    pieces = [driver.allocate(PIECE) for _ in range(max(1, size // PIECE))]
    value = 0

    def fill():
        for number, piece in enumerate(pieces):
            driver.call("cuMemsetD32_v2", piece, ctypes.c_uint(value * 1000 + number), ctypes.c_size_t(PIECE // 4))
        driver.call("cuCtxSynchronize")

    def is_right():
        word = ctypes.c_uint()
        for number, piece in enumerate(pieces):
            place = ctypes.c_uint64(piece.value + number * 4096 % PIECE)
            driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), place, ctypes.c_size_t(4))
            if word.value != value * 1000 + number:
                return False
        return True

    fill()
    print(json.dumps(started), flush=True)
    for line in sys.stdin:
        if line.strip() == "change":
            value += 1
            fill()
        print(json.dumps(is_right()), flush=True)


class Holder:
    def __init__(self, options, device, size, group, *run_options):
        command = [os.path.join(options.build, "bin", "gpu-run"), "--group", group, *run_options, "--", sys.executable,
                   os.path.abspath(__file__), "--hold", f"{device},{size}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.device, self.pid, self.started = device, str(self.process.pid), 0.0

    def ready(self):
        self.started = float(self.process.stdout.readline())
        return self

    def tell(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self):
        """False, too, if none comes in a minute."""
        return bool(select.select([self.process.stdout], [], [], 60)[0]) and self.process.stdout.readline() == "true\n"

    def end(self):
        self.process.stdin.close()
        expect(self.process.wait(60) == 0, f"the holder of GPU {self.device} ended with {self.process.returncode}")


@contextlib.contextmanager
def holders(options, devices, size, group, *run_options):
    """One on each of the GPUs, all in a group."""
    group = f"{group}-{os.getpid()}"
    running = [Holder(options, device, size, group, *run_options) for device in devices]
    try:
        yield group, [each.ready() for each in running]
        for each in running:
            each.end()
    finally:
        for each in running:
            each.process.kill()


def check_bytes(running, word="check", what="what it holds"):
    for each in running:
        each.tell(word)
    for each in running:
        expect(each.answer(), f"{what} on GPU {each.device}")


def command(options, name, *words, statuses=(0,)):
    """The answer, and the seconds that it took."""
    done, answer, seconds = gpu_commands.run(options.build, name, *words)
    expect(done.returncode in statuses, f"{name} {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return answer, seconds


def used_mib():
    """Of each GPU, as the management library has it; empty without nvidia-smi."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in done.stdout.split()]


# The parts.

def exchange(options):
    gpus = options.gpus
    program_sleeper.BETWEEN_SECONDS = (0.02, 0.2)
    ranks = dict(gpus=gpus, together=True, refuses_at_times=True, asleep=(0.02, 0.1)) # until they are connected
    results = []
    for is_deep, cycles, pause in ((False, options.cycles, CYCLE_SECONDS), (True, options.deep_cycles, DEEP_CYCLE_SECONDS)):
        way = "deep" if is_deep else "plain"
        programs = [torch_program(f"{kind}_{way}", "torch_collectives.py", environment=WITHOUT_MULTICAST,
                                  arguments=("--ranks", str(gpus), "--only", kind), **ranks)
                    for kind in EXCHANGES[:3]]
        programs.append(torch_program(f"registered_{way}", "torch_registered.py", environment=WITHOUT_MULTICAST,
                                      arguments=("--ranks", str(gpus)), **ranks))
        programs.append(torch_program(f"ddp_{way}", "torch_ddp.py", environment=WITHOUT_MULTICAST,
                                      arguments=("--ranks", str(gpus), "--gpus", str(gpus), "--steps", str(2 * cycles)),
                                      **ranks))
        settings = argparse.Namespace(build=options.build, scale=options.scale, seconds=cycles * pause, deep=is_deep,
                                      limit=cycles * pause * 2 + 90, least_cycles=cycles * 2 // 3, most=cycles, least=1 << 20,
                                      timeout="10s", gpus=gpus, seed=1, live=False, run_option=[], jobs=options.jobs,
                                      out=options.out)
        chosen = [each for each in programs if cycles and each.name.rpartition("_")[0] in options.exchanges]
        with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(real_programs.Bench(settings, scratch).run, chosen):
                results.append(result)
                print(f"{result.program}: {result.verdict}, {result.cycles} cycles, {result.deep} deep", *result.problems,
                      sep="\n  ", flush=True)
    print(real_programs.markdown(results), flush=True)
    for result in results:
        expect(result.verdict == "right", f"{result.program}: {result.verdict}")


def server(options):
    rows, counts = [], []
    while not counts or counts[-1] < options.gpus:
        counts.append(min(options.gpus, 2 * counts[-1]) if counts else 1)
    for count in counts:
        size = int(options.gib * GIB)
        before = used_mib()
        with holders(options, range(count), size, "server") as (group, running):
            def timed(name):
                """Of the whole command, and of the transfer alone of whoever took longest."""
                answer, seconds = command(options, name, "--group", group)
                transfer = max(process["report"]["times"]["transfer_seconds"] for process in answer["processes"])
                return " / ".join(f"{count * size / 1e9 / each:.1f}" for each in (seconds, transfer))

            speeds = []
            for number in range(3): # the first two pin what they copy to
                if number > 0:
                    check_bytes(running, "change")
                speeds = speeds[:2] + [timed("gpu-sleep")]
                left = [now - then for now, then in zip(used_mib(), before)][:count]
                speeds.append(timed("gpu-wake"))
            check_bytes(running)
            unchanged = command(options, "gpu-sleep", "--group", group)[1]
            command(options, "gpu-wake", "--group", group)
            listed = command(options, "gpu-ps", running[0].pid)[1]
            deep = command(options, "gpu-sleep", "--group", group, "--deep")[1]
            left_deep = [now - then for now, then in zip(used_mib(), before)][:count]
            restored = command(options, "gpu-wake", "--group", group)[1]
            check_bytes(running)
            starts = max(each.started for each in running)
        rows.append((count, *speeds, f"{unchanged:.3f}", max(left, default="-"), f"{deep:.2f}",
                     f"{restored:.2f}", max(left_deep, default="-"), f"{listed:.3f}", f"{starts:.2f}"))
    print(f"{options.gib} GiB a rank; GB/s over all ranks, by the seconds of the whole command / of the transfer alone")
    table(("ranks", "first sleep", "first wake", "sleep, all changed", "wake", "sleep, unchanged s", "left, MiB a GPU",
           "deep sleep s", "deep wake s", "left, MiB", "gpu-ps s", "CUDA's start s"), rows)


def move(options):
    rows, gpus = [], options.gpus
    if gpus < 2:
        return print("needs two GPUs", flush=True)
    with holders(options, [0], GIB, "move") as (_, running):
        pid = running[0].pid
        for origin in range(gpus):
            target = (origin + 1) % gpus
            _, asleep = command(options, "gpu-sleep", pid, "--deep")
            before = used_mib()
            answer, awake = command(options, "gpu-wake", pid, "--gpu", f"{origin}={target}")
            taken = [now - then for now, then in zip(used_mib(), before)]
            check_bytes(running, "change", f"what came from GPU {origin}")
            if taken:
                expect(taken[target] >= 1024 and taken[origin] < 1024, f"it is on GPU {target}: {taken}")
            rows.append((f"{origin} to {target}", f"{asleep:.2f}", f"{awake:.2f}", taken))
    table(("move", "deep sleep s", "wake s", "MiB taken, by GPU"), rows)


def room(options):
    rows = []
    devices = range(options.gpus)
    with holders(options, devices, int(options.gib * GIB), "room", "--on-touch", "wake") as (group, running):
        free = {}
        for each in running:
            answer, _ = command(options, "gpu-sleep", each.pid, "--dry-run")
            device = answer["processes"][0]["report"]["devices"][0]
            free[each.device] = (device["uuid"], device["free_before_bytes"])
        for each in running:
            uuid, now = free[each.device]
            need = str((now + int(options.gib * GIB) // 2) >> 20) + "MiB"
            answer, seconds = command(options, "gpu-reclaim", "--need", need, "--gpu", uuid)
            asleep = [process["pid"] for process in answer["processes"]]
            expect(asleep == [int(each.pid)], f"room on GPU {each.device} is made by who is there: {asleep}")
            check_bytes([each])
            rows.append((each.device, f"{seconds:.2f}"))
        changed, deadline = 0, time.monotonic() + 30
        while changed < options.gpus and time.monotonic() < deadline: # some worked just now
            time.sleep(1)
            answer, seconds = command(options, "gpu-reclaim", "--idle", "1s")
            changed += sum(process.get("report", {}).get("changed", False) for process in answer["processes"])
        expect(changed == options.gpus, f"passes put {changed} of {options.gpus} to sleep")
        check_bytes(running)
    table(("room made on GPU", "seconds"), [*rows, ("the last pass", f"{seconds:.2f}")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--gpus", type=int, default=real_programs.count_gpus())
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--exchanges", default=",".join(EXCHANGES))
    parser.add_argument("--cycles", type=int, default=50, help="of each program that exchanges; 0: none")
    parser.add_argument("--deep-cycles", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1, help="programs that exchange at a time")
    parser.add_argument("--gib", type=float, default=8, help="that each rank of the server holds")
    parser.add_argument("--scale", type=float, default=1, help="of the exchanging programs' memory")
    parser.add_argument("--out", help="directory for what a program that fails has printed")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        return hold(*map(int, options.hold.split(",")))
    options.exchanges = options.exchanges.split(",")
    unknown = (set(options.parts.split(",")) - set(PARTS)) | (set(options.exchanges) - set(EXCHANGES))
    if unknown or options.gpus < 1:
        parser.error(f"there is no {', '.join(unknown)}" if unknown else "no GPU was found")
    for part in options.parts.split(","):
        start = time.monotonic()
        print(f"== {part}, {options.gpus} GPUs", flush=True)
        try:
            {"exchange": exchange, "server": server, "move": move, "room": room}[part](options)
        except (LookupError, OSError, RuntimeError, ValueError) as failure: # of what a command that failed has not said
            expect(False, f"{part} ended with {failure!r}")
        print(f"== {part}: {time.monotonic() - start:.0f} s", flush=True)
    print("all is right" if not problems else f"{len(problems)} things are not right", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
