# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Giving memory tags: scopes of the agent's, and memory pools of PyTorch's.

A pool of PyTorch's may be in use once at a time, and of several that a thread uses for a device it allocates from the
outermost. So each region has a pool of its own, which a later one of the same tag takes over, and only the pool of a
thread's innermost region is in use. Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, get_pool, beginAllocateToPool.
"""

import atexit
import contextlib
import ctypes
import operator
import os
import re
import sys
import threading
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from . import _agent
from .errors import Error, InvalidArgument


class Diversion:
    """The calling thread's allocations on a device come from a pool, which may be that of a tag."""

    def __init__(self, torch: Any, device: int, pool: Any, name: bytes = b"") -> None:
        self._torch, self._device, self.pool, self.name = torch, device, pool, name
        self._use: Any = None

    def begin(self) -> None:
        self._use = self._torch.cuda.use_mem_pool(self.pool, device=self._device)
        self._use.__enter__()

    def end(self) -> None:
        self._use.__exit__(None, None, None)


class _Capture:
    """In the place of a diversion: a graph is captured, which has a pool of its own."""

    def __init__(self, name: bytes) -> None:
        self.name = name


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered: List[Tuple["Region", contextlib.ExitStack, bool]] = []  # at last whether PyTorch was there
        self.diversions: Dict[int, Union[Diversion, _Capture]] = {}  # by device


_thread = _Thread()
CONFIGURATIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the last counts
EXPANDABLE = re.compile(r"(expandable_segments\s*:\s*)true", re.IGNORECASE)
_idle_pools: Dict[Tuple[bytes, int], List[Any]] = {}  # by tag and device
_allocator: Any = None


def _keep_for_ever(thing: Any) -> Any:
    """PyTorch would free memory by it when the interpreter ends, and wait for what sleeps."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


# A region that is open when the interpreter ends would be left without the modules that this needs.
atexit.register(_keep_for_ever, _thread.entered)


def torch_with_cuda() -> Any:
    """PyTorch, if the program has imported it and it can use a GPU. Errors: Error, InvalidArgument."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    if not hasattr(cuda, "MemPool"):
        raise Error("tags need torch.cuda.MemPool, which this PyTorch does not have: install a newer one")
    for variable in CONFIGURATIONS:
        if EXPANDABLE.search(os.environ.get(variable, "")):
            raise InvalidArgument(f"tags need PyTorch's memory pools, which do not work with expandable segments: "
                                  f"take expandable_segments out of {variable}")
    return torch


def _configure(configurations: Dict[str, str]) -> None:
    """Sets these variables, and has PyTorch read the one that counts, all of which it takes anew."""
    os.environ.update(configurations)
    torch: Any = sys.modules.get("torch")
    if torch is None or not configurations:
        return
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    setter([os.environ[name] for name in CONFIGURATIONS if name in os.environ][-1])


class _Unexpandable:
    """Who needs expandable segments to be off, which the whole process shares."""

    lock = threading.Lock()
    users = 0
    given: Dict[str, str] = {}  # the configurations that the last one out restores


@contextlib.contextmanager
def without_expandable_segments() -> Iterator[None]:
    """Where they are configured, they are off until the end, of the last thread that is inside, so that tags can be
    entered."""
    with _Unexpandable.lock:
        if _Unexpandable.users == 0:
            given = {name: os.environ[name] for name in CONFIGURATIONS if EXPANDABLE.search(os.environ.get(name, ""))}
            _configure({name: EXPANDABLE.sub(r"\1False", conf) for name, conf in given.items()})
            _Unexpandable.given = given
        _Unexpandable.users += 1
    try:
        yield
    finally:
        with _Unexpandable.lock:
            _Unexpandable.users -= 1
            if _Unexpandable.users == 0:
                _configure(_Unexpandable.given)


def _current_devices(torch: Any) -> Set[int]:
    """The current device, and the others that have a context: a pool for any other would make one."""
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda device: False)
    return {torch.cuda.current_device()} | set(filter(has_context, range(torch.cuda.device_count())))


