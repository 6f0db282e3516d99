#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Two models take turns on one GPU: A, B, A, B, A, B. How long each switch takes, by each way to make room.

A has the shape of Qwen3-0.6B, B that of Llama-3-8B, with random weights; each is a process of its own, which knows nothing
of sleeping, but how to read its weights again. A switch lasts from its decision, the other model still on the GPU, to the
first token of the new one's answer. The answers must be those that the models give undisturbed. The ways:

  both      nobody leaves: what there is to gain by having room for both
  cold      the other process ends, and a new one starts: the weights are read from files in host memory (tmpfs), the
            fastest place that a restart can have
  host      level 1, contents in host memory: gpu-sleep the other, gpu-wake this one
  touch     the same, and the request itself wakes: gpu-sleep the other, then ask this one
  reload    level 2, weights dropped, and read again from the same files as those of `cold`
  tmpfs     contents in compressed files in host memory
  deep      host, and the CUDA context leaves too (gpu-sleep --deep)

Usage: switch_bench.py --build DIR [--ways LIST] [--switches 5] [--json FILE]. Exit status 0 when all answers were right.
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

sys.dont_write_bytecode = True
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [os.path.join(TESTS, "support"), os.path.join(TESTS, "gpu")]

from agent_tags import tagged  # noqa: E402
from gpu_commands import Driver  # noqa: E402

SMALL, LARGE = "0.6B", "8B"
PLAIN_BYTES = {SMALL: 1_192 << 20, LARGE: 16_060 << 20}
TOKENS = 8
PATIENCE = 180 # seconds for a server to end, or for a command
WAYS = ("both", "cold", "host", "touch", "reload", "tmpfs", "deep")
SLEEP_OPTIONS = {"touch": ["--on-touch", "wake"], "reload": ["--level", "2", "--yes", "--keep", "default"], "deep": ["--deep"]}


# ---- The process with a model: it reads its weights, and then one command a line; each is answered by a line of JSON.

class TorchModel:
    def __init__(self, options):
        from llama import SHAPES, Llama

        self.directory = options.directory
        self.model = Llama(SHAPES[options.serve])

    def make(self):
        self.model.fill()
        self.model.save(self.directory)

    def load(self):
        self.model.load(self.directory)

    def answer(self):
        return self.model.answer(self.model.prompt(1), TOKENS)


