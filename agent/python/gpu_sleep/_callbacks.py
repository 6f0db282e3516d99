# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Functions of the program that run before a sleep, after a wake, and when others call them by name.

The agent has one pair of callbacks of this package. They run on a thread of the agent's, and take Python's lock there.
Whoever asks for a sleep or a wake waits without that lock, and only as long as the request's time limit allows: where
a thread keeps the lock, waiting at the gate, a sleep fails with no change, and a wake opens the gate without them.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import inspect
import json
import logging
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar

from . import _agent
from .errors import Error

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
_on_call: List[Tuple[Callable[[Any], Any], Any, int]] = []  # with what the agent has of each, and its number
_registering = threading.Lock()
_is_registered = False
_is_owed = False  # functions of on_sleep() have run, and those of on_wake() not yet
_is_ending = False
_running = threading.Lock()  # held while functions run
_pointer: Any = None  # what the agent has given those that run
_SECONDS_AT_EXIT = 5  # for those that run then


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


@contextlib.contextmanager
def _telling(pointer: Any) -> Iterator[Event]:
    """Around the functions that run for what the agent has given."""
    global _pointer
    event = pointer.contents
    with _running:
        _pointer = pointer
        try:
            yield Event(
                event.level,
                tuple(event.tags[i].decode() for i in range(event.tag_count)),
                tuple(event.dropped_tags[i].decode() for i in range(event.dropped_tag_count)),
                bool(event.deep),
            )
        finally:
            _pointer = None


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
    with _telling(pointer) as event:
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
    with _telling(pointer) as event:
        return _run_on_wake(event) if event.tags or _is_owed else 0


_before_sleep = _agent.Callback(_run_before_sleep)  # which the agent keeps
_after_wake = _agent.Callback(_run_after_wake)


def warn_if_late() -> None:
    """After a wake, which tells nobody else in this process."""
    if _running.locked():
        _log.warning("a function of on_sleep() or on_wake() still runs: dropped contents count as not refilled")


@contextlib.contextmanager
def enlist() -> Iterator[None]:
    """For `with`, on a thread that works for the function of on_sleep() or on_wake() that runs, which waits for it: its
    GPU work is not held back either, until the end or until that function returns. Does not nest.

    Errors, on entering: NoAgent, InvalidArgument (no such function runs).
    """
    _agent.call("gpu_sleep_enlist", _pointer)
    try:
        yield
    finally:
        _agent.call("gpu_sleep_discharge")


def _remove(number: int) -> None:
    """What is called once Python has ended has no Python."""
    global _is_ending
    _is_ending = True  # what begins from here on ends at once
    _on_sleep.clear()
    _on_wake.clear()
    with contextlib.suppress(KeyboardInterrupt):
        if _running.acquire(timeout=_SECONDS_AT_EXIT):
            _running.release()
    with contextlib.ExitStack() as enlisted:
        with contextlib.suppress(Error):  # none runs
            enlisted.enter_context(enlist())  # so that the removal does not wait for it
        for each in [number, *(its for _, _, its in _on_call)]:
            with contextlib.suppress(Error):  # in a child of fork() it may not be there
                _agent.call("gpu_sleep_remove_callback", each)


def _register() -> None:
    global _is_registered
    with _registering:
        if _is_registered:
            return
        number = ctypes.c_int()
        _agent.call("gpu_sleep_add_callback", _before_sleep, _after_wake, None, 0, ctypes.byref(number))
        _is_registered = True
        atexit.register(_remove, number.value)


def _check(function: Any) -> None:
    called = getattr(function, "__call__", None)
    if called is None or any(check(each) for each in (function, called) for check in (
            inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise TypeError(f"a callback must be a plain function, not a coroutine or a generator: {function!r}")
    _register()


def _add(function: Function, functions: List[Callable[[Event], Any]]) -> Function:
    _check(function)
    functions.append(function)
    return function


def on_sleep(function: Function) -> Function:
    """A decorator: `function` is called with an Event before each sleep, while all memory is still there.

    If it raises, the sleep is refused (Refused) and nothing changes; the requester gets the exception, which is
    also logged. It runs on another thread, holding the GIL, and may call anything in this package except sleep() and
    wake(). The functions of on_wake() undo what it has done; they are called with no tags if the sleep does
    not happen. If it takes longer than the sleep's time limit, or does not get the GIL in that time, the sleep
    fails (TimedOut) with no change. Other threads' GPU work may be held back meanwhile: a thread that the function
    waits for calls enlist().

    Functions are called in the order in which they were given. Those that run when Python ends have 5 seconds.
    Errors: NoAgent, TypeError (a coroutine or a generator: nobody would run it).
    """
    return _add(function, _on_sleep)


def on_wake(function: Function) -> Function:
    """A decorator: `function` is called with an Event after each wake, before other threads' GPU work goes on.

    It may refill what was dropped, and say so by mark_refilled(). If it raises, or takes longer than the wake's time
    limit (30 seconds, or its `timeout`), the process is awake all the same, and what was dropped counts as not
    refilled. Otherwise as on_sleep(). Errors: NoAgent, TypeError.
    """
    return _add(function, _on_wake)


Named = TypeVar("Named", bound=Callable[[Any], Any])


def on_call(name: str) -> Callable[[Named], Named]:
    """A decorator: others have `function` called by gpu-sleep-http, as with POST /reset_prefix_cache by that `name`.

    It is called with what the caller's JSON says, or None, while no sleep or wake is under way, and returns what JSON
    can say, which the caller gets. If it raises, the caller gets the exception. Otherwise as on_sleep(). Of several by
    one name the last counts. Errors: NoAgent, InvalidArgument (the name), TypeError.
    """
    def register(function: Named) -> Named:
        def run(pointer: Any, user: Any) -> int:
            with _telling(pointer):
                try:
                    if _is_ending:
                        raise RuntimeError("Python is ending")
                    text = pointer.contents.argument
                    said = function(json.loads(text) if text else None)
                    _agent.call("gpu_sleep_reply", json.dumps(said, allow_nan=False).encode())
                    return 0
                except BaseException as exception:  # also SystemExit: there is nobody above
                    _agent.explain(_words_of(exception))
                    _log.warning("%r failed", function, exc_info=True)
                    return 1
        _check(function)
        kept, number = _agent.Callback(run), ctypes.c_int()
        _agent.call("gpu_sleep_add_named_callback", _agent.c_text(name, "a name"), kept, None, 0, ctypes.byref(number))
        _on_call.append((function, kept, number.value))
        return function
    return register


def remove_callback(function: Callable[[Any], Any]) -> None:
    """Undoes on_sleep(function), on_wake(function) or on_call() of function, by all names. Errors: ValueError (none)."""
    named = [each for each in _on_call if each[0] == function]
    for each in named:
        _agent.call("gpu_sleep_remove_callback", each[2])
        _on_call.remove(each)
    if named:
        return
    for functions in (_on_sleep, _on_wake):
        if function in functions:
            functions.remove(function)
            return
    raise ValueError(f"{function!r} is not a registered callback")
