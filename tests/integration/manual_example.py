# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Runs the PyTorch example of gpu-sleep(7) as it stands there, without PyTorch: what it calls of that is made here, of
memory that the agent gives.

Usage: manual_example.py TREE
"""

import contextlib
import ctypes
import pathlib
import re
import sys
import types

BYTES = 4 << 20

page = pathlib.Path(sys.argv[1], "cli/man/gpu-sleep.7").read_text(encoding="utf-8")
example = re.search(r"^\.SH PYTORCH$.*?^\.nf$\n(.*?)^\.fi$", page, re.MULTILINE | re.DOTALL).group(1).replace("\\", "")
driver = ctypes.CDLL("libcuda.so.1")
allocators = []  # of the pools that are in use, the innermost last


def driver_says(status):
    assert status == 0, status


class Allocator:
    def __init__(self, path, allocate, free):
        library = ctypes.CDLL(path)
        self.allocate, self.free = getattr(library, allocate), getattr(library, free)
        self.allocate.restype = ctypes.c_void_p

    def allocator(self):
        return self


class Tensor:
    """Bytes on the GPU, all of them 7."""

    def __init__(self):
        self.address = ctypes.c_uint64(allocators[-1].allocate(ctypes.c_ssize_t(BYTES), 0, None))
        assert self.address.value
        self.fill_(7)

    def fill_(self, value):
        driver_says(driver.cuMemsetD8_v2(self.address, ctypes.c_ubyte(value), ctypes.c_size_t(BYTES)))

    def bytes(self):
        found = ctypes.create_string_buffer(BYTES)
        driver_says(driver.cuMemcpyDtoH_v2(found, self.address, ctypes.c_size_t(BYTES)))
        return found.raw


class Model:
    def to(self, device):
        assert device == "cuda"
        self.weights = Tensor()
        return self


@contextlib.contextmanager
def use_mem_pool(allocator):
    allocators.append(allocator)
    yield
    allocators.pop()


context = ctypes.c_void_p()
driver_says(driver.cuInit(0))
driver_says(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
driver_says(driver.cuCtxSetCurrent(context))
cuda = types.SimpleNamespace(init=lambda: None, memory=types.SimpleNamespace(CUDAPluggableAllocator=Allocator), MemPool=lambda its: its,
                             use_mem_pool=use_mem_pool)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
names = {"build_model": Model, "build_cache": lambda model: Tensor()}
exec(compile(example, "the example of gpu-sleep(7)", "exec"), names)
assert names["model"].weights.bytes() == b"\7" * BYTES
assert names["cache"].bytes() == bytes(BYTES)
print("done")
