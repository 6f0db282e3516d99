#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""How fast gpu_sleep.torch.reload() fills a model again from a file in the page cache, on a real GPU, and whether each bit
is right: beside reading the file alone, copying alone, and the safetensors package with copy_().

The model has the shapes of one of 8 billion parameters, and more or fewer layers. It is a program under gpu-run, which
drops its weights: once it reads them again after the wake, once in a function of on_wake().

Usage: torch_reload.py --build DIR [--gib 14.96] [--within SECONDS] [--json FILE]. Exit status 0 when each bit is right, and
the fastest reload took no longer than SECONDS for each 16 GB.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import gpu_commands

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "agent/python"))
import gpu_sleep  # noqa: E402
import gpu_sleep.torch  # noqa: E402

GIB = 1 << 30
MIB = 1 << 20
ROUNDS = 3
LAYER = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096), "gate": (14336, 4096),
         "up": (14336, 4096), "down": (4096, 14336), "norm1": (4096,), "norm2": (4096,)}
LAYER_BYTES = 2 * sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in LAYER.values())


def shapes_of(gib):
    """The tensors' shapes by name, of 2 bytes each element."""
    vocabulary = int(128256 * min(1.0, gib / 15))
    layers = max(1, round((gib * GIB - 2 * 2 * vocabulary * 4096) / LAYER_BYTES))
    shapes = {"embedding": (vocabulary, 4096)}
    shapes.update({f"layers.{i}.{name}": shape for i in range(layers) for name, shape in LAYER.items()})
    return {**shapes, "norm": (4096,), "head": (vocabulary, 4096)}


def seconds_of(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_of(work):
    return min(seconds_of(work) for _ in range(ROUNDS))


def read_in_parallel(file, readers, piece):
    size = os.path.getsize(file)
    descriptor = os.open(file, os.O_RDONLY)

    def read(reader):
        buffer = bytearray(piece)
        for first in range(reader * piece, size, readers * piece):
            os.preadv(descriptor, [buffer], first)

    with concurrent.futures.ThreadPoolExecutor(readers) as executor:
        list(executor.map(read, range(readers)))
    os.close(descriptor)


class Model:
    """Tensors of the tag weights, with random bits, and a copy of them that does not sleep."""

    def __init__(self, torch, gib):
        self._torch = torch
        with gpu_sleep.tag("weights"):
            self.tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda")
                            for name, shape in shapes_of(gib).items()}
        for tensor in self.tensors.values():
            tensor.view(torch.int16).random_(-30000, 30000)
        self._expected = {name: tensor.view(torch.int16).clone() for name, tensor in self.tensors.items()}
        self.bytes = sum(tensor.numel() * 2 for tensor in self.tensors.values())

    def clear(self):
        for tensor in self.tensors.values():
            tensor.zero_()
        self._torch.cuda.synchronize()

    def is_right(self):
        return all(self._torch.equal(tensor.view(self._torch.int16), self._expected[name])
                   for name, tensor in self.tensors.items())

    def is_empty(self):
        return not any(bool(tensor.view(self._torch.int16).any()) for tensor in self.tensors.values())


