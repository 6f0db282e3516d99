#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Two PyTorch inference servers that do not both fit one GPU answer requests that come at random.

Each is an HTTP server with a model of the shape of Llama-3-8B and random weights of its own, under gpu-run, and knows
nothing of sleeping. A third process takes what is left of the GPU, so that there is room for one of them. Each answer must
be that which the server gave before, undisturbed. The servers' own agents make room.

Usage: taking_turns.py --build DIR [--seconds 60] [--min-awake 2] [--json FILE]. Exit status 0 when all answers were right.
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import gpu_commands
from gpu_commands import Driver

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

NAMES = ("A", "B")
PROMPTS, TOKENS = 6, 8
SPARE = 2 << 30 # of GPU memory, besides one model: what its answers and a waking context take for a moment
PATIENCE = 120
PLAIN_BYTES = 64 << 20


# ---- What runs on the GPU


class PlainModel:
    """Memory that is only read, for the simulated driver: its tokens are sums of it."""

    def __init__(self, seed):
        self.cuda = Driver()
        contents = random.Random(seed).randbytes(PLAIN_BYTES)
        self.address = self.cuda.allocate(PLAIN_BYTES)
        self.cuda.call("cuMemcpyHtoD_v2", self.address, contents, ctypes.c_size_t(PLAIN_BYTES))
        self.sample = ctypes.create_string_buffer(4096)

    def answer(self, prompt):
        self.cuda.enter()
        chosen = random.Random(prompt)
        for _ in range(TOKENS):
            at = chosen.randrange(PLAIN_BYTES // 4096) * 4096
            self.cuda.call("cuMemcpyDtoH_v2", self.sample, ctypes.c_uint64(self.address.value + at), ctypes.c_size_t(4096))
            yield sum(self.sample.raw)


class TorchModel:
    def __init__(self, seed, scale):
        from llama import SHAPES, Llama

        self.model = Llama(SHAPES["8B"], scale)
        self.model.fill(seed)
        self.model.synchronize()

    def answer(self, prompt):
        return self.model.answer(self.model.prompt(prompt), TOKENS)


def serve(options):
    """A server: one request at a time uses the model, in the order in which they come."""
    model = TorchModel(options.seed, options.scale) if options.model == "torch" else PlainModel(options.seed)
    lock = threading.Lock()

    def answer(path):
        with lock:
            return json.dumps(list(model.answer(int(path[1:]))))

    gpu_commands.serve(answer)


# ---- What asks


class Server:
    def __init__(self, options, name):
        self.name, self.options = name, options
        words = [os.path.join(options.build, "bin", "gpu-run"), "--name", f"server-{name}", "--on-touch", "wake", "--make-room",
                 "--min-awake", f"{int(options.min_awake * 1000)}ms", "--", sys.executable, os.path.abspath(__file__), "--serve",
                 "--model", options.model, "--scale", str(options.scale), "--seed", str(NAMES.index(name) + 1)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().strip()
        if not self.port:
            raise SystemExit(f"server {name} did not start")
        self.waits, self.wrong, self.unanswered, self.slept = [], [], [], 0
        self.expected = [self.ask(prompt)[0] for prompt in range(PROMPTS)]
        self.alone = statistics.median(self.ask(prompt)[1] for prompt in range(PROMPTS))

    def ask(self, prompt):
        start = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{prompt}", timeout=PATIENCE) as reply:
            tokens = json.loads(reply.read())
        return tokens, time.monotonic() - start

    def command(self, name, *words, fails=False):
        done = subprocess.run([os.path.join(self.options.build, "bin", name), str(self.process.pid), *words],
                              stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0 and not fails:
            raise SystemExit(f"{name} ended with {done.returncode}")
        return done.stdout

    def note(self, prompt):
        """One request, and what came of it."""
        try:
            tokens, seconds = self.ask(prompt)
        except OSError as error:
            self.unanswered.append(str(error))
            return
        self.waits.append(seconds)
        if tokens != self.expected[prompt]:
            self.wrong.append((prompt, tokens))


def watch(options, servers, is_over):
    """Counts how often each falls asleep; looking wakes nobody."""
    before = {}
    while not is_over.wait(0.05):
        for server in servers:
            listed = json.loads(server.command("gpu-ps", "--json", fails=True) or "{}").get("processes", [])
            state = listed[0].get("state") if listed else None
            server.slept += state == "asleep" and before.get(server) == "awake"
            before[server] = state


def ask_at_random(options, servers):
    chosen, threads = random.Random(options.seed), []
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        time.sleep(chosen.expovariate(1 / options.pause))
        server, prompt = chosen.choice(servers), chosen.randrange(PROMPTS)
        threads.append(threading.Thread(target=server.note, args=(prompt,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def table(servers):
    lines = ["| server | requests | slept | answer alone, s | wait: median, s | longest, s | wrong |", "|---" * 7 + "|"]
    for s in servers:
        lines.append(f"| {s.name} | {len(s.waits)} | {s.slept} | {s.alone:.3f} | {statistics.median(s.waits or [0]):.3f} | "
                     f"{max(s.waits or [0]):.3f} | {len(s.wrong) + len(s.unanswered)} |")
    return "\n".join(lines)


def run(options, servers, others):
    for name in NAMES: # one after the other has the GPU for itself
        for server in servers:
            server.command("gpu-sleep", "--quiet")
        servers.append(Server(options, name))
    filler = subprocess.Popen([sys.executable, os.path.join(HERE, "fill_gpu.py"), str(options.spare)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    others.append(filler)
    if int(filler.stdout.readline() or 0) == 0:
        raise SystemExit("the third process found no memory")
    refused = subprocess.run([os.path.join(options.build, "bin", "gpu-wake"), str(servers[0].process.pid), "--quiet"],
                             stderr=subprocess.DEVNULL, check=False).returncode
    is_over = threading.Event()
    watcher = threading.Thread(target=watch, args=(options, servers, is_over))
    watcher.start()
    ask_at_random(options, servers)
    is_over.set()
    watcher.join()
    return refused


def parse_options():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="for which requests come")
    parser.add_argument("--pause", type=float, default=2, help="seconds between two requests, on average")
    parser.add_argument("--min-awake", type=float, default=2, help="seconds for which who was woken is left alone")
    parser.add_argument("--model", choices=("torch", "plain"), default="torch")
    parser.add_argument("--scale", type=float, default=1, help="of the models")
    parser.add_argument("--spare", type=int, default=SPARE, help="bytes of GPU memory that the third process leaves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    return options


def main():
    options = parse_options()
    if options.serve:
        return serve(options)
    servers, others = [], []
    try:
        refused = run(options, servers, others)
    finally:
        for process in [server.process for server in servers] + others:
            process.kill()
            process.wait()
    print(f"{options.min_awake} s awake at least, requests for {options.seconds} s")
    print(table(servers))
    checks = {
        "both did not fit": refused == 7,
        "every request was answered": not any(server.unanswered for server in servers),
        "every answer was right": not any(server.wrong for server in servers),
        "the servers answer differently": servers[0].expected != servers[1].expected,
        "each slept": all(server.slept > 0 for server in servers),
        "each was asked": all(server.waits for server in servers),
    }
    return gpu_commands.finish(
        options, {"seconds": options.seconds, "min_awake": options.min_awake,
                  "servers": [{"name": s.name, "alone": s.alone, "waits": s.waits, "slept": s.slept, "wrong": s.wrong[:2],
                               "unanswered": s.unanswered[:2]} for s in servers]}, checks)


if __name__ == "__main__":
    sys.exit(main())
