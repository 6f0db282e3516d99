# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What callers of torch_memory_saver do, on the stand-in for PyTorch: the function that is named, in a hook mode.

Usage: torch_memory_saver_program.py FUNCTION preload|torch
"""

import contextlib
import ctypes
import os
import pathlib
import sys
import tempfile
import threading
import time
import types
import unittest.mock

import gpu_sleep
import torch_stand_in
from torch_stand_in import BYTES

torch_stand_in.install()
torch = sys.modules["torch"]
torch.version = types.SimpleNamespace(cuda="12.8")
synchronized = []  # devices
torch.cuda.synchronize = synchronized.append


class HostTensor:
    def __init__(self, memory):
        self.memory = memory

    def view(self, *_):
        return self

    def clone(self):
        return HostTensor(bytes(self.memory))


torch.uint8, torch.frombuffer = "uint8", lambda memory, dtype: HostTensor(memory)

from torch_memory_saver import torch_memory_saver  # noqa: E402
from torch_memory_saver import utils as torch_memory_saver_utils  # noqa: E402

MODE = sys.argv[2]
ctypes.CDLL("libcudart.so.12", mode=ctypes.RTLD_GLOBAL)
if MODE == "preload":
    torch_stand_in.runtime = ctypes.CDLL(None)
torch_memory_saver.hook_mode = MODE


class Tensor(torch_stand_in.Tensor):
    is_cuda, dtype, shape, nbytes = True, "uint8", (BYTES,), BYTES

    def is_contiguous(self):
        return True

    def is_all(self, value):
        return self.bytes() == bytes([value]) * BYTES


def tensor(value=7, **options):
    with torch_memory_saver.region(**options) if options else contextlib.nullcontext():
        made = Tensor()
    made.fill_(value)
    return made


def raises(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def asleep(tensors):
    assert gpu_sleep.asleep_bytes() == tensors * BYTES, gpu_sleep.asleep_bytes()


def pauses(tensors, *tag):
    """Pauses the tag, or all; so many tensors sleep then."""
    torch_memory_saver.pause(*tag)
    asleep(tensors)


def one_agent():
    agents = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "gpu-sleep-agent" in line}
    assert len(agents) == 1, agents


def sglang():
    """Tags one after another, in its order."""
    weights, cache = tensor(1, tag="weights", enable_cpu_backup=True), tensor(2, tag="kv_cache", enable_cpu_backup=False)
    plain = tensor(3)
    addresses = [weights.data_ptr(), cache.data_ptr()]
    for _ in range(2):
        torch_memory_saver.pause("kv_cache")
        pauses(2, "weights")
        assert plain.is_all(3)
        torch_memory_saver.resume("weights")
        asleep(1)
        assert weights.is_all(1)
        torch_memory_saver.resume("kv_cache")
        assert cache.is_all(0), "what has no backup comes back as zeros"
        assert not any(tag.needs_refill for tag in gpu_sleep.status().tags)
        cache.fill_(2)
    assert addresses == [weights.data_ptr(), cache.data_ptr()]
    pauses(2)
    weights.free()
    asleep(1)
    torch_memory_saver.resume()
    cache.free()
    torch_memory_saver.pause("kv_cache")
    pauses(0, "nobody")
    one_agent()


def tags():
    """Any text is a tag, and a tag may have allocations with a backup and others."""
    names = ["a_b", "a b", "a,b", "", "default", "x" * 1000, "x" * 1001, "\u91cd\u307f"]
    kept = {name: tensor(number + 1, tag=name, enable_cpu_backup=True) for number, name in enumerate(names)}
    dropped = tensor(9, tag="a_b")
    pauses(2, "a_b")
    for number, name in enumerate(filter(None, names[1:])):
        pauses(3 + number, name)
    torch_memory_saver.pause()  # that without a name
    asleep(len(names) + 1)
    torch_memory_saver.resume()
    assert all(kept[name].is_all(number + 1) for number, name in enumerate(names)) and dropped.is_all(0)


def devices():
    """Each that has memory of the tag is waited for."""
    here = tensor(1, tag="a", enable_cpu_backup=True)
    with torch.cuda.device(1):
        there = tensor(2, tag="a", enable_cpu_backup=True)
    pauses(2, "a")
    assert synchronized == [0, 1]
    torch_memory_saver.resume("a")
    assert here.is_all(1) and there.is_all(2)

    def many(tag, found, capacity):  # as torch_memory_saver's own tests have it
        for number in range(capacity):
            found[number] = number
        return 65

    impl = torch_memory_saver._impl
    impl._binary_wrapper = types.SimpleNamespace(cdll=types.SimpleNamespace(tms_affected_devices=many))
    assert "Too many affected devices" in str(raises(AssertionError, impl._affected_devices, "a"))


def overlapping():
    """As in two coroutines of a thread, which is a fault of the program: the later region goes on."""
    first, second = torch_memory_saver.region(tag="first"), torch_memory_saver.region(tag="second")
    first.__enter__()
    second.__enter__()
    raises(AssertionError, first.__exit__, None, None, None)
    made = Tensor()
    second.__exit__(None, None, None)
    pauses(1, "second")
    made.free()
    asleep(0)


def regions():
    """Nested, on several threads, and interrupted."""
    library = torch_memory_saver._ensure_initialized() or torch_memory_saver._impl._binary_wrapper.cdll
    others = []
    with torch_memory_saver.region(tag="outer", enable_cpu_backup=True):
        outer = Tensor()
        with torch_memory_saver.region(tag="inner"):
            assert library.tms_get_current_tag() == b"inner" and not library.tms_get_enable_cpu_backup()
            inner = Tensor()
        assert library.tms_get_current_tag() == b"outer" and library.tms_get_enable_cpu_backup()
        thread = threading.Thread(target=lambda: others.extend([library.tms_get_interesting_region(), Tensor()]))
        thread.start()
        thread.join()
        with torch_memory_saver.disable():
            assert not library.tms_get_interesting_region()
            others.append(Tensor())
        assert library.tms_get_interesting_region()
        with torch_memory_saver.region(tag="outer", enable_cpu_backup=True):
            again = Tensor()
    assert not library.tms_get_interesting_region() and others[0] is False
    raises(AssertionError, torch_memory_saver.disable().__enter__)
    pauses(3)
    assert others[1].is_all(7) and others[2].is_all(7)
    torch_memory_saver.resume()
    assert outer.is_all(7) and inner.is_all(0) and again.is_all(7)


def failures():
    """Where the other one ends the process, this raises, and all is as it was."""
    kept = tensor(5, tag="kept", enable_cpu_backup=True)
    raises(gpu_sleep.InvalidArgument, torch_memory_saver.resume, "kept")
    torch_memory_saver.pause("kept")
    assert "'kept' is already paused" in str(raises(gpu_sleep.InvalidArgument, torch_memory_saver.pause, "kept"))
    assert "all memory of regions" in str(raises(gpu_sleep.InvalidArgument, torch_memory_saver.pause))
    later = tensor(6, tag="kept", enable_cpu_backup=True)
    asleep(1)
    others = []
    with contextlib.suppress(MemoryError, AssertionError):  # all that is free
        while True:
            others.append(Tensor())
    raises(gpu_sleep.OutOfDeviceMemory, torch_memory_saver.resume)
    asleep(1)
    raises(MemoryError, tensor, tag="more")
    for each in others:
        each.free()
    torch_memory_saver.resume("kept")
    assert kept.is_all(5) and later.is_all(6)
    torch_memory_saver.memory_margin_bytes = 1 << 40
    raises(MemoryError, tensor, tag="more")
    torch_memory_saver.memory_margin_bytes = BYTES
    tensor(1, tag="more")


def others_word():
    """Somebody else puts the program to sleep and wakes it, as gpu-reclaim does."""
    kept, cache = tensor(5, tag="kept", enable_cpu_backup=True), tensor(6, tag="cache")
    gpu_sleep.sleep()
    gpu_sleep.wake()
    assert kept.is_all(5) and cache.is_all(6), "nothing of it was paused"
    gpu_sleep.sleep(2)
    gpu_sleep.wake()
    assert kept.is_all(5) and cache.is_all(0)
    gpu_sleep.sleep()
    torch_memory_saver.pause()
    gpu_sleep.wake()
    torch_memory_saver.resume()
    assert kept.is_all(5)


def backups():
    """get_cpu_backup() as slime calls it: for each tensor, for its memory on the GPU where there is none."""
    kept, dropped = tensor(5, tag="a", enable_cpu_backup=True), tensor(6, tag="b")
    plain = tensor(1)
    backup = torch_memory_saver.get_cpu_backup
    assert torch_memory_saver.retain_cpu_backup is False and backup(kept, zero_copy=True) is None
    raises(gpu_sleep.Error, backup, plain)
    torch_memory_saver.pause()
    first = backup(kept, zero_copy=True).memory
    copy = backup(kept).memory
    assert bytes(first) == copy == bytes([5]) * BYTES
    raises(gpu_sleep.Error, backup, dropped)
    torch_memory_saver.retain_cpu_backup = True
    torch_memory_saver.resume()
    kept.fill_(8)
    assert ctypes.addressof(backup(kept, zero_copy=True).memory) == ctypes.addressof(first) and bytes(first) == copy
    torch_memory_saver.pause()
    assert backup(kept).memory == bytes([8]) * BYTES
    torch_memory_saver.resume()
    kept.fill_(9)
    torch_memory_saver.pause()
    torch_memory_saver.resume()
    assert backup(kept).memory == bytes([9]) * BYTES
    torch_memory_saver.pause()
    views = [backup(kept, zero_copy=True).memory]
    gpu_sleep.wake()
    gpu_sleep._agent.agent().gpu_sleep_set_retained(ctypes.c_uint64(0))
    views.append(backup(kept, zero_copy=True).memory)
    assert ctypes.addressof(views[0]) == ctypes.addressof(views[1])
    torch_memory_saver.retain_cpu_backup = False
    torch_memory_saver.resume()
    assert backup(kept) is None and kept.is_all(9)


def is_page_locked(address):
    """By the CUDA runtime's function of the library that PyTorch's memory comes from, as if that were linked with it."""
    flags = ctypes.c_uint()
    return torch_memory_saver._impl._binary_wrapper.cdll.cudaHostGetFlags(ctypes.byref(flags), ctypes.c_void_p(address)) == 0


def kept_copies():
    """A copy is where it was until it is dropped, page-locked unless that is not wanted."""
    backup = torch_memory_saver.get_cpu_backup
    kept = {backend: tensor(5, tag="a", enable_cpu_backup=True, cpu_backup_backend=backend) for backend in ("pinned", "mmap")}
    addresses = {}
    for round in range(3):
        torch_memory_saver.retain_cpu_backup = round < 2
        torch_memory_saver.pause("a")
        for backend, its in kept.items():
            view = backup(its, zero_copy=True).memory
            assert ctypes.addressof(view) == addresses.setdefault(backend, ctypes.addressof(view))
            assert bytes(view) == bytes([5 + round]) * BYTES
            assert is_page_locked(addresses[backend]) == (backend == "pinned")
        torch_memory_saver.resume("a")
        for backend, its in kept.items():
            assert is_page_locked(addresses[backend]) == (backend == "pinned" and round < 2)
            its.fill_(6 + round)
    torch_memory_saver.retain_cpu_backup = True
    torch_memory_saver.pause("a")
    address = ctypes.addressof(backup(kept["pinned"], zero_copy=True).memory)
    kept["pinned"].free()
    assert not is_page_locked(address)
    library = torch_memory_saver._impl._binary_wrapper.cdll
    raises(AttributeError, getattr, library, "cudaNoSuchFunction")
    raises(AttributeError, getattr, library, "no_such_function")
    own = ctypes.CDLL(library._name)  # which is asked by dlsym, as a C program does
    for name in ("tms_pause", "tms_resume", "tms_get_cpu_backup_pointer", "set_memory_margin_bytes"):
        assert ctypes.cast(own[name], ctypes.c_void_p).value == ctypes.cast(library[name], ctypes.c_void_p).value
    raises(AttributeError, getattr, own, "cudaHostGetFlags")


def retained():
    """Host memory goes with a resume, unless it is to be retained."""
    def resident():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    kept = [tensor(value, tag="a", enable_cpu_backup=True) for value in range(8)]
    for retains in (None, None, False, True, False):  # first until the simulated GPU's memory to code in is there
        before = resident()
        torch_memory_saver.retain_cpu_backup = bool(retains)
        torch_memory_saver.pause("a")
        assert gpu_sleep.status().host_bytes >= 7 * BYTES * 2 // 3  # zeros need none, and the rest is coded
        torch_memory_saver.resume("a")
        grown, status = resident() - before, gpu_sleep.status()
        assert (status.host_bytes, status.retained_bytes >= 7 * BYTES * 2 // 3) == (0, bool(retains)), status
        assert retains or status.retained_bytes == 0, status
        assert retains is not False or grown < 3 * BYTES, (grown, status)
        assert all(each.is_all(value) for value, each in enumerate(kept))


def residents():
    """What is registered with a library stays on the GPU, and all else of its tag is paused."""
    keep = torch_memory_saver.keep_resident
    assert keep(tensor(3)) == 0
    stays, sleeps = (tensor(value, tag="mixed", enable_cpu_backup=True) for value in (1, 2))
    assert keep(stays) == keep(stays) == BYTES
    child = os.fork()
    if child == 0:
        try:
            raises(gpu_sleep.NotOwned, keep, sleeps)
            raises(gpu_sleep.NotOwned, torch_memory_saver.pause)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    for tag in ("mixed", None):
        pauses(1, tag)
        assert stays.is_all(1)
        said = str(raises(gpu_sleep.Refused, keep, sleeps))
        assert "keep_resident requires an active allocation" in said and "sleeps" in said
        torch_memory_saver.resume(tag)
        assert sleeps.is_all(2)
    sleeps.free()
    torch_memory_saver.pause("mixed")
    gpu_sleep.sleep()
    asleep(0)
    stays.free()
    tensor(4, tag="mixed")
    pauses(1, "mixed")
    raises(ValueError, keep, types.SimpleNamespace(is_cuda=False, device="cpu"))


def disk():
    """Backups in files."""
    first = tensor(4, tag="first", enable_disk_backup=True)
    torch_memory_saver.pause()  # where there is no directory of its own
    asleep(1)
    torch_memory_saver.resume()
    assert first.is_all(4)
    first.free()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory, "made")
        open_to_all = pathlib.Path(directory, "open")
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        raises(gpu_sleep.InvalidArgument, torch_memory_saver.set_disk_backup_dir, str(open_to_all))
        torch_memory_saver.set_disk_backup_dir(str(place))
        filed, kept = tensor(5, tag="a", enable_disk_backup=True), tensor(6, tag="a", enable_cpu_backup=True)
        pauses(2, "a")
        assert list(place.iterdir()) and torch_memory_saver.get_cpu_backup(filed) is None
        torch_memory_saver.resume("a")
        assert filed.is_all(5) and kept.is_all(6) and not list(place.iterdir())
        others = [tensor(value, tag="a", enable_disk_backup=True) for value in (7, 8)]  # a file each
        sizes = set()
        for _ in range(3):
            torch_memory_saver.pause("a")
            sizes.add(tuple(sorted(file.stat().st_size for file in place.iterdir())))
            torch_memory_saver.resume("a")
        assert len(sizes) == 1 and len(sizes.pop()) == 3
        assert filed.is_all(5) and [each.is_all(value) for each, value in zip(others, (7, 8))] == [True, True]
        others.pop().free()
        random = tensor(9, tag="a", enable_disk_backup=True)
        noise = os.urandom(BYTES)
        torch_stand_in.driver_says(torch_stand_in.driver.cuMemcpyHtoD_v2(
            ctypes.c_uint64(random.data_ptr()), noise, ctypes.c_size_t(BYTES)))
        torch_memory_saver.pause("a")
        assert max(file.stat().st_size for file in place.iterdir()) >= BYTES  # what cannot be compressed is there whole
        torch_memory_saver.resume("a")
        assert random.bytes() == noise
        assert sum(tag.tag.endswith(":disk") and tag.bytes > 0 for tag in gpu_sleep.status().tags) == 3
        place.rmdir()
        place.write_text("")
        raises(gpu_sleep.Error, torch_memory_saver.pause)
        asleep(0)


def disk_of_two_threads():
    """Each allocation has a file of its own, also if another thread allocates meanwhile."""
    torch_memory_saver._ensure_initialized()
    wrapper, made = torch_memory_saver._impl._binary_wrapper, []

    def allocate():
        wrapper.set_config(tag="a", interesting_region=True, enable_cpu_backup=False, enable_disk_backup=True)
        wrapper.cdll.tms_torch_malloc.restype = ctypes.c_void_p
        made.append(wrapper.cdll.tms_torch_malloc(ctypes.c_ssize_t(BYTES), 0, None))

    torch_stand_in.driver.sim_delay(b"cuMemCreate", ctypes.c_uint64(200_000))
    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(made)
    tags = {tag.tag for tag in gpu_sleep.status().tags if tag.bytes > 0}
    assert len(tags) == 2, tags


def wrong_use():
    def says(words, **options):
        assert words in str(raises(ValueError, torch_memory_saver.region(**options).__enter__))

    says("requires enable_cpu_backup", cpu_backup_backend="mmap")
    says('must be "mmap" or "pinned"', enable_cpu_backup=True, cpu_backup_backend="disk")
    with unittest.mock.patch("torch_memory_saver.entrypoint.is_xpu", lambda: True):
        says("not supported on XPU", enable_cpu_backup=True, cpu_backup_backend="pinned")
    with unittest.mock.patch.object(torch, "version", types.SimpleNamespace(cuda=None, hip="7.2.0")):
        says("not supported on ROCm", enable_cpu_backup=True, cpu_backup_backend="mmap")
        with tempfile.TemporaryDirectory() as directory:
            made = pathlib.Path(directory, "stem.abi3.so")
            made.touch()
            with unittest.mock.patch("torch_memory_saver.utils.__file__", f"{directory}/package/utils.py"):
                assert torch_memory_saver_utils.get_binary_path_from_package("stem") == made
    raises(AssertionError, torch_memory_saver.region(enable_cpu_backup=True, enable_disk_backup=True).__enter__)
    raises(AttributeError, lambda: torch_memory_saver.hook_mode)
    raises(NotImplementedError, lambda: torch_memory_saver.memory_margin_bytes)
    for name, value, kind in (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", RuntimeError),
                              ("TMS_INIT_ENABLE", "maybe", ValueError),
                              ("TMS_INIT_CPU_BACKUP_BACKEND", "tape", ValueError)):
        os.environ[name] = value
        raises(kind, torch_memory_saver.pause)
        os.environ[name] = ""
    both = dict.fromkeys(("TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP"), "1")
    os.environ.update(both)
    raises(AssertionError, torch_memory_saver.pause)
    os.environ.update(dict.fromkeys(both, "0"))
    needed, gpu_sleep._agent._NEEDED_API_VERSION = gpu_sleep._agent._NEEDED_API_VERSION, 1000
    assert raises(gpu_sleep.Error, torch_memory_saver.pause).code == "protocol_mismatch"
    gpu_sleep._agent._NEEDED_API_VERSION = needed
    assert torch_memory_saver.enabled and torch_memory_saver._impl is None
    torch_memory_saver.pause()
    for wrong, kind in ((5, TypeError), (0, TypeError), ("a\0b", gpu_sleep.InvalidArgument)):
        raises(kind, torch_memory_saver.pause, wrong)
        raises(kind, torch_memory_saver.resume, wrong)
        raises(kind, tensor, tag=wrong)
    assert not torch_stand_in.MemPool.made
    for wrong in (-1, 1 << 64):
        raises(gpu_sleep.InvalidArgument, setattr, torch_memory_saver, "memory_margin_bytes", wrong)
    torch_memory_saver.hook_mode = MODE
    raises(AssertionError, setattr, torch_memory_saver, "hook_mode", "torch" if MODE == "preload" else "preload")
    raises(ValueError, setattr, torch_memory_saver, "hook_mode", "neither")


def no_agent():
    raises(gpu_sleep.NoAgent, tensor, tag="a")


def late():
    """Preloading is for programs that are started, and not for this one."""
    from torch_memory_saver import TorchMemorySaver, configure_subprocess

    saver = TorchMemorySaver()
    with configure_subprocess():
        assert "began without it" in str(raises(AssertionError, saver.pause))


def own_mode():
    """One of a program's own."""
    from torch_memory_saver import TorchMemorySaver, configure_subprocess, register_hook_mode
    from torch_memory_saver.hooks.base import HookUtilBase
    from torch_memory_saver.hooks.mode_torch import HookUtilModeTorch

    assert issubclass(HookUtilModeTorch, HookUtilBase)
    paused = []
    mode = types.SimpleNamespace(pause=lambda tag: paused.append(tag), keep_resident=len)
    made = []

    def make():
        made.append(mode)
        time.sleep(0.2)
        return mode

    register_hook_mode("own", make, uses_preload=False)
    raises(ValueError, register_hook_mode, "own", None)
    saver = TorchMemorySaver()
    saver.hook_mode = "own"
    first_uses = [threading.Thread(target=saver._ensure_initialized) for _ in range(2)]
    for thread in first_uses:
        thread.start()
    for thread in first_uses:
        thread.join()
    assert made == [mode]
    saver.pause("a")
    assert paused == ["a"] and saver.keep_resident("tensor") == 6
    torch_memory_saver.hook_mode = "own"
    before = os.environ.get("LD_PRELOAD")
    with configure_subprocess():
        assert os.environ.get("LD_PRELOAD") == before


