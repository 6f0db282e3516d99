#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Two processes share memory by CUDA IPC, or by descriptors, and work in it in turns, by graphs that hold its address. They
sleep and wake as one at random moments, plainly and deeply, and at the end say whether all of it is right. Beside them, two
that share nothing: what a sleep leaves on the GPU, and how long sleeps and wakes take.

Usage: shared_sleep.py --build DIR [--gib 1] [--plain 20] [--deep 20] [--json FILE]. Exit status 0 when all is right.
"""

import os
import random
import subprocess
import sys
import time

import gpu_commands

MIB = 1 << 20


def tensor_and_graph(options, shared=None):
    """Memory of this process, and a graph that adds one to all of it and of `shared`."""
    import torch

    own = torch.zeros(int(options.gib * 1024 * MIB / 4), dtype=torch.int32, device="cuda")
    tensors = [own] if shared is None else [own, shared]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for tensor in tensors:
            tensor.add_(1)
    return own, graph


def partner(options, requests, answers):
    """The other process: has opened memory of the first, or shares nothing."""
    import torch

    shared = requests.get() # open as long as there is a name for it
    own, graph = tensor_and_graph(options, shared)
    answers.put("ready")
    while requests.get():
        graph.replay()
        torch.cuda.synchronize()
        answers.put("done")
    answers.put([int(each) for each in own.aminmax()])
    del shared


def program(options):
    """Runs under gpu-run, until a line comes on standard input."""
    import select

    import torch

    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.SimpleQueue(), context.SimpleQueue()
    other = context.Process(target=partner, args=(options, requests, answers))
    own, graph = tensor_and_graph(options)
    own.zero_()
    other.start()
    requests.put(own if options.shares else None)
    answers.get()
    own.zero_() # a capture runs nothing, but warms up
    torch.cuda.synchronize()
    print("ready", flush=True)
    turns = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        requests.put(True)
        answers.get()
        graph.replay()
        torch.cuda.synchronize()
        turns += 1
    requests.put(False)
    theirs = answers.get()
    ours = [int(each) for each in own.aminmax()]
    is_right = ours == [turns * (2 if options.shares else 1)] * 2 and theirs == [turns] * 2
    print(f"right after {turns} turns" if is_right else f"WRONG: {turns} turns, {ours} and {theirs}", flush=True)
    other.join()
    return 0


def used_mib():
    listed = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], check=True,
                            capture_output=True, text=True).stdout
    return int(listed.split()[0])


def measure(options, shares, allocator=""):
    before = used_mib()
    command = [os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, os.path.abspath(sys.argv[0]), "--program",
               "--build", options.build, "--gib", str(options.gib), *(["--shares"] if shares else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": allocator})
    process.stdout.readline()
    found = {}
    for kind, count, words in (("plain", options.plain, []), ("deep", options.deep, ["--deep"])):
        rows = []
        for _ in range(count):
            time.sleep(random.uniform(0.02, 0.15))
            start = time.monotonic()
            gpu_commands.on_process(options.build, "gpu-sleep", str(process.pid), "--tree", *words)
            slept = time.monotonic()
            left = used_mib() - before
            woken = time.monotonic()
            gpu_commands.on_process(options.build, "gpu-wake", str(process.pid), "--tree")
            rows.append((slept - start, time.monotonic() - woken, left))
        rows.sort()
        found[kind] = {"cycles": count, "sleep s": round(rows[count // 2][0], 3), "left MiB": max(row[2] for row in rows),
                       "wake s": round(sorted(row[1] for row in rows)[count // 2], 3)}
    process.stdin.write("end\n")
    process.stdin.flush()
    found["answer"] = process.stdout.readline().strip()
    process.wait()
    return found


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=1, help="of each process")
    parser.add_argument("--plain", type=int, default=20, help="plain sleeps")
    parser.add_argument("--deep", type=int, default=20, help="deep sleeps")
    for word in ("--program", "--shares"):
        parser.add_argument(word, action="store_true", help="internal")
    options = parser.parse_args()
    if options.program:
        return program(options)
    found = {"CUDA IPC": measure(options, True), "descriptors": measure(options, True, "expandable_segments:True"),
             "nothing shared": measure(options, False)}
    checks = {name: each["answer"].startswith("right") for name, each in found.items()}
    checks["deep leaves nothing"] = all(each["deep"]["left MiB"] <= 0 for each in found.values())
    return gpu_commands.finish(options, found, checks)


if __name__ == "__main__":
    sys.exit(main())
