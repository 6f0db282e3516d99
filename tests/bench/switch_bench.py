#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Two models take turns on one GPU: A, B, A, B, A, B. How long each switch takes, by each way to make room.

A has the shape of Qwen3-0.6B, B that of Llama-3-8B, with random weights; each is a process of its own (switch_server.py).
A switch lasts from its decision, the other model still on the GPU, to the first token of the new one's answer. The answers
must be those that the models give undisturbed. The ways:

  both      nobody leaves: what there is to gain by having room for both
  cold      the other process ends, and a new one starts: the weights are read from files in host memory (tmpfs), the
            fastest place that a restart can have
  host      level 1, contents in host memory: gpu-sleep the other, gpu-wake this one
  touch     the same, and the request itself wakes: gpu-sleep the other, then ask this one
  reload    level 2, weights dropped, and read again from the same files as those of `cold`
  tmpfs     contents in compressed files in host memory
  disk      contents in compressed files on a disk (--disk DIR)
  deep      host, and the CUDA context leaves too (gpu-sleep --deep; left out where the command cannot)

Usage: switch_bench.py --build DIR [--ways LIST] [--switches 5] [--json FILE]. Exit status 0 when all answers were right.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GB, GIB, MIB = 10**9, 1 << 30, 1 << 20
SMALL, LARGE = "0.6B", "8B"
PATIENCE = 180 # seconds for a server to begin, or for a command
IN_FILES = ("tmpfs", "disk")
SLOW = ("cold", "disk")
WAYS = ("both", "cold", "host", "touch", "reload", "tmpfs", "disk", "deep")


class Failure(Exception):
    pass