def dynamo():
    """It makes an object of its own at the first use, and has modes that no one has registered."""
    from torch_memory_saver import TorchMemorySaver, entrypoint
    from torch_memory_saver.testing_utils import empty_cache, get_and_print_gpu_memory, get_device, is_xpu

    assert (is_xpu(), get_device()) == (False, "cuda") and callable(empty_cache) and callable(get_and_print_gpu_memory)
    paused, stock = [], entrypoint.TorchMemorySaver._ensure_initialized
    saver = TorchMemorySaver()
    raises(ValueError, setattr, saver, "hook_mode", "gms")

    def start(its):
        if its._impl is not None:
            return
        if its._impl_ctor_kwargs.get("hook_mode") not in (None, "gms"):
            stock(its)
            return
        its._impl = types.SimpleNamespace(pause=lambda tag: paused.append(tag), resume=lambda tag: paused.remove(tag))
        del its._impl_ctor_kwargs

    with unittest.mock.patch.object(entrypoint.TorchMemorySaver, "_ensure_initialized", start):
        for mode in (None, "gms"):
            saver = TorchMemorySaver()
            assert saver._impl_ctor_kwargs == {}
            if mode:
                saver.hook_mode = mode
            saver.pause("a")
            assert paused == ["a"] and not hasattr(saver, "_impl_ctor_kwargs")
            saver.resume("a")
        torch_memory_saver.pause()  # which has asked for a mode of this package
        assert type(torch_memory_saver._impl) is entrypoint._TorchMemorySaverImpl
        assert not hasattr(torch_memory_saver, "_impl_ctor_kwargs")


