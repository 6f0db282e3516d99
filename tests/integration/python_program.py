# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A small server in Python that uses the driver with Python's lock held. It answers each line of standard input with
one line, and health checks on the socket that it is given the path of from another thread. A second argument is the
number of the GPU that it uses."""

import contextlib
import ctypes
import importlib
import os
import socket
import sys
import threading
import time
import types

BYTES = 4 << 20

cuda = ctypes.PyDLL("libcuda.so.1")  # keeps Python's lock during its calls
cuda_unlocked = ctypes.CDLL("libcuda.so.1")  # gives it up
libc = ctypes.PyDLL(None)


def checked(status):
    if status != 0:
        raise RuntimeError(f"the driver returned {status}")


def allocate():
    address = ctypes.c_uint64()
    checked(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(BYTES)))
    return address


class AllocationProperties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "location_type", "device")] + [
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDescription(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [(name, ctypes.c_int) for name in ("location_type", "device", "flags")]


class Segment:
    """Memory that the program maps itself."""

    def __init__(self):
        self.address, self.handle, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(BYTES)
        properties = AllocationProperties(type=1, location_type=1)
        access = AccessDescription(location_type=1, flags=3)
        nothing = ctypes.c_uint64(0)
        checked(cuda.cuMemAddressReserve(ctypes.byref(self.address), size, nothing, nothing, nothing))
        checked(cuda.cuMemCreate(ctypes.byref(self.handle), size, ctypes.byref(properties), nothing))
        checked(cuda.cuMemMap(self.address, size, nothing, self.handle, nothing))
        checked(cuda.cuMemSetAccess(self.address, size, ctypes.byref(access), ctypes.c_size_t(1)))

    def unmap(self):
        checked(cuda.cuMemUnmap(self.address, ctypes.c_size_t(BYTES)))
        checked(cuda.cuMemRelease(self.handle))


def enter_some_context():
    """As the runtime does on a thread that has no context when it is first asked for anything."""
    current = ctypes.c_void_p()
    checked(cuda.cuCtxGetCurrent(ctypes.byref(current)))
    if not current.value:
        checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 0))
        checked(cuda.cuCtxSetCurrent(current))


def is_active(device):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    checked(cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)))
    return "active" if active.value else "inactive"


def touch(driver=cuda):
    return driver.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), ctypes.c_size_t(BYTES))


def allocate_under_mutex():
    """As PyTorch does: a mutex of a library's is held over an allocation, and others take it with Python's lock held."""
    mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t: zeros are a free one

    def use_mutex():
        time.sleep(0.2)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_unlock(mutex)

    sys.setswitchinterval(1000)  # nobody else gets a turn between these calls, as if they were one
    other = threading.Thread(target=use_mutex, daemon=True)
    other.start()
    libc.pthread_mutex_lock(mutex)
    allocate()
    libc.pthread_mutex_unlock(mutex)
    other.join()


def load_both(files):
    """Loads two libraries on two threads, which keep Python's lock as long as they are not made to give it up."""
    sys.setswitchinterval(1000)
    other = threading.Thread(target=lambda: (time.sleep(0.2), ctypes.PyDLL(files[1])), daemon=True)
    other.start()
    ctypes.PyDLL(files[0])
    other.join()


def make_interpreter():
    """A second one, which lasts. The module's name changes from version to version."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name).create()
            return "done"
    return "none"


def answer_health_checks(server):
    while True:
        connection, _ = server.accept()
        with contextlib.suppress(OSError):  # who asked may have lost patience
            connection.sendall(b"alive\n")
        connection.close()


class Torch:
    """What the agent knows of PyTorch: one function, of a module that is loaded already."""

    calls = 0
    cached = None
    used = None
    seconds = 0.0  # that a call takes, without Python's lock

    @classmethod
    def empty_cache(cls):
        cls.calls += 1
        time.sleep(cls.seconds)
        enter_some_context()
        if cls.cached is not None:
            if isinstance(cls.cached, Segment):
                cls.cached.unmap()
            else:
                checked(cuda.cuMemFree_v2(cls.cached))
            cls.cached = None
        if cls.calls == 3:
            raise ValueError("the third time it fails")

    @classmethod
    def load(cls):
        module = types.ModuleType("torch.cuda")
        module.empty_cache = cls.empty_cache
        sys.modules["torch.cuda"] = module
        cls.cached = cls.cached or allocate()


def touch_behind_pythons_back():
    """On a thread that Python does not wait for at its end."""
    begun = threading.Event()

    def work():
        checked(cuda.cuCtxSetCurrent(context))
        begun.set()
        touch()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()


def answer(words):
    if words[0] == "touch":
        return str(touch())
    if words[0] == "touch_unlocked":
        return str(touch(cuda_unlocked))
    if words[0] == "context":
        return is_active(int(words[1]))
    if words[0] == "interpreter":
        return make_interpreter()
    if words[0] == "background":
        touch_behind_pythons_back()
    elif words[0] == "torch":
        Torch.load()
    elif words[0] == "allocate_under_mutex":
        allocate_under_mutex()
    elif words[0] == "load_both":
        load_both(words[1:])
    elif words[0] == "cache_segment":  # for a PyTorch that is loaded later; and memory that is used
        libc.gpu_sleep_push_tag(b"cache")
        Torch.cached = Segment()
        Torch.used = allocate()
        libc.gpu_sleep_pop_tag()
    elif words[0] == "slow_torch":  # from now on it takes so many milliseconds
        Torch.seconds = int(words[1]) / 1000
    elif words[0] == "calls":
        return str(Torch.calls)
    elif words[0] == "keep_lock":  # for so many milliseconds, once it has said so
        print("kept", flush=True)
        libc.usleep(int(words[1]) * 1000)
        return None
    elif words[0] == "exit":
        sys.exit(int(words[1]))
    return "done"


checked(cuda.cuInit(0))
context = ctypes.c_void_p()
checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
checked(cuda.cuCtxSetCurrent(context))
memory = allocate()
checked(touch())

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
threading.Thread(target=answer_health_checks, args=(listener,), daemon=True).start()
print("ready", os.getpid(), flush=True)
for line in sys.stdin:
    told = answer(line.split())
    if told is not None:
        print(told, flush=True)
