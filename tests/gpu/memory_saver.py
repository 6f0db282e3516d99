#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The stand-in for torch_memory_saver with PyTorch on a real GPU, in both hook modes: what is paused leaves the GPU and comes
back bit by bit at its addresses, and a captured graph over it still works. Then what torch_memory_saver's own tests expect.

Usage: memory_saver.py --build DIR [--gib 4]. Exit status: 0 when all is as it must be.
"""

import argparse
import ctypes
import gc
import pathlib
import subprocess
import sys
import tempfile

from gpu_commands import installed_packages

GIB = 1 << 30


def program(mode, gib):
    """Runs with the stand-in on Python's path."""
    import torch
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = mode
    count = gib * GIB // 4
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.randint(1 << 30, (count,), dtype=torch.int32, device="cuda")
    with saver.region(tag="kv_cache"):
        cache = torch.ones(count, dtype=torch.int32, device="cuda")
    expected, addresses = weights.cpu(), [weights.data_ptr(), cache.data_ptr()]
    total = torch.zeros((), dtype=torch.int64, device="cuda")

    def work():
        total.copy_((weights[:1 << 20].long() + cache[:1 << 20]).sum())

    work()  # what it loads is loaded
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True) if mode == "preload" else torch.cuda.graph(graph):
        work()

    def replayed():
        graph.replay()
        return int(total)

    before = replayed()
    for _ in range(2):
        free = torch.cuda.mem_get_info()[0]
        saver.pause("kv_cache")
        saver.pause()
        freed = torch.cuda.mem_get_info()[0] - free
        assert freed >= 2 * count * 4 - GIB // 8, freed
        assert torch.equal(saver.get_cpu_backup(weights), expected)
        saver.resume("weights")
        saver.resume()
        assert torch.equal(weights.cpu(), expected) and not cache.any()
        cache.fill_(1)
        assert replayed() == before
    assert addresses == [weights.data_ptr(), cache.data_ptr()]
    print(f"{mode}: {2 * gib} GiB paused and resumed twice")