def measure(torch, model, file):
    """Seconds by what is measured, and what is right."""
    import safetensors

    seconds, checks = {}, {}

    def copy_by_package():
        with safetensors.safe_open(file, framework="pt") as opened:
            for name, tensor in model.tensors.items():
                tensor.copy_(opened.get_tensor(name))
        torch.cuda.synchronize()

    def copy_alone():
        for _ in range(model.bytes // source.numel()):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    def reload():
        gpu_sleep.torch.reload(model.tensors, file, tags="weights")

    def checked(name, work):
        model.clear()
        took = seconds_of(work)
        checks[name] = checks.get(name, True) and model.is_right()
        seconds[name] = min(took, seconds.get(name, took))

    subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)
    seconds["cat file > /dev/null"] = best_of(lambda: subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True))
    readers, piece = gpu_sleep.torch._READERS, gpu_sleep.torch._PIECE
    seconds[f"read by {readers} threads, no copy"] = best_of(lambda: read_in_parallel(file, readers, piece))
    source = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True).random_()
    target = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    copy_alone()
    seconds["copy from pinned memory, no read"] = best_of(copy_alone) * model.bytes / (
        model.bytes // source.numel() * source.numel())
    del source, target
    checked("safetensors and copy_()", copy_by_package)
    checked("reload, the first", reload)
    for _ in range(ROUNDS):
        checked("reload, the best of later ones", reload)
    return seconds, checks


def sleep_and_reload(model, file, checks):
    """The memory is dropped: read again after the wake, and by a function of on_wake(). Returns what the latter took."""
    gpu_sleep.sleep(2, tags="weights")
    gpu_sleep.wake()
    checks["dropped weights read as zero"] = model.is_empty()
    gpu_sleep.torch.reload(model.tensors, file, tags="weights")
    checks["reload after a sleep that dropped"] = model.is_right()
    took = []

    @gpu_sleep.on_wake
    def refill(event):
        took.append(seconds_of(lambda: gpu_sleep.torch.reload(model.tensors, file, tags=event.dropped_tags)))

    gpu_sleep.sleep(2, tags="weights")
    gpu_sleep.wake()
    gpu_sleep.remove_callback(refill)
    checks["reload in a function of on_wake()"] = len(took) == 1 and model.is_right()
    tags = {tag.tag: tag for tag in gpu_sleep.status().tags}
    checks["the tag counts as refilled"] = not tags["weights"].needs_refill
    return took[0] if took else float("nan")


def directory_for(size, given):
    """Where the file goes: into memory where there is room, else where the page cache will hold it."""
    for place in [given] if given else ["/dev/shm", "/tmp"]:
        if os.path.isdir(place) and shutil.disk_usage(place).free > size + GIB:
            return place
    raise SystemExit(f"there is no room for {size / GIB:.1f} GiB in {given or '/dev/shm or /tmp'}")


def program(options):
    """Runs under gpu-run."""
    import safetensors.torch
    import torch

    gpu_sleep.torch._READERS = options.readers or gpu_sleep.torch._READERS
    gpu_sleep.torch._AHEAD = gpu_sleep.torch._AHEAD if options.ahead is None else options.ahead
    gpu_sleep.torch._PIECE = options.piece_mib * MIB or gpu_sleep.torch._PIECE
    model = Model(torch, options.gib)
    with tempfile.TemporaryDirectory(dir=directory_for(model.bytes, options.dir)) as directory:
        file = os.path.join(directory, "model.safetensors")
        safetensors.torch.save_file(model.tensors, file)
        seconds, checks = measure(torch, model, file)
        seconds["reload in a function of on_wake()"] = sleep_and_reload(model, file, checks)
        where = directory
    print(f"{model.bytes / 1e9:.2f} GB in {where}, {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, "
          f"safetensors {safetensors.__version__}, {len(os.sched_getaffinity(0))} processors")
    for name, took in seconds.items():
        print(f"{name:36} {took:7.3f} s {model.bytes / took / 1e9:7.1f} GB/s")
    for name, is_right in checks.items():
        print(f"{name:36} {'right' if is_right else 'WRONG'}")
    fastest = seconds["reload, the best of later ones"] * 16e9 / model.bytes
    if options.within:
        checks["in time"] = fastest <= options.within
        print(f"{fastest:.3f} s for each 16 GB, of at most {options.within} s")
    return gpu_commands.finish(options, {"bytes": model.bytes, "seconds": seconds}, checks)


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=14.96, help="of weights; 14.96 are 16.06 GB")
    parser.add_argument("--dir", help="for the file: /dev/shm where it has room, else /tmp")
    parser.add_argument("--readers", type=int, default=0, help="threads that read, other than reload() has by itself")
    parser.add_argument("--ahead", type=int, help="pieces that wait for a thread, likewise")
    parser.add_argument("--piece-mib", type=int, default=0, help="what each reads at once, likewise")
    parser.add_argument("--within", type=float, default=0, help="seconds for each 16 GB that a reload may take")
    return gpu_commands.under_gpu_run(parser, program)


if __name__ == "__main__":
    sys.exit(main())
