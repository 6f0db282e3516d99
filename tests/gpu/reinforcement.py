#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Reinforcement learning on one GPU: a generator writes tokens and sleeps while a trainer learns from them, then it wakes,
takes the trainer's weights and goes on. What is generated and learnt must be, bit for bit, what it is without sleeping.

Cases: `tags` and `saver` are one process that calls gpu_sleep or torch_memory_saver's stand-in. `saver` also compares the times
of pause and resume with those of torch_memory_saver's algorithm, and fails if ours are more than 5 % longer. `processes`
are a trainer and an engine, which sleep in turns and hand weights over by CUDA IPC.

Usage: reinforcement.py tags|saver|processes --build DIR. Exit status: 0 when all is as it must be.
"""

import argparse
import collections
import contextlib
import ctypes
import multiprocessing.connection
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

from gpu_commands import Driver, installed_packages

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "programs"))
import program  # noqa: E402
from torch_common import GIB, Decoder, add_tensors, make_deterministic, weighted_sum, words_of  # noqa: E402

import torch  # noqa: E402

ROUNDS = 10
LAYERS, WIDTH, HEADS, VOCABULARY = 8, 2048, 16, 32768  # 1 GiB of weights in bfloat16
BATCH, POSITIONS, TOKENS = 32, 1024, 64
CACHE = 4 * LAYERS * BATCH * POSITIONS * WIDTH  # bytes: 2 GiB
ASLEEP = 2.9 * GIB  # at least, of the generator
SECONDS = 60  # of each run
SLOWER = 1.05


class Awake:
    """Never sleeps."""

    def region(self, tag):
        """For `with`: what is allocated has this tag; with None it never sleeps."""
        return contextlib.nullcontext()

    def sleep(self, *tags):
        """All, if none is named. What the cache holds may be lost."""

    def wake(self, *tags):
        pass


class Package(Awake):
    def __init__(self):
        import gpu_sleep

        self._package = gpu_sleep
        gpu_sleep.policy("kv_cache", "discard")

    def region(self, tag):
        return self._package.tag(tag)

    def sleep(self, *tags):
        self._package.sleep(tags=tags)

    def wake(self, *tags):
        self._package.wake(tags)


class Saver(Awake):
    def __init__(self):
        from torch_memory_saver import torch_memory_saver

        self._saver = torch_memory_saver

    def region(self, tag):
        return self._saver.region(tag=tag, enable_cpu_backup=tag == "weights") if tag else self._saver.disable()

    def sleep(self, *tags):
        for tag in tags or [None]:
            self._saver.pause(tag)

    def wake(self, *tags):
        for tag in tags or [None]:
            self._saver.resume(tag)


class PlainSaver:
    """torch_memory_saver's algorithm, allocation by allocation, with pinned memory that lasts as long as the pause."""

    _PROPERTIES = (ctypes.c_int * 8)(1, 0, 1)  # CUmemAllocationProp: pinned, on device 0
    _ACCESS = (ctypes.c_int * 3)(1, 0, 3)  # CUmemAccessDesc: device 0 reads and writes

    def __init__(self, sizes):
        self._call, none = Driver().call, ctypes.c_size_t(0)
        self._blocks = [(ctypes.c_uint64(), ctypes.c_size_t(size), ctypes.c_uint64(), ctypes.c_void_p()) for size in sizes]
        for block in self._blocks:
            self._call("cuMemAddressReserve", ctypes.byref(block[0]), block[1], none, none, none)
            self._map(*block)

    def _map(self, address, size, handle, _):
        self._call("cuMemCreate", ctypes.byref(handle), size, self._PROPERTIES, ctypes.c_uint64(0))
        self._call("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        self._call("cuMemSetAccess", address, size, self._ACCESS, ctypes.c_size_t(1))

    def pause(self):
        for address, size, handle, host in self._blocks:
            if size.value < CACHE:
                self._call("cuMemAllocHost_v2", ctypes.byref(host), size)
                self._call("cuMemcpyDtoH_v2", host, address, size)
            self._call("cuMemUnmap", address, size)
            self._call("cuMemRelease", handle)

    def resume(self):
        for block in self._blocks:
            address, size, _, host = block
            self._map(*block)
            if size.value < CACHE:
                self._call("cuMemcpyHtoD_v2", address, host, size)
                self._call("cuMemFreeHost", host)


class TimedSaver(Saver):
    """Once all is back, the plain algorithm has its turn, on memory of its own in allocations of the same sizes."""

    def __init__(self):
        super().__init__()
        self._plain, self._seconds = None, collections.defaultdict(list)

    def _time(self, name, work, *arguments):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(*arguments)
        torch.cuda.synchronize()
        self._seconds[name].append(time.perf_counter() - start)

    def sleep(self, *tags):
        self._time("pause", super().sleep, *tags)

    def wake(self, *tags):
        self._time("resume", super().wake, *tags)
        if tags == ("kv_cache",):
            self._seconds["resume"][-2:] = [sum(self._seconds["resume"][-2:])]
            if self._plain is None:
                sizes = [each["total_size"] for each in torch.cuda.memory_snapshot() if any(each["segment_pool_id"])]
                assert sum(sizes) > ASLEEP and sum(size >= CACHE for size in sizes) == 1, sizes
                self._plain = PlainSaver(sizes)
            self._time("plain pause", self._plain.pause)
            self._time("plain resume", self._plain.resume)

    def compare(self):
        for name in ("pause", "resume"):
            ours, theirs = (statistics.median(self._seconds[which]) for which in (name, f"plain {name}"))
            print(f"{name}: {ours * 1e3:.1f} ms, {theirs * 1e3:.1f} ms by the plain algorithm, ratio {ours / theirs:.2f}; "
                  f"each time: {', '.join(f'{each * 1e3:.1f}' for each in self._seconds[name])}")
            assert ours <= SLOWER * theirs, f"{name} is slower"


WAYS = {way.__name__: way for way in (Awake, Package, Saver, TimedSaver)}
RUNS = {"tags": (["Awake"], ["Package"], ["Package", "gpu-run"]),
        "saver": (["Awake"], ["TimedSaver"]),
        "processes": (["Awake"], ["Saver"], ["Saver", "gpu-run"])}  # by case: the way, and what starts the program


def decoder(dtype):
    return Decoder(WIDTH, LAYERS, VOCABULARY, HEADS, device="cuda", dtype=dtype)


def new_cache():
    return torch.zeros(LAYERS, 2, BATCH, HEADS, POSITIONS, WIDTH // HEADS, device="cuda", dtype=torch.bfloat16)


def bits_of(tensors):
    return f"{[weighted_sum(words_of(each)) for each in tensors]}"


@torch.no_grad()
def generate(model, cache, number):
    """Tokens of the round, and text that tells every bit of the last scores and of the weights."""
    chance = torch.Generator("cuda").manual_seed(number)
    tokens = [(torch.arange(BATCH, device="cuda")[:, None] + number) % VOCABULARY]
    for position in range(TOKENS):
        scores = model(tokens[-1], cache, position)[:, -1].float()
        tokens.append((scores.softmax(1) / torch.empty_like(scores).exponential_(generator=chance)).argmax(1, keepdim=True))
    return torch.cat(tokens, 1), bits_of([scores, *model.parameters()])


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        self.model = decoder(torch.float32)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def train(self, tokens):
        """Two steps towards rows with many multiples of 7."""
        reward = (tokens[:, 1:] % 7 == 0).float().mean(1, keepdim=True)
        for _ in range(2):
            self._optimizer.zero_grad()
            surprise = torch.nn.functional.cross_entropy(
                self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(BATCH, -1)
            ((reward - reward.mean()) * surprise).mean().backward()
            self._optimizer.step()
        torch.cuda.synchronize()


@torch.no_grad()
def copy(sources, targets):
    for source, target in zip(sources, targets):
        target.copy_(source.view_as(target))
    torch.cuda.synchronize()


def sleep(way, least, *tags):
    free = torch.cuda.mem_get_info()[0]
    way.sleep(*tags)
    freed = torch.cuda.mem_get_info()[0] - free
    assert type(way) is Awake or freed > least, f"a sleep freed {freed} bytes"


def work_alone(way):
    digest, trainer = program.Digest(), Trainer()
    with way.region("weights"):
        generator = decoder(torch.bfloat16)
    with way.region("kv_cache"):
        cache = new_cache()
    copy(trainer.model.parameters(), generator.parameters())
    for number in range(ROUNDS):
        tokens, told = generate(generator, cache, number)
        digest.add(f"{tokens.tolist()} {told}")
        sleep(way, ASLEEP, "kv_cache", "weights")
        trainer.train(tokens)
        way.wake("weights")
        digest.add(bits_of(generator.parameters()))
        copy(trainer.model.parameters(), generator.parameters())
        way.wake("kv_cache")
    add_tensors(digest, generator.parameters())
    if isinstance(way, TimedSaver):
        way.compare()
    digest.finish()


def serve(way, requests, answers):
    """The engine: for each round it takes weights, generates, and sleeps."""
    make_deterministic()
    way, made = WAYS[way](), {}

    def make(tag, work):
        with way.region(tag):
            made[tag] = work()

    for thread in [threading.Thread(target=make, args=arguments) for arguments in (
            ("weights", lambda: decoder(torch.bfloat16)), ("kv_cache", new_cache))]:
        thread.start()
        thread.join()
    generator = made["weights"]
    way.sleep("kv_cache", "weights")
    for number in range(ROUNDS):
        weights = requests.get()
        way.wake("weights")
        woken = bits_of(generator.parameters())
        copy(weights.split([each.numel() for each in generator.parameters()]), generator.parameters())
        del weights
        answers.put("taken")
        requests.get()
        way.wake("kv_cache")
        tokens, told = generate(generator, made["kv_cache"], number)
        sleep(way, ASLEEP, "kv_cache", "weights")
        answers.put((tokens.tolist(), woken + told))


def train_beside(way, requests, answers):
    """The trainer, all of whose memory sleeps while the engine generates."""
    make_deterministic()
    way, digest, trainer = WAYS[way](), program.Digest(), Trainer()
    for _ in range(ROUNDS):
        parameters = list(trainer.model.parameters())
        sizes = [each.numel() for each in parameters]
        with way.region(None):
            weights = torch.empty(sum(sizes), device="cuda", dtype=torch.bfloat16)
        copy(parameters, weights.split(sizes))
        requests.put(weights)
        answers.get()
        del weights
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        sleep(way, ASLEEP // 2)
        requests.put("there is room")
        tokens, told = answers.get()
        way.wake()
        digest.add(f"{tokens} {told}")
        trainer.train(torch.tensor(tokens, device="cuda"))
    add_tensors(digest, trainer.model.parameters())
    digest.finish()


def work_together(way, library):
    """As SGLang's and slime's launchers do: what they start preloads the library, in place of all else, and all of the
    trainer's memory is pausable, that of other threads as well."""
    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.SimpleQueue(), context.SimpleQueue()
    if way != "Awake":
        os.environ["LD_PRELOAD"] = library
    processes = [context.Process(target=target, args=(way, requests, answers), daemon=True) for target in (serve, train_beside)]
    processes[0].start()
    os.environ.update(TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")
    processes[1].start()
    multiprocessing.connection.wait([each.sentinel for each in processes])  # a first one has ended
    for each in processes:
        each.join(10)
    return int(any(each.exitcode != 0 for each in processes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=RUNS)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way and options.case == "processes":
        return work_together(options.way, options.library)
    if options.way:
        make_deterministic()
        return work_alone(WAYS[options.way]())
    outcomes = set()
    with installed_packages(options.build) as (environment, libraries):
        for way, *prefix in RUNS[options.case]:
            preloads = {"LD_PRELOAD": str(libraries["preload"])} if way == "TimedSaver" else {}
            command = [options.build / "bin" / prefix[0], "--"] if prefix else []
            done = subprocess.run(
                ["timeout", str(SECONDS), *command, sys.executable, __file__, options.case, "--build", options.build, "--way", way,
                 "--library", libraries["preload"]], env={**environment, **preloads}, stdout=subprocess.PIPE, text=True, check=False)
            *said, digest = done.stdout.splitlines() or ["no digest"]
            print(*said, f"{' '.join([*prefix, way])}: status {done.returncode}, {digest}", sep="\n", flush=True)
            outcomes.add((done.returncode, digest))
    return int(len(outcomes) != 1 or outcomes.pop()[0] != 0)


if __name__ == "__main__":
    sys.exit(main())
