#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""How fast a decoder of 8 billion parameters runs while a part of its weights lies in host memory, on a real GPU: moved there
by gpu-sleep --live, and in the ways of serving engines, with the same weights. And what the moves take.

The ways: read in place from page-locked memory; copied into a buffer before use, by the stream that uses them; the next
layer copied by a second stream while one computes. The link's limit is what a copy of page-locked memory takes for the
bytes that a step reads. The program runs under gpu-run, whatever the way.

Usage: live.py --build DIR [--quick] [--json FILE]. Exit status 0 when all was measured and each bit of it is right.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "support"), str(TESTS / "gpu")]

import gpu_commands  # noqa: E402
from agent_tags import tagged  # noqa: E402

GIB = 1 << 30
NOMINAL_LINK = 55e9  # bytes a second, and all there is where the link cannot be measured
PART = 4  # GB, for what is measured with one part offloaded
ROWS = (16, 256, 2048, 8192)  # of products with square weights
SIDE = 8192
WAYS = {"gpu-sleep": "gpu-sleep", "InPlace": "read in place", "CopiedIn": "copied in before use", "Prefetched": "next layer copied ahead"}
LIMIT = "the link's limit"


class Results:
    """Figures by name, printed as they come; checks; and what went wrong, of which the rest does not suffer."""

    def __init__(self):
        self.figures, self.checks, self.reports = [], {}, {}

    def add(self, name, unit, value):
        self.figures.append({"name": name, "unit": unit, "value": value, "samples": [value]})
        print(f"{name:<60} {value:.4g} {unit}", flush=True)
        return value

    def check(self, name, is_right):
        self.checks[name] = bool(is_right)
        print(f"{name:<60} {'right' if is_right else 'WRONG'}", flush=True)

    def check_answer(self, name, answers):
        """`answers`: whether tokens and bits are the same. Tokens must be, for all; bits for gpu-sleep."""
        self.check(f"{name}: tokens", answers[0])
        if name.startswith("gpu-sleep"):
            self.check(f"{name}: bits", answers[1])
        elif not answers[1]:
            print(f"{name}: the tokens are the same, and not all bits of keys and values", flush=True)

    def report(self, name, report):
        self.reports[name] = report
        for parts in (report["times"], *(device["steps"] for device in report["devices"])):
            print(f"{name}:", ", ".join(f"{part} {seconds:.3f}" for part, seconds in parts.items() if seconds), flush=True)

    @contextlib.contextmanager
    def attempt(self, what):
        try:
            yield
        except (Exception, SystemExit):
            traceback.print_exc(file=sys.stdout)
            self.check(f"{what} can be measured", False)

    def value(self, name):
        return next((figure["value"] for figure in self.figures if figure["name"] == name), float("nan"))

    def cell(self, name, form, unit=""):
        value = self.value(name)
        return form.format(value) + unit if value == value else "-"


