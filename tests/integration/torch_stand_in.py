# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What tags need of PyTorch, on the driver that there is. Memory pools keep PyTorch's rules: one that is in use cannot
be used again, and of several that a thread uses for a device the first counts."""

import collections
import contextlib
import ctypes
import itertools
import sys
import threading
import types
import weakref

BYTES = 4 << 20  # of each tensor

driver = ctypes.CDLL("libcuda.so.1")
runtime = None  # what has cudaMalloc, where PyTorch is to allocate by that
contexts = {}  # by device
settings = {"expandable_segments": False}  # of the allocator
reserved = collections.Counter()  # bytes, by device
in_use = []  # pools: (device, thread, pool)
handles = []  # pools that have been made for graphs
thread = threading.local()


def driver_says(status):
    assert status == 0, status


def enter(device):
    """Makes the device current, and its context if it has none."""
    if device not in contexts:
        contexts[device] = ctypes.c_void_p()
        driver_says(driver.cuInit(0))
        driver_says(driver.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[device]), device))
    driver_says(driver.cuCtxSetCurrent(contexts[device]))
    thread.device = device


def memory_info(device=None):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver_says(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def current_device():
    return getattr(thread, "device", 0)


@contextlib.contextmanager
def device(number):
    before = current_device()
    enter(number)
    yield
    enter(before)


class Allocator:
    def __init__(self, path, allocate, free):
        library = ctypes.CDLL(path)
        self.allocate, self.free = getattr(library, allocate), getattr(library, free)
        self.allocate.restype = ctypes.c_void_p

    def allocator(self):
        return self


class MemPool:
    made = weakref.WeakSet()
    numbers = itertools.count(1)
    caches = False  # whether what is freed stays in its pool until that ends, as in PyTorch

    def __init__(self, allocator=None):
        self.allocator, self.device = allocator, current_device()
        self.made.add(self)
        self.id = (0, next(self.numbers))
        self.used, self.cached = set(), []  # addresses

    def snapshot(self):
        return [{"active_size": BYTES}] * len(self.used) + [{"active_size": 0}] * len(self.cached)

    def free(self, address):
        self.allocator.free(ctypes.c_void_p(address), ctypes.c_ssize_t(BYTES), self.device, None)

    def __del__(self):
        for address in self.cached:
            self.free(address)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    device = current_device() if device is None else device
    assert pool.device == device
    if any(entry[0] == device and entry[2] is pool for entry in in_use):
        raise RuntimeError("already recording to this pool")
    entry = (device, threading.get_ident(), pool)
    in_use.append(entry)
    try:
        yield
    finally:
        in_use.remove(entry)


def graph_pool_handle():
    handles.append(MemPool())
    return handles[-1].id


class CUDAGraph:
    def pool(self):
        return self.its_pool


@contextlib.contextmanager
def graph(graph, pool=None, stream=None, capture_error_mode="global"):
    graph.its_pool = pool
    with use_mem_pool(MemPool() if pool is None else next(each for each in MemPool.made if each.id == pool)):
        yield


class Tensor:
    """Bytes on the GPU, all of them 7."""

    def __init__(self, number=None):
        self.device = current_device() if number is None else number
        mine = (self.device, threading.get_ident())
        self.pool = next((pool for *its, pool in in_use if tuple(its) == mine), None)
        with device(self.device):
            if self.pool and self.pool.allocator:
                address = self.pool.cached.pop() if self.pool.cached else self.pool.allocator.allocate(
                    ctypes.c_ssize_t(BYTES), self.device, None)
                if not address:
                    raise MemoryError
                self.pool.used.add(address)
                self.address = ctypes.c_uint64(address)
            elif runtime:
                self.address = ctypes.c_uint64()
                if runtime.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(BYTES)) != 0:
                    raise MemoryError
            else:
                self.address = ctypes.c_uint64()
                driver_says(driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(BYTES)))
        reserved[self.device] += BYTES
        self.fill_(7)

    def free(self):
        reserved[self.device] -= BYTES
        if self.pool and self.pool.allocator:
            self.pool.used.remove(self.address.value)
            self.pool.cached.append(self.address.value) if self.pool.caches else self.pool.free(self.address.value)
            self.pool = None
        elif runtime:
            driver_says(runtime.cudaFree(self.address))
        else:
            driver_says(driver.cuMemFree_v2(self.address))

    def fill_(self, value):
        with device(self.device):
            driver_says(driver.cuMemsetD8_v2(self.address, ctypes.c_ubyte(value), ctypes.c_size_t(BYTES)))

    def bytes(self):
        found = ctypes.create_string_buffer(BYTES)
        with device(self.device):
            driver_says(driver.cuMemcpyDtoH_v2(found, self.address, ctypes.c_size_t(BYTES)))
        return found.raw

    def values(self):
        """Which bytes it holds, mostly one: a set of millions takes long."""
        found = self.bytes()
        return set(found[:1] if found == found[:1] * BYTES else found)

    def data_ptr(self):
        return self.address.value

    def element_size(self):
        return 1

    def numel(self):
        return BYTES

    def size(self):
        return (BYTES,)

    def stride(self):
        return (1,)


def install():
    """Has `import torch` give this."""
    enter(0)
    cuda = types.SimpleNamespace(
        init=lambda: None, empty_cache=lambda: None, is_available=lambda: True, is_initialized=lambda: True, memory_reserved=reserved.__getitem__,
        device_count=lambda: 2, current_device=current_device, device=device,
        memory=types.SimpleNamespace(
            CUDAPluggableAllocator=Allocator, _snapshot=lambda: {"allocator_settings": settings}), MemPool=MemPool, use_mem_pool=use_mem_pool, graph=graph,
        graph_pool_handle=graph_pool_handle)
    sys.modules["torch"] = types.SimpleNamespace(
        cuda=cuda, _C=types.SimpleNamespace(_cuda_hasPrimaryContext=lambda number: number in contexts))