def slime():
    """All of a process's memory is pausable, but what it says; of new threads, too. It replaces how regions begin."""
    from torch_memory_saver.entrypoint import _TorchMemorySaverImpl

    trained = Tensor()
    others = []
    thread = threading.Thread(target=lambda: others.append(Tensor()))
    thread.start()
    thread.join()
    library = torch_memory_saver._ensure_initialized() or torch_memory_saver._impl._binary_wrapper.cdll
    library.tms_set_interesting_region(False)
    communicator = Tensor()
    library.tms_set_interesting_region(True)
    region = _TorchMemorySaverImpl._with_region_config
    _TorchMemorySaverImpl._with_region_config = lambda its, tag, enable_cpu_backup: region(its, tag, enable_cpu_backup)
    gradients = tensor(2, tag="gradients")
    torch_memory_saver.pause("default")
    with torch_memory_saver.disable():  # new weights are sent meanwhile
        sent = Tensor()
        asleep(2)
        sent.free()
    torch_memory_saver.resume("default")
    assert gradients.is_all(2)
    pauses(3)
    assert communicator.is_all(7)
    torch_memory_saver.resume()
    assert trained.is_all(7) and others[0].is_all(7) and gradients.is_all(0)


def intercepted():
    """The library is all that is preloaded, and the environment is that of gpu-run: what is outside of regions sleeps, too."""
    weights, plain = tensor(1, tag="weights", enable_cpu_backup=True), tensor(3)
    pauses(1)
    assert plain.is_all(3)
    gpu_sleep.sleep()
    asleep(2)
    gpu_sleep.wake()
    assert weights.is_all(1) and plain.is_all(3)
    one_agent()


def graphs():
    graph = torch_stand_in.CUDAGraph()
    if MODE == "torch":
        raises(AssertionError, torch_memory_saver.cuda_graph(graph).__enter__)
        return
    with torch_memory_saver.region(tag="around"):
        with torch_memory_saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
            made = Tensor()
            assert made.pool not in torch_memory_saver._impl._mem_pools.values()
        around = Tensor()
        assert around.pool in torch_memory_saver._impl._mem_pools.values()
    pauses(1, "graph")
    torch_memory_saver.resume("graph")
    assert made.is_all(7) and around.is_all(7)
    handle, shared = torch.cuda.graph_pool_handle(), []  # as SGLang has it: one for the graphs of all sizes
    for _ in range(3):
        with torch_memory_saver.cuda_graph(torch_stand_in.CUDAGraph(), pool=handle, tag="graphs", enable_cpu_backup=True):
            shared.append(Tensor())
    assert {made.pool.id for made in shared} == {handle}
    pauses(3, "graphs")
    torch_memory_saver.resume("graphs")
    assert all(made.is_all(7) for made in shared)


globals()[sys.argv[1]]()