class PlainModel(Driver):
    """Memory that is only read: needs no package, and runs on the simulated driver too."""

    def __init__(self, options):
        super().__init__()
        self.path = os.path.join(options.directory, "weights.bin")
        self.bytes = int(PLAIN_BYTES[options.serve] * options.scale)
        self.sample = ctypes.create_string_buffer(4096)
        with tagged("weights"):
            self.weights = self.allocate(self.bytes).value
        self.key = self.allocate(4096).value # what no file has
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.key), random.Random(2).randbytes(4096), ctypes.c_size_t(4096))

    def make(self):
        with open(self.path, "wb") as file:
            file.write(random.Random(1).randbytes(self.bytes))

    def load(self):
        with open(self.path, "rb") as file:
            data = file.read()
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.weights), data, ctypes.c_size_t(len(data)))

    def answer(self):
        """Its tokens are sums of what its memory holds here and there."""
        token = self.read(self.key, 0)
        for number in range(TOKENS):
            token = self.read(self.weights + (self.bytes - 4096) * number // TOKENS, token)
            yield token

    def read(self, place, token):
        self.call("cuMemcpyDtoH_v2", self.sample, ctypes.c_uint64(place), ctypes.c_size_t(4096))
        return zlib.crc32(self.sample.raw, token)


def serve(options):
    model = (TorchModel if options.model == "torch" else PlainModel)(options)
    if options.make:
        model.make()
        return
    model.load()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        tokens, first = [], 0
        if line.strip() == "reload":
            model.load()
        else:
            for token in model.answer():
                tokens.append(token)
                first = first or time.perf_counter() - start
        print(json.dumps({"tokens": tokens, "first": first}), flush=True)


# ---- Who has them take turns

class Server:
    """A process with a model. `prefix` is a command that starts it."""

    def __init__(self, name, options, *more, prefix=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), "--serve", name, "--model", options.model, "--scale",
             str(options.scale), "--directory", os.path.join(options.directory, name), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a server has ended")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(PATIENCE) != 0:
            raise RuntimeError("a server has failed")


class Bench:
    def __init__(self, options):
        self.options = options
        self.expected, self.samples, self.servers = {}, {}, {}

    def command(self, name, *words):
        subprocess.run([os.path.join(self.options.build, "bin", name), *words, "--quiet"], timeout=PATIENCE, check=True)

    def sleep(self, way, name):
        files = ["--store", "file", "--dir", os.path.join(self.options.directory, "sleep")]
        options = files if way == "tmpfs" else SLEEP_OPTIONS.get(way, [])
        self.command("gpu-sleep", str(self.servers[name].process.pid), *options)

    def wake(self, way, name):
        self.command("gpu-wake", str(self.servers[name].process.pid))
        if way == "reload":
            self.servers[name].ask("reload")

    def generate(self, name):
        """Asks the model, and compares its answer. Returns the seconds to its first token, and to the last."""
        start = time.perf_counter()
        answer = self.servers[name].ask("generate")
        if answer["tokens"] != self.expected.setdefault(name, answer["tokens"]) or not any(answer["tokens"]):
            raise RuntimeError(f"the answer of {name} is {answer['tokens']}, and was {self.expected[name]}")
        return answer["first"], time.perf_counter() - start

    def switch(self, way, to, other):
        start = time.perf_counter()
        if way == "cold":
            self.servers.pop(other).end()
            self.start(to)
        elif way != "both":
            self.sleep(way, other)
            if way != "touch":
                self.wake(way, to)
        first, answered = self.generate(to)
        self.add(f"{way}: switch to {to}", time.perf_counter() - start - answered + first)
        self.add(f"{way}: first token of {to} afterwards", first)

    def add(self, name, seconds):
        self.samples.setdefault(name, []).append(seconds)

    def take_turns(self, way):
        """Begins with the small one on the GPU, alone where that is the point, and ends with both awake."""
        sleeps = way not in ("both", "cold")
        if sleeps:
            self.sleep(way, LARGE)
        for number in range(self.options.switches):
            self.switch(way, *((LARGE, SMALL) if number % 2 == 0 else (SMALL, LARGE)))
        for name, server in self.servers.items() if sleeps else ():
            self.wake(way, name)
            self.command("gpu-sleep", "--release-retained", str(server.process.pid))

    def start(self, name, prefix=()):
        self.servers[name] = Server(name, self.options, prefix=prefix)
        self.servers[name].answer()

    def end(self):
        while self.servers:
            self.servers.popitem()[1].end()

    def run(self):
        for name in (SMALL, LARGE):
            os.mkdir(os.path.join(self.options.directory, name))
            Server(name, self.options, "--make").end()
        if "cold" in self.options.ways:
            self.start(SMALL)
            self.generate(SMALL)
            self.take_turns("cold")
            self.end()
        for name in (SMALL, LARGE):
            self.start(name, (os.path.join(self.options.build, "bin", "gpu-run"), "--"))
            self.generate(name)
            self.add(f"{name} model: first token, awake", self.generate(name)[0])
        for way in WAYS:
            if way in self.options.ways and way != "cold":
                self.take_turns(way)
        self.end()

    def figures(self):
        """As figures.cpp writes them, so that compare.py reads them."""
        return [{"name": name, "unit": "s", "value": statistics.median(samples), "samples": samples}
                for name, samples in self.samples.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS, help="some of them, separated by commas")
    parser.add_argument("--switches", type=int, default=5, help="of each way")
    parser.add_argument("--model", choices=("torch", "plain"), default="torch", help="tests/support/llama.py, or memory alone")
    parser.add_argument("--scale", type=float, default=1, help="of plain models")
    parser.add_argument("--directory", default="/dev/shm", help="a directory in host memory (tmpfs)")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--serve", choices=PLAIN_BYTES, help="be the process with this model; of no use by hand")
    parser.add_argument("--make", action="store_true", help="make the files of its weights; likewise")
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    with tempfile.TemporaryDirectory(prefix="gpu-sleep-switch-", dir=options.directory) as options.directory:
        bench = Bench(options)
        try:
            bench.run()
        finally:
            for server in bench.servers.values():
                server.process.kill()
                server.process.wait()
            for figure in bench.figures():
                low, high = min(figure["samples"]), max(figure["samples"])
                print(f"{figure['name']:<56} {low:.3f} to {high:.3f} s")
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump({"program": "switch_bench", "setting": f"{options.model} models", "figures": bench.figures()},
                              file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