def _expands(torch: Any) -> bool:
    """Whether expandable segments are on, however the program has set that."""
    try:
        return bool(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
    except (RuntimeError, AttributeError, KeyError):  # another allocator or an older PyTorch, which does not say
        return False


def new_pool(torch: Any, device: int) -> Any:
    """Errors: InvalidArgument, where the program has itself switched expandable segments on; the agent's and PyTorch's."""
    global _allocator
    torch.cuda.init()
    if _expands(torch):
        raise InvalidArgument("tags need PyTorch's memory pools, which do not work with expandable segments: switch them off")
    if _allocator is None:
        _agent.agent()
        _allocator = _keep_for_ever(torch.cuda.memory.CUDAPluggableAllocator(
            _agent.SONAME, "gpu_sleep_torch_malloc", "gpu_sleep_torch_free"))
    with torch.cuda.device(device):
        return _keep_for_ever(torch.cuda.MemPool(_allocator.allocator()))


def drop_pool(pool: Any) -> None:
    """The caller's reference to a pool of new_pool() is the last: PyTorch gives its memory back once nothing uses it."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(pool))


def give_back_unused(name: bytes) -> None:
    """Has PyTorch give back the pools of a tag of which nothing is used any more. It could not give back a part of one."""
    has_any = False
    for (tag, _), idle in list(_idle_pools.items()):
        for pool in list(idle) if tag == name else ():
            if not any(segment["active_size"] for segment in pool.snapshot()):
                with contextlib.suppress(ValueError):  # another thread has just taken it
                    idle.remove(pool)
                    drop_pool(pool)
                    has_any = True
    if has_any:
        sys.modules["torch"].cuda.empty_cache()


@contextlib.contextmanager
def _diverted(torch: Any, name: bytes, device: int, has_own_pool: bool) -> Iterator[None]:
    outer = _thread.diversions.get(device)
    if outer is not None and outer.name == name:
        yield
        return
    if isinstance(outer, _Capture):
        raise InvalidArgument(f"a graph with the tag '{outer.name.decode()}' is being captured, and all its memory has that tag")
    idle = _idle_pools.setdefault((name, device), [])
    try:
        pool = new_pool(torch, device) if has_own_pool else idle.pop()
    except IndexError:
        pool = new_pool(torch, device)
    own = Diversion(torch, device, pool, name)
    if outer is not None:
        outer.end()
    try:
        own.begin()
        _thread.diversions[device] = own
        try:
            yield
        finally:
            del _thread.diversions[device]
            own.end()
    finally:
        if outer is not None:
            outer.begin()
            _thread.diversions[device] = outer
        idle.append(pool)


@contextlib.contextmanager
def interrupted(name: bytes, device: int) -> Iterator[None]:
    """The calling thread's allocations on a device come from no pool of a region, while a graph is captured there."""
    outer = _thread.diversions.get(device)
    if isinstance(outer, _Capture):
        raise InvalidArgument("a graph is being captured already")
    if outer is not None:
        outer.end()
    _thread.diversions[device] = _Capture(name)
    try:
        yield
    finally:
        del _thread.diversions[device]
        if outer is not None:
            outer.begin()
            _thread.diversions[device] = outer


def current_tag() -> bytes:
    """That of the graph that the calling thread captures, or of its innermost region."""
    for each in _thread.diversions.values():
        if isinstance(each, _Capture):
            return each.name
    return _thread.entered[-1][0].name if _thread.entered else b"default"


class Region(contextlib.ContextDecorator):
    """What tag() returns. May be entered again, also while it is entered, and on several threads at a time. With
    `has_own_pools` it allocates from no pool of an earlier one."""

    def __init__(self, name: str, devices: Optional[Iterable[int]], has_own_pools: bool = False) -> None:
        self._has_own_pools = has_own_pools
        self.name = _agent.c_text(name, "a tag")
        self._devices = None if devices is None else {operator.index(device) for device in devices}

    def __enter__(self) -> None:
        with contextlib.ExitStack() as undo:
            _agent.call("gpu_sleep_push_tag", self.name)
            undo.callback(_agent.call, "gpu_sleep_pop_tag")
            torch = torch_with_cuda()
            if torch is not None:
                devices = _current_devices(torch) if self._devices is None else self._devices
                for device in devices | _thread.diversions.keys():  # the pool of another tag must not grow by this one
                    undo.enter_context(_diverted(torch, self.name, device, self._has_own_pools))
            _thread.entered.append((self, undo.pop_all(), "torch" in sys.modules))

    def __exit__(self, *error: object) -> None:
        if not _thread.entered or _thread.entered[-1][0] is not self:
            raise InvalidArgument("regions of tags must end on the thread that entered them, the innermost first")
        _, undo, had_torch = _thread.entered.pop()
        undo.close()
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        # As an error, the warning would hide an exception that is under way.
        if not had_torch and not any(error) and cuda is not None and cuda.is_initialized():
            level = 3 if sys._getframe(1).f_globals.get("__name__") == "contextlib" else 2  # it is a decorator
            warnings.warn(f"torch was imported inside the region, so PyTorch's memory is not from pools of the tag "
                          f"'{self.name.decode()}': import torch before the first tag", RuntimeWarning, level)


def tag(name: str, devices: Optional[Iterable[int]] = None) -> Region:
    """A region, for `with` or as a decorator: GPU memory that the calling thread allocates inside has this tag.

    `name` is 1 to 64 letters, digits, '_', '-', '.' or ':'. That applies to gpu_sleep_alloc(), any library under
    gpu-run, and PyTorch. Import torch before the first tag: a region within which it is imported warns at its end.
    Expandable segments do not work with memory pools. If the program switches them on after its first tag, nothing says so.
    Run the first matrix product on a stream outside of regions: PyTorch allocates a workspace there for all later ones.
    PyTorch's memory comes from memory pools, one for each tag and device (and for each thread that is inside at a
    time): what is freed goes back to the pool that it came from. Regions nest, and the innermost counts. Other threads
    are not inside, those of autograd among them.

    `devices` are the CUDA ordinals for which PyTorch allocates from pools: by default the current device and every
    other that has a context, and in any case those of an enclosing region. Name a device here that is used inside for
    the first time.

    Errors, on entering: NoAgent, InvalidArgument (bad tag; PyTorch's expandable segments), Error (PyTorch has no
    MemPool). Leave a region on the thread that entered it, and do not await inside. Capture graphs with cuda_graph().
    """
    return Region(name, devices)
