# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Capturing CUDA graphs by PyTorch, whose memory has a tag.

A graph writes to memory that was free at the end of its capture, so nothing else may come from its pool while it lives:
it has one of its own, which a later capture takes over. Captures wait for the device first, and so for its last replay.
"""

import contextlib
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from . import _agent, _regions
from ._calls import hold
from .errors import Error, InvalidArgument


class _Pool:
    """A pool of PyTorch's for graphs of a tag on a device."""

    def __init__(self, torch: Any, key: Tuple[bytes, int]) -> None:
        self.key, self.pool = key, _regions.new_pool(torch, key[1])
        self.handle = self.pool.id  # or that by which the program has graphs share it
        self._graphs: Set[object] = set()

    def keep_for(self, graph: Any) -> None:
        """Until this graph, and every other that it is kept for, has ended."""
        its = object()
        self._graphs.add(its)
        _pools[self.pool.id] = _pools[self.handle] = self
        weakref.finalize(graph, self._leave, its).atexit = False
        with contextlib.suppress(ValueError):  # the last of the others may have ended since _pool_for()
            _idle.get(self.key, []).remove(self)

    def _leave(self, its: object) -> None:
        with _lock:
            self._graphs.discard(its)
            if not self._graphs and _pools[self.pool.id] is self:
                del _pools[self.handle]
                _pools[self.pool.id], self.handle = None, self.pool.id
                _idle.setdefault(self.key, []).append(self)


_pools: Dict[Any, Optional[_Pool]] = {}  # by PyTorch's id, and by the handle; None: of no graph now
_idle: Dict[Tuple[bytes, int], List[_Pool]] = {}
_unknown: Any = object()
_lock = threading.RLock()  # of all pools; taken again where a graph ends while this thread has it


def _pool_for(torch: Any, key: Tuple[bytes, int], shared: Any) -> _Pool:
    handle = None if shared is None else tuple(getattr(shared, "id", shared))
    used = _pools.get(handle, _unknown)
    if used is not _unknown:
        if used is None or used.key != key:
            raise InvalidArgument("the pool's graphs have ended, or have another tag or device")
        return used
    try:
        found = _idle.setdefault(key, []).pop()
    except IndexError:
        found = _Pool(torch, key)
    found.handle = handle or found.pool.id
    return found


@contextlib.contextmanager
def capturing(name: bytes, device: int) -> Iterator[None]:
    """For `with`: the calling thread captures a graph whose memory has this tag, and sleeps wait. Errors: those of
    cuda_graph()."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(hold())
        _agent.call("gpu_sleep_push_tag", name)
        undo.callback(_agent.call, "gpu_sleep_pop_tag")
        undo.enter_context(_regions.interrupted(name, device))
        yield


@contextlib.contextmanager
def cuda_graph(graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global",
               tag: Optional[str] = None) -> Iterator[None]:
    """For `with`: captures into `graph` as torch.cuda.graph() does, with memory of a tag, and sleeps wait for its end.

    The tag is `tag`, or else that of the thread's innermost tag() region, or else "default". It has to be awake when the graph
    is replayed. Each graph
    has a memory pool of its own, unless `pool` is that of an earlier graph (its pool()), or a handle given to several
    (of torch.cuda.graph_pool_handle()): such graphs may overwrite each other's memory; see PyTorch on sharing. A pool of no
    earlier graph only names a group of graphs: nothing is allocated from it. If torch.cuda.graph() itself were used inside
    a region, later tensors of the region could get the graph's memory. Regions inside the capture must have the same tag.

    Errors, on entering: NoAgent, InvalidArgument (bad tag or pool, a capture inside of one, expandable segments), Error
    (no PyTorch with a GPU, or it has no MemPool), TypeError, and PyTorch's.
    """
    torch = _regions.torch_with_cuda()
    if torch is None:
        raise Error("cuda_graph() needs PyTorch, which is not imported or has no GPU")
    name = _regions.current_tag() if tag is None else _agent.c_text(tag, "a tag")
    device = torch.cuda.current_device() if stream is None else stream.device.index
    weakref.ref(graph)  # TypeError, before it has a pool
    with contextlib.ExitStack() as undo:
        undo.enter_context(capturing(name, device))
        with _lock:  # other threads neither take the pool meanwhile, nor find it idle
            own = _pool_for(torch, (name, device), pool)
            own.keep_for(graph)
        context = getattr(torch.cuda.memory, "MemPoolContext", None)
        if context is not None:  # before PyTorch 2.8 a pool's allocator is asked only while this exists
            undo.callback([context(own.pool)].clear)
        undo.enter_context(torch.cuda.graph(graph, pool=own.pool.id, stream=stream, capture_error_mode=capture_error_mode))
        yield