def resident_bytes():
    lines = pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def check_host_memory(torch, saver):
    """It grows by what is paused, and is given back by the end of the resume."""
    for gib in (1, 2):
        with saver.region(tag="rss", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            tensor = torch.randint(0, 256, (gib * GIB,), dtype=torch.uint8, device="cuda")  # of which no byte is saved
        expected = tensor.cpu()
        before = resident_bytes()
        saver.pause("rss")
        paused = resident_bytes()
        saver.resume("rss")
        after = resident_bytes()
        assert paused - before >= gib * GIB * 3 // 4, (before, paused)
        assert paused - after >= gib * GIB * 3 // 4, (paused, after)
        assert torch.equal(tensor.cpu(), expected) and saver.get_cpu_backup(tensor) is None
        del tensor


def check_copies(torch, saver):
    """Page-locked, as the runtime's own function says, at the same address while they are retained, and freed with the memory."""
    library = saver._impl._binary_wrapper.cdll

    def is_page_locked(address):
        found = library.cudaHostGetFlags(ctypes.byref(ctypes.c_uint()), ctypes.c_void_p(address)) == 0
        library.cudaGetLastError()
        return found

    with saver.region(tag="copied", enable_cpu_backup=True):
        tensor = torch.arange(4096, dtype=torch.int32, device="cuda")
    addresses = set()
    for number in range(3):
        saver.retain_cpu_backup = True
        tensor.copy_(torch.arange(4096, dtype=torch.int32) + number)
        saver.pause("copied")
        backup = saver.get_cpu_backup(tensor, zero_copy=True)
        assert torch.equal(backup, torch.arange(4096, dtype=torch.int32) + number)
        addresses.add(backup.data_ptr())
        saver.resume("copied")
        assert saver.get_cpu_backup(tensor, zero_copy=True).data_ptr() == backup.data_ptr()
    (address,) = addresses
    assert is_page_locked(address)
    saver.pause("copied")
    del backup
    saver.retain_cpu_backup = False
    saver.resume("copied")
    assert not is_page_locked(address) and saver.get_cpu_backup(tensor) is None
    saver.retain_cpu_backup = True
    saver.pause("copied")
    address = saver.get_cpu_backup(tensor, zero_copy=True).data_ptr()
    assert is_page_locked(address)
    saver.retain_cpu_backup = False
    pool = saver._impl._mem_pools.pop(("copied", True, False, "pinned", 0))
    with saver._impl._with_region_config(tag="copied", enable_cpu_backup=True, cpu_backup_backend="pinned"):
        del tensor, pool
        gc.collect()
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert not is_page_locked(address), "the copy outlives its memory"


def check_files(torch, saver):
    """One for each allocation, of the same sizes each time; compressed, if that makes it smaller."""
    with tempfile.TemporaryDirectory() as directory:
        saver.set_disk_backup_dir(directory)
        with saver.region(tag="filed", enable_disk_backup=True):
            large = torch.randn(13 * (1 << 18) + 12345, device="cuda")
            small = torch.full((7,), 10, dtype=torch.uint8, device="cuda")
            noise = torch.randint(0, 256, (16 << 20,), dtype=torch.uint8, device="cuda")
        expected, noises, sizes = large.cpu(), noise.cpu(), set()
        for _ in range(3):
            saver.pause("filed")
            files = [file.stat().st_size for file in pathlib.Path(directory).rglob("*") if file.is_file()]
            assert len(files) >= 3 and max(files) >= noise.numel(), files
            sizes.add(sum(files))
            saver.resume("filed")
            assert torch.equal(large.cpu(), expected) and small.tolist() == [10] * 7
            assert torch.equal(noise.cpu(), noises)
        assert len(sizes) == 1, sizes


def check_words(torch, saver):
    def says(words, kind, function, *arguments, **options):
        try:
            function(*arguments, **options)
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no {kind.__name__}")

    says("requires enable_cpu_backup", ValueError, saver.region(cpu_backup_backend="mmap").__enter__)
    with saver.region(tag="paused"):
        tensor = torch.empty(1024, device="cuda")
    assert saver._impl._affected_devices("paused") == [0]
    saver.pause("paused")
    says("keep_resident requires an active allocation", RuntimeError, saver.keep_resident, tensor)
    saver.resume("paused")


def check_devices(torch, saver):
    """What is paused leaves each device that it is on, and only those of the tag."""
    devices = range(torch.cuda.device_count())
    count = GIB // 4 // 4
    slack = 32 << 20  # for what copying needs on each device from its first pause on
    tensors = {}
    for device in devices:
        for tag in ("all", f"only_{device}"):
            with torch.cuda.device(device), saver.region(tag=tag, enable_cpu_backup=True):
                tensors[device, tag] = torch.randint(1 << 30, (count,), dtype=torch.int32, device=f"cuda:{device}")
    expected = {key: tensor.cpu() for key, tensor in tensors.items()}
    assert sorted(saver._impl._affected_devices("all")) == list(devices)

    def freed(tag):
        before = [torch.cuda.mem_get_info(device)[0] for device in devices]
        saver.pause(tag)
        return [torch.cuda.mem_get_info(device)[0] - free + slack >= count * 4 for device, free in zip(devices, before)]

    assert freed("all") == [True for _ in devices]
    for device in devices:
        assert freed(f"only_{device}") == [each == device for each in devices]
    saver.resume()
    assert all(torch.equal(tensor.cpu(), expected[key]) for key, tensor in tensors.items())


def behaviours(mode):
    import torch
    from torch_memory_saver import torch_memory_saver as saver
    from torch_memory_saver.testing_utils import empty_cache, get_and_print_gpu_memory, get_device, is_xpu

    saver.hook_mode = mode
    assert (get_device(), is_xpu()) == ("cuda", False)
    saver._ensure_initialized()
    for check in (check_host_memory, check_copies, check_files, check_words, check_devices):
        check(torch, saver)
        empty_cache()
        get_and_print_gpu_memory(check.__name__)
        print(f"{mode}: {check.__name__} is right", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--program", choices=("preload", "torch"))
    parser.add_argument("--behaviours", action="store_true")
    options = parser.parse_args()
    if options.program:
        behaviours(options.program) if options.behaviours else program(options.program, options.gib)
        return
    with installed_packages(options.build) as (environment, libraries):
        for mode, library in libraries.items():
            preloads = {"LD_PRELOAD": str(library)} if mode == "preload" else {}
            for more in ([], ["--behaviours"]):
                subprocess.run([sys.executable, __file__, "--build", options.build, "--gib", str(options.gib), "--program", mode,
                                *more], env={**environment, **preloads}, check=True)


if __name__ == "__main__":
    main()
