# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Functions of the program that run before a sleep and after a wake.

The agent has one pair of callbacks of this package. They run on a thread of the agent's, and take Python's lock there.
Whoever asks for a sleep or a wake waits without that lock, and only as long as the request's time limit allows: where
a thread keeps the lock, waiting at the gate, a sleep fails with no change, and a wake opens the gate without them.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import logging
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar

from . import _agent

_log = logging.getLogger("gpu_sleep")


@dataclasses.dataclass(frozen=True)
class Event:
    """What a function of on_sleep() or on_wake() is told. Of a sleep that was called off, `tags` is empty."""

    level: int  # 1 or 2 before a sleep, 0 after a wake
    tags: Tuple[str, ...]  # that go to sleep, or that woke
    dropped_tags: Tuple[str, ...]  # of these, whose contents are, or were, dropped
    deep: bool  # whether the sleep is to be a deep one, or was


Function = TypeVar("Function", bound=Callable[[Event], Any])

_on_sleep: List[Callable[[Event], Any]] = []
_on_wake: List[Callable[[Event], Any]] = []
_registering = threading.Lock()
_is_registered = False
_is_owed = False  # functions of on_sleep() have run, and those of on_wake() not yet


class Refusal:
    """By which exception a function has refused a sleep, if any has."""

    exception: Optional[BaseException] = None


_own_sleeps: List[Refusal] = []  # that are under way


@contextlib.contextmanager
def own_sleep() -> Iterator[Refusal]:
    """Around a sleep that this process asks for itself: how it is refused."""
    refusal = Refusal()
    _own_sleeps.append(refusal)
    try:
        yield refusal
    finally:
        _own_sleeps.remove(refusal)


def _event_of(pointer: Any) -> Event:
    event = pointer.contents
    return Event(
        event.level,
        tuple(event.tags[i].decode() for i in range(event.tag_count)),
        tuple(event.dropped_tags[i].decode() for i in range(event.dropped_tag_count)),
        bool(event.deep),
    )


def _words_of(exception: BaseException) -> str:
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:  # it cannot be put into words
        return type(exception).__name__


def _run_on_wake(event: Event) -> int:
    global _is_owed
    _is_owed = False
    failed = 0
    for function in list(_on_wake):
        try:
            function(event)
        except BaseException as exception:  # also SystemExit: there is nobody above
            failed = 1
            _agent.explain(_words_of(exception))
            _log.warning("%r failed after a wake", function, exc_info=True)
    return failed


def _run_before_sleep(pointer: Any, user: Any) -> int:
    global _is_owed
    event = _event_of(pointer)
    for function in list(_on_sleep):
        try:
            function(event)
        except BaseException as exception:  # also SystemExit: there is nobody above
            for refusal in _own_sleeps:
                refusal.exception = exception
            _log.warning("%r refuses a sleep", function, exc_info=True)
            if _is_owed:
                _run_on_wake(Event(0, (), (), False))
            _agent.explain(_words_of(exception))
            return 1
        _is_owed = True
    return 0


def _run_after_wake(pointer: Any, user: Any) -> int:
    event = _event_of(pointer)
    return _run_on_wake(event) if event.tags or _is_owed else 0


_before_sleep = _agent.Callback(_run_before_sleep)  # which the agent keeps
_after_wake = _agent.Callback(_run_after_wake)


def _remove(number: int) -> None:
    with contextlib.suppress(RuntimeError):  # in a child of fork() it may not be there
        _agent.call("gpu_sleep_remove_callback", number)


def _register() -> None:
    global _is_registered
    with _registering:
        if _is_registered:
            return
        number = ctypes.c_int()
        _agent.call("gpu_sleep_add_callback", _before_sleep, _after_wake, None, 0, ctypes.byref(number))
        _is_registered = True
        atexit.register(_remove, number.value)  # what is called once Python has ended has no Python


def on_sleep(function: Function) -> Function:
    """A decorator: `function` is called with an Event before each sleep, while all memory is still there.

    If it raises, the sleep is refused (Refused) and nothing changes; whoever asked is told the exception, which is
    also logged. It runs on another thread, with Python's lock, and may call everything of this package but sleep() and
    wake(). What it has done is undone by the functions of on_wake(), which are called with no tags if the sleep does
    not come. If it takes longer than the sleep's time limit, or does not get Python's lock in that time, the sleep
    fails (TimedOut) with no change.

    Functions are called in the order in which they were given. Errors: NoAgent.
    """
    _register()
    _on_sleep.append(function)
    return function


def on_wake(function: Function) -> Function:
    """A decorator: `function` is called with an Event after each wake, before other threads' GPU work goes on.

    It may refill what was dropped, and say so by mark_refilled(). If it raises, or takes longer than the wake's time
    limit (30 seconds, or its `timeout`), the process is awake all the same, and what was dropped counts as not
    refilled. Otherwise as on_sleep(). Errors: NoAgent.
    """
    _register()
    _on_wake.append(function)
    return function


def remove_callback(function: Callable[[Event], Any]) -> None:
    """Undoes on_sleep() or on_wake() of `function`. Errors: ValueError (it is in neither)."""
    for functions in (_on_sleep, _on_wake):
        if function in functions:
            functions.remove(function)
            return
    raise ValueError(f"{function!r} is no callback")
