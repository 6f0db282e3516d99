# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""GPU memory of a program in Python, by calls of the driver alone: random bytes, of which none is zero."""

import ctypes
import hashlib
import random


class GpuMemory:
    def __init__(self, size):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context, self.address, self.size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(size)
        self.ask("cuInit", 0)
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.ask("cuCtxSetCurrent", self.context)
        self.ask("cuMemAlloc_v2", ctypes.byref(self.address), self.size)
        contents = random.randbytes(size).replace(b"\0", b"\1")
        self.ask("cuMemcpyHtoD_v2", self.address, contents, self.size)
        self.written = hashlib.sha256(contents).hexdigest()

    def ask(self, call, *arguments):
        status = getattr(self.driver, call)(*arguments)
        if status != 0:
            raise RuntimeError(f"{call} returned {status}")

    def is_intact(self):
        """Uses the GPU, on any thread."""
        contents = ctypes.create_string_buffer(self.size.value)
        self.ask("cuCtxSetCurrent", self.context)
        self.ask("cuMemcpyDtoH_v2", contents, self.address, self.size)
        return hashlib.sha256(contents.raw).hexdigest() == self.written
