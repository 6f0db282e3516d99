# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Sleeping and waking of this process, and what its memory may lose."""

import contextlib
import math
import operator
import os
import sys
import time
from typing import Any, Iterable, List, Optional, Tuple, Union

from . import _agent, _callbacks
from .errors import InvalidArgument, OutOfDeviceMemory, Refused

Tags = Union[str, Iterable[str], None]

_DEEP = 0x100  # GPU_SLEEP_DEEP
_SLICE_MS = 1000  # of a wait, after which Python hears signals
_RETENTIONS = {"offload": 0, "preserve": 1, "discard": 2}


def milliseconds(seconds: float, what: str) -> int:
    """Whole milliseconds, rounded up, that the C API and the commands can take. Errors: TypeError, InvalidArgument."""
    if not hasattr(seconds, "__float__"):
        raise TypeError(f"{what} must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= 0xFFFFFFFF / 1000:
        raise InvalidArgument(f"{what} must be a number of seconds from 0 to {0xFFFFFFFF // 1000}, not {seconds}")
    return math.ceil(seconds * 1000)


def checked_level(level: int) -> int:
    if not hasattr(level, "__index__"):
        raise TypeError(f"level must be 0, 1 or 2, not {level!r}; name tags by tags=")
    if operator.index(level) not in (0, 1, 2):
        raise InvalidArgument(f"a level must be 0, 1 or 2, not {level}")
    return operator.index(level)


def limit(timeout: Optional[float]) -> Optional[int]:
    """A time limit in milliseconds."""
    limit_ms = None if timeout is None else milliseconds(timeout, "a time limit")
    if limit_ms == 0:
        raise InvalidArgument("a time limit must be more than 0 seconds")
    return limit_ms


def tag_list(tags: Tags) -> Optional[str]:
    """Tags as the C API and the commands take them; None for all."""
    if tags is None:
        return None
    names = [tags] if isinstance(tags, str) else list(tags)
    if not names:
        raise InvalidArgument("the list of tags is empty; None means all")
    for name in names:
        _agent.c_text(name, "a tag")
        if "," in name:
            raise InvalidArgument(f"'{name}' is not a tag; give several tags as a list")
    return ",".join(names)


def _c_tags(tags: Tags) -> Optional[bytes]:
    names = tag_list(tags)
    return None if names is None else names.encode()


def sleep(level: int = 1, tags: Tags = None, deep: bool = False, timeout: Optional[float] = None) -> None:
    """Puts this process to sleep: all of it, or the tags in `tags`. On return their GPU memory is released.

    At `level` 1 contents are kept in host memory; at 2 they are dropped, except for what policy() and preserve() keep. At
    level 0, a pause, all memory stays, and GPU work waits until a wake; functions of on_sleep() are not called. A `deep`
    sleep takes contexts and modules from the GPU as well. Both need gpu-run, and exclude `tags`. `timeout`, in seconds,
    covers everything until memory is released; without it callbacks and GPU work have 30 seconds together, and copying
    takes as long as it takes. No GPU work, not even a library's, may use sleeping memory. Does nothing if it is asleep.
    Ctrl-C is heard at its end.

    Errors, after which all is awake and unchanged: NoAgent, InvalidArgument, UnknownTag, Refused (by a callback, whose
    exception is the cause; or if called from a callback), TimedOut, CaptureInProgress, OutOfHostMemory,
    OutOfDeviceMemory, NoDriver, ContextLost, Error. If the driver's part of a deep sleep fails (Error, driver_failed),
    the process is asleep as without `deep`; asleep_bytes() shows it.
    """
    flags = checked_level(level) | (_DEEP if deep else 0)
    names, timeout_ms = _c_tags(tags), limit(timeout) or 0
    with _callbacks.own_sleep() as refusal:
        try:
            _agent.call("gpu_sleep_sleep", flags, names, timeout_ms)
        except Refused as refused:
            if refusal.exception is None:
                raise
            raise refused from refusal.exception


def wake(tags: Tags = None, wait: float = 0, timeout: Optional[float] = None) -> None:
    """Wakes this process, or the tags in `tags`, at the same addresses. What was dropped reads as zero.

    While GPU memory is short it tries again for `wait` seconds. `timeout`, in seconds, covers everything else until the
    memory is back, then again the functions of on_wake(), which otherwise have 30 seconds: if they are late, it is awake,
    and what was dropped counts as not refilled, which is logged. Does nothing if it is awake. Ctrl-C is heard at its end,
    and once a second while memory is short: asleep_bytes() shows whether it has woken.

    Errors, after which what was asleep still is, with its contents: NoAgent, InvalidArgument, UnknownTag, Refused
    (if called from a callback), TimedOut, OutOfDeviceMemory, OutOfHostMemory, NoDriver, ContextLost, Error. Damaged: tags
    whose contents have changed stay asleep, and the others are awake.
    """
    names, left_ms, timeout_ms = _c_tags(tags), milliseconds(wait, "wait"), limit(timeout) or 0
    end = time.monotonic() + left_ms / 1000
    while True:
        part_ms = min(left_ms, _SLICE_MS)
        try:
            _agent.call("gpu_sleep_wake_within", names, part_ms, timeout_ms)
            break
        except OutOfDeviceMemory as short:
            left_ms = math.ceil((end - time.monotonic()) * 1000)
            if left_ms <= 0:
                if "torch" in sys.modules:
                    short.args = (f"{short}; what PyTorch's allocator caches counts as used: torch.cuda.empty_cache() "
                                  "gives it back",)
                raise
    _callbacks.warn_if_late()


def asleep_bytes() -> int:
    """How much of this process is asleep, in bytes of GPU memory released. Errors: NoAgent."""
    return int(_agent.agent().gpu_sleep_asleep_bytes())


def policy(tag: str, mode: str, refillable: bool = False) -> None:
    """Sets what a sleep does to the contents of `tag`, now and later.

    `mode` is "offload" (kept at level 1, dropped at level 2: the default), "preserve" (kept at every level) or
    "discard" (dropped at every level). `refillable`: the program can fill the tag again after a drop.
    Errors: NoAgent, InvalidArgument.
    """
    if mode not in _RETENTIONS:
        raise InvalidArgument(f"a policy must be one of {', '.join(_RETENTIONS)}, not {mode!r}")
    _agent.call("gpu_sleep_set_policy", _agent.c_text(tag, "a tag"), _RETENTIONS[mode], bool(refillable))


def _span(what: Any) -> Tuple[int, int]:
    if isinstance(what, tuple):
        address, size = what
        return operator.index(address), operator.index(size)
    if not hasattr(what, "data_ptr"):
        raise TypeError(f"this is neither a tensor nor a tuple of an address and a size: {type(what).__name__}")
    if what.numel() == 0:
        return what.data_ptr(), 0
    last = sum((count - 1) * step for count, step in zip(what.size(), what.stride()))
    return what.data_ptr(), (last + 1) * what.element_size()


def preserve(what: Any) -> None:
    """Has every sleep keep the contents of a tensor (of any shape; from its first element to its last), or of a span
    of memory, given as a tuple of its address and its size in bytes, even if the rest of the tag is dropped.

    The mark ends when the memory goes back to the driver, not with the tensor: PyTorch keeps its memory for others.
    Errors: NoAgent, NotOwned (not within one allocation of the agent), InvalidArgument (nothing in it), TypeError.
    """
    address, size = _span(what)
    if address < 0 or size < 0 or address + size >= 1 << 64:
        raise InvalidArgument(f"there is no memory of {size} bytes at {address}")
    _agent.call("gpu_sleep_preserve", address, size)


def mark_refilled(tag: str) -> None:
    """Reports that the program has filled `tag` again after a drop. Errors: NoAgent, InvalidArgument, UnknownTag."""
    _agent.call("gpu_sleep_mark_refilled", _agent.c_text(tag, "a tag"))


class _Open(contextlib.AbstractContextManager[None]):
    def __init__(self, opens: str, closes: str) -> None:
        self._opens, self._closes = opens, closes
        self._processes: List[int] = []  # that have entered it

    def __enter__(self) -> None:
        _agent.call(self._opens)
        self._processes.append(os.getpid())

    def __exit__(self, *error: object) -> None:
        if self._processes.pop() == os.getpid():  # a child of fork() has opened nothing
            _agent.call(self._closes)


def hold() -> "contextlib.AbstractContextManager[None]":
    """For `with`: sleeps wait until its end, and fail (TimedOut) if that takes longer than their time limit. If a sleep
    is running, entering waits for it. cuda_graph() uses it while it captures a graph. Nests, and applies to
    the process. Errors, on entering: NoAgent."""
    return _Open("gpu_sleep_hold", "gpu_sleep_resume")


def inhibit() -> "contextlib.AbstractContextManager[None]":
    """For `with`: sleeps that others ask for are refused until its end (Inhibited); sleep() still sleeps. Nests, and
    holds for the process. Errors, on entering: NoAgent."""
    return _Open("gpu_sleep_inhibit", "gpu_sleep_uninhibit")
