#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""All GPUs of a machine at once, however many it has: jobs that span them, a server of as many ranks, moves, and room.

  exchange  PyTorch ranks that exchange by NCCL, with peers, without a rest (all-reduce, a pipeline, all-to-all, buffers
            registered in graphs, data-parallel training) sleep and wake as one at random moments, plainly and deeply, and
            must compute what they compute undisturbed
  links     how fast an all-reduce of NCCL is before and after, and what its ranks leave on a GPU, beside a program without NCCL
  server    ranks that hold bf16 weights sleep and wake as one, coded and raw, for one rank, two, four and so on: how fast, and
            what is left
  near      one such rank on the processors of each NUMA node
  move      a deep sleeper comes back on each GPU in turn, and on the first in the end
  room      with all GPUs in use, room is made on each, and a pass of the timer puts all to sleep

Usage: many_gpus.py --build DIR [--gpus N] [--parts LIST] [--cycles 50] [--deep-cycles 50] [--jobs 1] [--gib 8]
       [--codecs raw,auto].
Prints tables; exit status 0 when all is right.
"""

import argparse
import array
import concurrent.futures
import contextlib
import ctypes
import glob
import json
import os
import pathlib
import random
import select
import subprocess
import sys
import tempfile
import time

import gpu_commands
import program_sleeper
import real_programs
from real_programs import GIB, torch_program

PARTS = ("exchange", "links", "server", "near", "move", "room")
EXCHANGES = ("all_reduce", "pipeline", "all_to_all", "registered", "ddp")
WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}
CYCLE_SECONDS, DEEP_CYCLE_SECONDS = 2, 6 # at most
FILLS = 0.1 # of the deep sleeps
PIECE, SAMPLE = 64 << 20, 64 << 10
LINKS_BYTES, LINKS_REDUCTIONS = 256 << 20, 50
LEFT_MIB = 64 # of a rank of NCCL more than of a program without
problems = []


def expect(is_right, what):
    if not is_right:
        problems.append(what)
        print(f"NOT RIGHT: {what}", flush=True)


def table(headings, rows):
    print("".join(f"| {' | '.join(map(str, row))} |\n" for row in (headings, ["---"] * len(headings), *rows)), flush=True)


# What holds memory on one GPU, and obeys lines of standard input.

def weights(count):
    """The bytes of normally distributed bf16."""
    chance = random.Random(1)
    wide = array.array("f", (chance.gauss(0, 0.02) for _ in range(count))).tobytes()
    made = bytearray(2 * count)
    made[0::2], made[1::2] = wide[2::4], wide[3::4]
    return bytes(made)


def hold(device, size):
    start = time.monotonic()
    driver = gpu_commands.Driver(device)
    started = time.monotonic() - start
    source = weights((1 << 20) // 2) * (PIECE // (1 << 20) + 1) # each piece begins somewhere in it
    pieces = [driver.allocate(PIECE) for _ in range(max(1, size // PIECE))]
    value = 0

    def begin_of(number):
        return (value * 1000 + number) * 4099 % (1 << 19) * 2

    def fill():
        for number, piece in enumerate(pieces):
            begin = begin_of(number)
            driver.call("cuMemcpyHtoD_v2", piece, source[begin:begin + PIECE], ctypes.c_size_t(PIECE))

    def is_right():
        sample = ctypes.create_string_buffer(SAMPLE)
        for number, piece in enumerate(pieces):
            place = (number * 3 + value) * SAMPLE % PIECE
            driver.call("cuMemcpyDtoH_v2", sample, ctypes.c_uint64(piece.value + place), ctypes.c_size_t(SAMPLE))
            begin = begin_of(number) + place
            if sample.raw != source[begin:begin + SAMPLE]:
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
    def __init__(self, options, device, size, group, *run_options, wrapper=()):
        command = [*wrapper, os.path.join(options.build, "bin", "gpu-run"), "--group", group, *run_options, "--", sys.executable,
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
def holders(options, devices, size, group, *run_options, wrapper=()):
    """One on each of the GPUs, all in a group."""
    group = f"{group}-{os.getpid()}"
    running = [Holder(options, device, size, group, *run_options, wrapper=wrapper) for device in devices]
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
    ranks = dict(gpus=gpus, together=True, tight=True, refuses_at_times=True, asleep=(0.02, 0.1)) # until they are connected
    results = []
    for is_deep, cycles, pause in ((False, options.cycles, CYCLE_SECONDS), (True, options.deep_cycles, DEEP_CYCLE_SECONDS)):
        way = "deep" if is_deep else "plain"
        programs = [torch_program(f"{kind}_{way}", "torch_collectives.py", environment=WITHOUT_MULTICAST,
                                  arguments=("--ranks", str(gpus), "--only", kind), **ranks)
                    for kind in EXCHANGES[:3]]
        programs.append(torch_program(f"registered_{way}", "torch_registered.py", environment=WITHOUT_MULTICAST,
                                      arguments=("--ranks", str(gpus)), **ranks))
        programs.append(torch_program(f"ddp_{way}", "torch_ddp.py", environment=WITHOUT_MULTICAST,
                                      arguments=("--ranks", str(gpus), "--gpus", str(gpus)), **ranks))
        settings = argparse.Namespace(build=options.build, scale=options.scale, seconds=0, deep=is_deep,
                                      limit=cycles * pause + 90, least_cycles=cycles, most=cycles, least=1 << 20,
                                      timeout="10s", gpus=gpus, seed=1, live=False, run_option=[], jobs=options.jobs,
                                      fills=FILLS, out=options.out)
        chosen = [each for each in programs if cycles and each.name.rpartition("_")[0] in options.exchanges]
        with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(real_programs.Bench(settings, scratch).run, chosen):
                results.append(result)
                print(f"{result.program}: {result.verdict}, {result.cycles} cycles, {result.deep} deep", *result.problems,
                      sep="\n  ", flush=True)
    print(real_programs.markdown(results), flush=True)
    for result in results:
        expect(result.verdict == "right", f"{result.program}: {result.verdict}")


def reduce_with(ranks, enough):
    sys.path.insert(0, real_programs.PROGRAMS)
    import torch_common

    arguments = argparse.Namespace(ranks=int(ranks), until=enough, seconds=0, steps=1)
    return torch_common.run_ranks(reduce, arguments) if arguments.ranks else reduce(0, arguments)


def reduce(rank, arguments):
    """All-reduces without a rest, for which rank 0 prints GB/s; without ranks, the like on one GPU without NCCL."""
    sys.path.insert(0, real_programs.PROGRAMS)
    import program
    import torch_common
    import torch
    import torch.distributed as dist

    group = torch_common.join_ranks(rank, arguments.ranks, rank) if arguments.ranks else None
    values = torch.ones(LINKS_BYTES // 4, device="cuda")
    for _ in torch_common.paced_ranks(arguments, group) if group else program.paced(arguments):
        start = time.monotonic()
        for _ in range(LINKS_REDUCTIONS):
            dist.all_reduce(values, dist.ReduceOp.AVG) if group else values.mul_(1)
        torch.cuda.synchronize()
        if rank == 0:
            print(LINKS_REDUCTIONS * LINKS_BYTES / 1e9 / (time.monotonic() - start), flush=True)
    if not bool((values == 1).all()):
        raise RuntimeError("another sum")
    if group:
        dist.destroy_process_group()


def links(options):
    rows, left = [], {}
    for ranks in (0, 1, options.gpus): # 0: a program without NCCL
        before = used_mib()
        with tempfile.TemporaryDirectory() as scratch:
            enough = pathlib.Path(scratch) / "enough"
            start = [os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, os.path.abspath(__file__),
                     "--reduce", f"{ranks},{enough}"]
            running = real_programs.Running(start, {**os.environ, **WITHOUT_MULTICAST})
            pid = str(running.process.pid)

            def speed():
                """Of those that began from now on: their median."""
                first = len(running.output) + 2
                while len(running.output) < first + 15:
                    time.sleep(0.02)
                    if running.is_over():
                        raise RuntimeError(f"the ranks ended: {' | '.join(running.errors[-6:])}")
                return program_sleeper.median([float(line) for line in running.output[first:]])

            def used():
                return max((now - then for now, then in zip(used_mib(), before)), default=0)

            speeds, held = [speed()], [used()]
            for words in ((), ("--deep",)):
                answer, _ = command(options, "gpu-sleep", pid, "--tree", *words)
                held.append(used())
                stays = [each for process in answer["processes"] for each in process.get("report", {}).get("residual", [])]
                print(f"{ranks} ranks {' '.join(words)}: as gpu-sleep says, {stays or 'nothing'} stays", flush=True)
                command(options, "gpu-wake", pid, "--tree")
                speeds.append(speed())
            enough.touch()
            expect(running.process.wait(60) == 0, f"{ranks} ranks end: {' | '.join(running.errors[-6:])}")
        left[ranks] = held[1]
        expect(min(speeds[1:]) > 0.95 * speeds[0] and held[2] == 0, f"{ranks} ranks are as fast afterwards, and leave nothing")
        rows.append((ranks or "without NCCL", *(f"{each:.1f}" for each in speeds), *held))
    table(("ranks", "GB/s before", "after a plain sleep", "after a deep one", "MiB a GPU awake", "plain", "deep"), rows)
    expect(left[options.gpus] <= left[0] + LEFT_MIB, f"ranks leave {left[options.gpus]} MiB, without NCCL {left[0]}")


def server(options):
    counts = []
    while not counts or counts[-1] < options.gpus:
        counts.append(min(options.gpus, 2 * counts[-1]) if counts else 1)
    speeds(options, [(count, count, ()) for count in counts])


def near(options):
    nodes = [(path.split("/")[-2], pathlib.Path(path).read_text(encoding="ascii").strip())
             for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"))]
    nodes = [(name, processors) for name, processors in nodes if processors]
    if len(nodes) < 2:
        return print(f"needs two NUMA nodes with processors, and there is {len(nodes)}", flush=True)
    speeds(options, [(f"1 on {name}", 1, ("taskset", "-c", processors)) for name, processors in nodes])


def speeds(options, servers):
    """Prints a table of servers, each (its name, its ranks, the words before its command), with each codec."""
    print(f"{options.gib} GiB a rank; GB/s over all ranks, by the seconds of the whole command / of the transfer alone")
    table(("ranks", "codec", "first sleep", "first wake", "sleep, all changed", "wake", "sleep, unchanged s",
           "left, MiB a GPU", "deep sleep s", "deep wake s", "left, MiB", "gpu-ps s", "CUDA's start s"),
          [(name, codec, *speeds_of(options, count, codec, wrapper))
           for name, count, wrapper in servers for codec in options.codecs.split(",")])


def speeds_of(options, count, codec, wrapper):
    size, before = int(options.gib * GIB), used_mib()
    with holders(options, range(count), size, "server", wrapper=wrapper) as (group, running):
        sleep, wake = ("gpu-sleep", "--group", group, "--codec", codec), ("gpu-wake", "--group", group)

        def timed(words):
            """Of the whole command, and of the transfer alone of whoever took longest."""
            answer, seconds = command(options, *words)
            transfer = max(process["report"]["times"]["transfer_seconds"] for process in answer["processes"])
            return " / ".join(f"{count * size / 1e9 / each:.1f}" for each in (seconds, transfer))

        def left():
            return max([now - then for now, then in zip(used_mib(), before)][:count], default="-")

        found = []
        for number in range(3): # the first two pin what they copy to
            if number > 0:
                check_bytes(running, "change")
            found = found[:2] + [timed(sleep)]
            plain = left()
            found.append(timed(wake))
        check_bytes(running)
        unchanged = command(options, *sleep)[1]
        command(options, *wake)
        listed = command(options, "gpu-ps", running[0].pid)[1]
        slept = command(options, *sleep, "--deep")[1]
        deep = left()
        woken = command(options, *wake)[1]
        check_bytes(running)
        started = max(each.started for each in running)
    return (*found, f"{unchanged:.3f}", plain, f"{slept:.2f}", f"{woken:.2f}", deep, f"{listed:.3f}", f"{started:.2f}")


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
    parser.add_argument("--codecs", default="raw,auto", help="of gpu-sleep, for the server")
    parser.add_argument("--scale", type=float, default=1, help="of the exchanging programs' memory")
    parser.add_argument("--out", help="directory for what a program that fails has printed")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--reduce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        return hold(*map(int, options.hold.split(",")))
    if options.reduce:
        return reduce_with(*options.reduce.split(","))
    options.exchanges = options.exchanges.split(",")
    unknown = (set(options.parts.split(",")) - set(PARTS)) | (set(options.exchanges) - set(EXCHANGES))
    if unknown or options.gpus < 1:
        parser.error(f"there is no {', '.join(unknown)}" if unknown else "no GPU was found")
    for part in options.parts.split(","):
        start = time.monotonic()
        print(f"== {part}, {options.gpus} GPUs", flush=True)
        try:
            {"exchange": exchange, "links": links, "server": server, "near": near, "move": move, "room": room}[part](options)
        except (LookupError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as failure: # of what a command that failed has not said
            expect(False, f"{part} ended with {failure!r}")
        print(f"== {part}: {time.monotonic() - start:.0f} s", flush=True)
    print("all is right" if not problems else f"{len(problems)} things are not right", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