class Server:
    """A process with a model. `prefix` is a command that starts it."""

    def __init__(self, words, prefix=()):
        self.process = subprocess.Popen([*prefix, sys.executable, os.path.join(HERE, "switch_server.py"), *words],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = None

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure("a server has ended")
        return json.loads(line)

    def begin(self):
        """Waits until it has its model."""
        self.ready = self.answer()
        return self

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


class Switch:
    """One switch: seconds of its parts, and what was held at its end."""

    def __init__(self, way, to):
        self.way, self.to = way, to
        self.parts = {}
        self.host_bytes = self.file_bytes = 0
        self.seconds = 0

    @contextlib.contextmanager
    def timed(self, part):
        start = time.perf_counter()
        yield
        self.parts[part] = self.parts.get(part, 0) + time.perf_counter() - start

    def value(self):
        return {"way": self.way, "to": self.to, "seconds": self.seconds, "parts": self.parts,
                "host_bytes": self.host_bytes, "file_bytes": self.file_bytes}


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.began = time.monotonic()
        self.expected, self.switches, self.notes, self.warm = {}, [], [], {}
        self.weights = {name: os.path.join(scratch.memory, f"weights-{name}") for name in (SMALL, LARGE)}
        self.servers = {}

    # ---- The models

    def words(self, name):
        return ["--model", self.options.model, "--shape", name, "--weights", self.weights[name],
                "--scale", str(self.options.scale), "--device", self.options.device]

    def make_weights(self):
        makers = []
        for name, directory in self.weights.items():
            os.mkdir(directory)
            makers.append(Server([*self.words(name), "--make"]))
        for maker in makers:
            if maker.process.wait(PATIENCE) != 0:
                raise Failure("the weights could not be made")

    def start(self, name, prefix=()):
        return Server(self.words(name), prefix)

    def command(self, name, *words):
        done = subprocess.run([os.path.join(self.options.build, "bin", name), *words], stdout=subprocess.PIPE, text=True,
                              timeout=PATIENCE, check=False)
        if done.returncode != 0:
            raise Failure(f"{name} {' '.join(words)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def generate(self, name, server):
        """Asks the model, and compares its answer. Returns the seconds to its first token."""
        answer = server.ask("generate")
        expected = self.expected.setdefault(name, answer["tokens"])
        if answer["tokens"] != expected or not any(expected):
            raise Failure(f"the answer of {name} is {answer['tokens']}, and was {expected}")
        return answer["first_token_s"]

    # ---- One switch, by each way

    def restart(self, switch, other):
        with switch.timed("end"):
            self.servers.pop(other).end()
        with switch.timed("start"):
            self.servers[switch.to] = self.start(switch.to).begin()
        switch.parts["load"] = self.servers[switch.to].ready["load_s"]

    def sleep_options(self, way):
        if way in IN_FILES:
            return ["--store", "file", "--dir", os.path.join(getattr(self.scratch, way), "sleep")]
        return {"touch": ["--on-touch", "wake"], "reload": ["--level", "2", "--yes", "--keep", "default"], "deep": ["--deep"]}.get(way, [])

    def sleep(self, way, name):
        self.command("gpu-sleep", str(self.servers[name].process.pid), *self.sleep_options(way), "--quiet")

    def wake(self, switch):
        server = self.servers[switch.to]
        if switch.way != "touch":
            with switch.timed("wake"):
                self.command("gpu-wake", str(server.process.pid), "--quiet")
        if switch.way == "reload":
            with switch.timed("load"):
                server.ask("reload")

    def held(self, switch):
        """What the host holds for both, now that one of them sleeps."""
        for server in self.servers.values():
            report = json.loads(self.command("gpu-ps", str(server.process.pid), "--json"))["processes"][0]["report"]
            switch.host_bytes += report["host_bytes"] + report["retained_bytes"]
            switch.file_bytes += report["file_bytes"]

    def switch(self, way, to, other):
        switch = Switch(way, to)
        start = time.perf_counter()
        if way == "cold":
            self.restart(switch, other)
        elif way != "both":
            with switch.timed("sleep"):
                self.sleep(way, other)
            self.wake(switch)
        with switch.timed("answer"):
            first = self.generate(to, self.servers[to])
        answered = switch.parts.pop("answer")
        switch.parts["first token"] = first
        switch.seconds = time.perf_counter() - start - answered + first
        if way not in ("both", "cold"):
            self.held(switch)
        return switch

    # ---- A whole turn: A, B, A, B, A, B

    def take_turns(self, way):
        """Begins with the small one on the GPU, alone where that is the point."""
        count = self.options.slow_switches if way in SLOW else self.options.switches
        if way not in ("both", "cold"):
            self.sleep(way, LARGE)
        self.generate(SMALL, self.servers[SMALL])
        for number in range(count):
            to, other = (LARGE, SMALL) if number % 2 == 0 else (SMALL, LARGE)
            switch = self.switch(way, to, other)
            self.switches.append(switch)
            print(f"  {way}: to {to} {switch.seconds:.3f} s ({tell(switch.parts)})", file=sys.stderr, flush=True)
        if way not in ("both", "cold"):
            for server in self.servers.values():
                self.command("gpu-wake", str(server.process.pid), "--quiet")
                if way == "reload":
                    server.ask("reload")
                self.command("gpu-sleep", "--release-retained", str(server.process.pid), "--quiet")

    def reason_against(self, way):
        """Why a way is left out, or nothing."""
        if self.options.budget and time.monotonic() - self.began > self.options.budget:
            return "the time is over"
        if way == "deep" and "--deep" not in self.command("gpu-sleep", "--help-all"):
            return "gpu-sleep has no --deep"
        if way in IN_FILES:
            needed = sum(directory_bytes(path) for path in self.weights.values())
            if shutil.disk_usage(getattr(self.scratch, way)).free < needed:
                return f"its directory has less than {needed / GB:.0f} GB"
        return ""

    def run(self, ways):
        self.make_weights()
        if "cold" in ways:
            self.servers = {SMALL: self.start(SMALL).begin()}
            self.generate(SMALL, self.servers[SMALL])
            self.take_turns("cold")
            self.end_servers()
        gpu_run = (os.path.join(self.options.build, "bin", "gpu-run"), "--")
        self.servers = {name: self.start(name, gpu_run) for name in (SMALL, LARGE)}
        for name, server in self.servers.items():
            server.begin()
            self.generate(name, server)
            self.warm[name] = [self.generate(name, server) for _ in range(3)]
        for way in (way for way in ways if way != "cold"):
            reason = self.reason_against(way)
            if reason:
                self.notes.append(f"{way} is left out: {reason}")
                continue
            self.take_turns(way)
        self.end_servers()

    def end_servers(self):
        for server in self.servers.values():
            server.end()
        self.servers = {}

    # ---- What came out

    def of(self, way, to):
        return [switch for switch in self.switches if (switch.way, switch.to) == (way, to)]

    def figures(self):
        """As figures.cpp writes them, so that compare.py reads them."""
        found = []

        def add(name, unit, samples):
            if samples:
                found.append({"name": name, "unit": unit, "value": statistics.median(samples), "samples": samples})

        for name, samples in self.warm.items():
            add(f"{name} model: first token, awake", "s", samples)
        for way in WAYS:
            for to in (SMALL, LARGE):
                switches = self.of(way, to)
                add(f"{way}: switch to {to}", "s", [s.seconds for s in switches])
                add(f"{way}: first token of {to} afterwards", "s", [s.parts["first token"] for s in switches])
                for part in ("sleep", "wake", "load", "start"):
                    add(f"{way}: switch to {to}, its {part}", "s", [s.parts[part] for s in switches if part in s.parts])
            switches = [s for s in self.switches if s.way == way]
            if switches and way not in ("both", "cold"):
                add(f"{way}: host memory held", "GB", [s.host_bytes / GB for s in switches])
                add(f"{way}: in files", "GB", [s.file_bytes / GB for s in switches])
        return found

    def table(self):
        lines = [("way", f"to {SMALL}, s", f"to {LARGE}, s", "its first token, s", "all switches, s", "host memory, GB",
                  "files, GB")]
        for way in WAYS:
            large, small = self.of(way, LARGE), self.of(way, SMALL)
            all_of = large + small
            if not all_of:
                continue
            host = max(s.host_bytes for s in all_of) / GB
            files = max(s.file_bytes for s in all_of) / GB
            lines.append((way, spread([s.seconds for s in small]), spread([s.seconds for s in large]),
                          spread([s.parts["first token"] for s in large]), f"{sum(s.seconds for s in all_of):.2f} ({len(all_of)})",
                          f"{host:.1f}", f"{files:.1f}"))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        rows = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
        rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(rows)


class Scratch:
    """Where files lie, all removed at the end."""

    def __init__(self, stack, options):
        def place(parent):
            return stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-sleep-switch-", dir=parent))

        self.memory = self.tmpfs = place(options.memory)
        self.disk = place(options.disk)


def tell(parts):
    return ", ".join(f"{part} {seconds:.3f}" for part, seconds in parts.items())


def spread(samples):
    if not samples:
        return "-"
    low, high = min(samples), max(samples)
    return f"{low:.3f} to {high:.3f}" if len(samples) > 1 else f"{low:.3f}"


def directory_bytes(path):
    return sum(entry.stat().st_size for entry in os.scandir(path))


def touch_host(options):
    """Has host memory touched in a process that ends: a virtual machine may have to grow for it."""
    program = os.path.join(options.build, "bin", "sleep_bench")
    if options.touch_gib and os.path.exists(program):
        subprocess.run([program, "--touch", str(int(options.touch_gib * GIB))], check=False)


def stop(*_):
    raise Failure("it was told to end")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, separated by commas")
    parser.add_argument("--switches", type=int, default=5, help="of each way")
    parser.add_argument("--slow-switches", type=int, default=5, help=f"of {' and '.join(SLOW)}, which take long")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which no further way begins")
    parser.add_argument("--model", choices=("torch", "plain"), default="torch", help="as switch_server.py --help says")
    parser.add_argument("--device", default="cuda", help="of the torch model")
    parser.add_argument("--scale", type=float, default=1, help="of the models")
    parser.add_argument("--memory", default="/dev/shm", help="a directory in host memory (tmpfs)")
    parser.add_argument("--disk", default="/var/tmp", help="a directory on a disk")
    parser.add_argument("--touch-gib", type=float, default=0, help="of host memory, touched beforehand")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    unknown = set(options.ways.split(",")) - set(WAYS)
    if unknown:
        parser.error(f"there is no way {', '.join(sorted(unknown))}")
    options.build = os.path.abspath(options.build)
    return options


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, stop) # what was measured until then is told
    problem = ""
    with contextlib.ExitStack() as stack:
        bench = Bench(options, Scratch(stack, options))
        touch_host(options)
        try:
            bench.run([way for way in WAYS if way in options.ways.split(",")])
        except (Failure, subprocess.TimeoutExpired) as failure:
            problem = str(failure)
        finally:
            for server in bench.servers.values():
                server.process.kill()
                server.process.wait()
    if bench.switches:
        print(bench.table())
    for name, samples in bench.warm.items():
        print(f"{name}: first token awake {spread(samples)} s")
    for note in bench.notes:
        print(f"Note: {note}")
    if options.json:
        setting = f"{options.model} models, sizes times {options.scale}"
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"program": "switch_bench", "setting": setting, "figures": bench.figures(), "notes": bench.notes,
                       "switches": [switch.value() for switch in bench.switches]}, file, indent=2)
    if problem:
        print(f"switch_bench: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