def used_as_the_driver_says():
    """MiB of the first GPU."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)


class Bench:
    def __init__(self, options):
        import live_decoder
        import torch

        torch.set_grad_enabled(False)
        self.torch, self.ways, self.options = torch, live_decoder, options
        self.sizes = [PART] if options.quick else [1, PART, 8, 16]
        self.tokens = 8 if options.quick else 24
        self.results = Results()
        self.model = live_decoder.Decoder()
        self.link, self.expected, self.expected_long = NOMINAL_LINK, None, None

    def command(self, name, *words):
        """Runs it for this process, from outside. Returns its report."""
        process, seconds = gpu_commands.on_process(self.options.build, name, str(os.getpid()), *words, "--timeout", "120s")
        return {**process["report"], "command_seconds": seconds}

    def offload(self, size):
        """Until so many bytes of the weights are in host memory. Returns how many are."""
        report = self.command("gpu-sleep", "--live", "--tags", "weights", "--bytes", f"{size}B")
        return sum(tag["host_backed_bytes"] for tag in report["tags"] if tag["tag"] == "weights")

    # ---- Figures

    def measure_link(self):
        pinned = self.torch.empty(GIB, dtype=self.torch.uint8, pin_memory=True).random_()
        target = self.torch.empty(GIB, dtype=self.torch.uint8, device="cuda")
        took = min(self.seconds_of(lambda: target.copy_(pinned, non_blocking=True)) for _ in range(5))
        self.link = self.results.add("link", "GB/s", GIB / took / 1e9) * 1e9

    def seconds_of(self, work):
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def decode(self, way, size, read):
        """Of `size` GB offloaded, of which a step reads `read` bytes."""
        name = f"{way}, {size} GB"
        answer, took = self.model.decode(self.tokens)
        self.results.check_answer(name, self.ways.same(answer, self.expected))
        speed = self.results.add(name, "tokens/s", self.tokens / took)
        self.results.add(f"{name}: read by a step", "GB", read / 1e9)
        self.results.add(f"{name}: of the link's limit", "x", speed * read / self.link)
        self.results.add(f"{name}: of that of a link of 55 GB/s", "x", speed * read / NOMINAL_LINK)

    def read_long_prompt(self, way):
        answer, took = self.model.read_long_prompt()
        name = f"{way}, prompt of {self.ways.LONG_PROMPT} tokens"
        self.results.check_answer(name, self.ways.same(answer, self.expected_long))
        self.results.add(name, "s", took)

    def measure_awake(self):
        self.expected, took = self.model.decode(self.tokens)
        self.results.add("awake", "tokens/s", self.tokens / took)
        print("tokens:", self.expected[0].tolist(), flush=True)
        again, _ = self.model.decode(self.tokens)
        self.results.check("awake: the same twice", all(self.ways.same(again, self.expected)))
        self.expected_long, took = self.model.read_long_prompt()
        self.results.add(f"awake, prompt of {self.ways.LONG_PROMPT} tokens", "s", took)

    def measure_products(self):
        """Products with large weights, which gpu-sleep has moved, and as they are on the GPU."""
        torch = self.torch
        self.pool = torch.cuda.MemPool()
        with tagged("products"), torch.cuda.use_mem_pool(self.pool):
            weights = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
        size = len(weights) * SIDE * SIDE * 2
        inputs = {rows: torch.randn(rows, SIDE, dtype=torch.bfloat16, device="cuda") for rows in ROWS}
        outputs = {rows: torch.empty_like(each) for rows, each in inputs.items()}

        def multiply(rows):
            for weight in weights:
                torch.mm(inputs[rows], weight, out=outputs[rows])

        def measure(rows):
            return min(self.seconds_of(lambda: multiply(rows)) for _ in range(3)), outputs[rows].clone()

        on_gpu = {rows: measure(rows) for rows in ROWS}
        self.command("gpu-sleep", "--live", "--tags", "products")
        for rows, (least, expected) in on_gpu.items():
            took, product = measure(rows)
            name = f"products of {rows} rows"
            self.results.check(f"gpu-sleep, {name}: bits", torch.equal(product.view(torch.int16), expected.view(torch.int16)))
            self.results.add(f"{name}, on the GPU", "ms", least * 1e3)
            self.results.add(name, "GB/s", size / took / 1e9)
            self.results.add(f"{name}: of the limit", "x", max(size / self.link, least) / took)
            self.results.add(f"{name}: copied in first", "GB/s", size / (size / self.link + least) / 1e9)
        self.command("gpu-wake")

    def while_it_decodes(self, name, *words):
        """Runs a command meanwhile. Returns its report and the seconds of each token."""
        found, took = [], []

        def run():
            with self.results.attempt(f"{name} {' '.join(words)}"):
                found.append(self.command(name, *words))

        self.model.read_prompt()
        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            self.model.rewind()
            took += [self.seconds_of(self.model.step) for _ in range(self.tokens)]
            answer = self.model.answer_of(self.tokens)
            self.results.checks["the same while weights move"] = (
                self.results.checks.get("the same while weights move", True) and all(self.ways.same(answer, self.expected)))
        thread.join()
        return found[0], took

    def measure_moves(self):
        """4 GiB out and in, while it decodes."""
        moves = {"out": ("gpu-sleep", "--live", "--tags", "weights", "--bytes", "4GiB"), "in": ("gpu-wake",)}
        for way, words in moves.items():
            free, used = self.torch.cuda.mem_get_info()[0], used_as_the_driver_says()
            report, took = self.while_it_decodes(*words)
            self.results.report(f"move {way}", report)
            self.results.add(f"move {way}", "s", report["command_seconds"])
            self.results.add(f"move {way}: longest pause", "ms", report["longest_pause_seconds"] * 1e3)
            self.results.add(f"move {way}: longest token", "ms", max(took) * 1e3)
            self.results.add(f"move {way}: longest token but it", "ms", sorted(took)[-2] * 1e3)
            self.results.add(f"move {way}: of it in host memory", "GiB",
                             sum(tag["host_backed_bytes"] for tag in report["tags"]) / GIB)
            self.results.add(f"move {way}: freed, cudaMemGetInfo", "GiB", (self.torch.cuda.mem_get_info()[0] - free) / GIB)
            self.results.add(f"move {way}: freed, nvidia-smi", "GiB", (used - used_as_the_driver_says()) / 1024)

    def measure_gpu_sleep(self):
        reads_all = self.model.read_by_a_step(self.model.own)
        for size in self.sizes:
            with self.results.attempt(f"gpu-sleep, {size} GB"):
                start = time.perf_counter()
                moved = self.offload(size * 10**9)
                self.results.add(f"gpu-sleep, {size} GB: moved more, idle", "s", time.perf_counter() - start)
                self.results.add(f"gpu-sleep, {size} GB: in host memory", "GB", moved / 1e9)
                self.decode("gpu-sleep", size, min(moved, reads_all))
                if size == PART:
                    self.read_long_prompt("gpu-sleep")
        with self.results.attempt("gpu-wake"):
            free = self.torch.cuda.mem_get_info()[0]
            self.results.add("moved back, idle", "s", self.command("gpu-wake")["command_seconds"])
            self.results.add("moved back: used again", "GB", (free - self.torch.cuda.mem_get_info()[0]) / 1e9)
            answer, took = self.model.decode(self.tokens)
            self.results.check_answer("gpu-sleep, moved back", self.ways.same(answer, self.expected))
            self.results.add("moved back", "tokens/s", self.tokens / took)

    def measure_way(self, kind, host):
        way = WAYS[kind]
        for size in self.sizes:
            with self.results.attempt(f"{way}, {size} GB"):
                names = self.model.first(size * 10**9)
                self.model.use(getattr(self.ways, kind)(self.model.own, names, host))
                self.decode(way, size, self.model.read_by_a_step(names))
                if size == PART:
                    self.read_long_prompt(way)
        self.model.weights = self.model.own

    def run(self):
        results = self.results
        print(f"{self.torch.cuda.get_device_name(0)}, PyTorch {self.torch.__version__}, "
              f"{len(os.sched_getaffinity(0))} cores, {self.model.total / 1e9:.2f} GB of weights", flush=True)
        with results.attempt("the link"):
            self.measure_link()
        with results.attempt("the model awake"):
            self.measure_awake()
        with results.attempt("moves"):
            self.measure_moves()
        with results.attempt("products"):
            self.measure_products()
        self.measure_gpu_sleep()
        host = self.ways.HostCopies(self.model.own)
        for kind in list(WAYS)[1:]:
            self.measure_way(kind, host)
        self.print_tables()

    # ---- Tables of RESULTS.md

    def print_tables(self):
        cell = self.results.cell
        print(f"\n| offloaded | {' | '.join(WAYS.values())} | {LIMIT} |\n|{' --- |' * (len(WAYS) + 2)}")
        for size in self.sizes:
            limit = self.link / self.model.read_by_a_step(self.model.first(size * 10**9))
            speeds = [cell(f"{way}, {size} GB", "{:.3g}") + cell(f"{way}, {size} GB: of the link's limit", " ({:.2f})")
                      for way in WAYS.values()]
            print(f"| {size} GB | {' | '.join(speeds)} | {limit:.3g} |")
        long = f"prompt of {self.ways.LONG_PROMPT} tokens"
        rows = [
            ("awake", cell("awake", "{:.4g}", " tokens/s"), ""),
            ("4 GiB out / in while it decodes",
             f"{cell('move out', '{:.2f}')} / {cell('move in', '{:.2f} s')}", "1.0 / 0.1 s"),
            ("longest pause, out / in",
             f"{cell('move out: longest pause', '{:.1f}')} / {cell('move in: longest pause', '{:.1f} ms')}", "15 / 10 ms"),
            ("longest token meanwhile, out / in",
             f"{cell('move out: longest token', '{:.0f}')} / {cell('move in: longest token', '{:.0f} ms')}", ""),
            ("in host memory / freed, cudaMemGetInfo / freed, nvidia-smi",
             " / ".join(cell(f"move out: {what}", "{:.3f}")
                        for what in ("of it in host memory", "freed, cudaMemGetInfo", "freed, nvidia-smi")) + " GiB", "exact"),
            (f"{long}, {PART} GB offloaded: " + " / ".join(WAYS.values()),
             " / ".join(cell(f"{way}, {long}", "{:.3f}") for way in WAYS.values()) + " s", "as read in place"),
            ("the same awake", cell(f"awake, {long}", "{:.3f}", " s"), ""),
            *((f"products of {rows} rows / copied in first",
               f"{cell(f'products of {rows} rows', '{:.1f}')} / {cell(f'products of {rows} rows: copied in first', '{:.1f}')} GB/s, "
               + cell(f"products of {rows} rows: of the limit", "{:.2f} of the limit"), "0.9 of the limit") for rows in ROWS)]
        print("\n| what | measured | aim |\n| --- | --- | --- |")
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print(flush=True)


def program(options):
    """Runs under gpu-run."""
    start = time.monotonic()
    bench = Bench(options)
    bench.run()
    print(f"{time.monotonic() - start:.0f} s in all")
    results = bench.results
    wrong = [name for name, is_right in results.checks.items() if not is_right]
    print(f"{len(results.checks) - len(wrong)} checks are right" + "".join(f"\nWRONG: {name}" for name in wrong), flush=True)
    if options.json:
        setting = f"{bench.torch.cuda.get_device_name(0)}, PyTorch {bench.torch.__version__}"
        pathlib.Path(options.json).write_text(json.dumps({"program": "live", "setting": setting, "figures": results.figures,
                                                          "checks": results.checks, "reports": results.reports}, indent=1),
                                              encoding="utf-8")
    return 1 if wrong else 0


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {PART} GB, and fewer tokens")
    return gpu_commands.under_gpu_run(parser, program)


if __name__ == "__main__":
    sys.exit(main())
