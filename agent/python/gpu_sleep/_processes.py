# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Processes as gpu-ps(1) shows them, and other processes put to sleep and woken, by the commands."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _agent, _installed
from ._calls import Tags, checked_level, limit, milliseconds, tag_list
from .errors import Error, InvalidArgument, NoAgent, NoProcess, of_code


def _list_of(kind: type) -> Any:
    return dataclasses.field(default=(), metadata={"list of": kind})


def _one_of(kind: type) -> Any:
    return dataclasses.field(default=None, metadata={"one of": kind})


@dataclasses.dataclass(frozen=True)
class TagStatus:
    """A tag of a process on one device, by its CUDA ordinal there. Sizes are in bytes."""

    tag: str
    device: int
    state: str = ""  # awake, asleep, partial or damaged
    policy: str = ""  # offload, preserve or discard
    refillable: bool = False
    needs_refill: bool = False  # awake, was dropped, and the program has not said that it has filled it again
    ranges: int = 0
    bytes: int = 0  # of GPU memory while it is awake
    allocated_bytes: int = 0  # as the program asked for
    resident_bytes: int = 0  # on the GPU now
    kept_bytes: int = 0  # contents in host memory and in files
    in_files_bytes: int = 0
    dropped_bytes: int = 0
    damaged_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Device:
    """What an operation did on one device, by its CUDA ordinal in the process. Sizes are in bytes."""

    device: int
    name: str = ""
    uuid: str = ""
    moved_bytes: int = 0  # that a sleep gave back, or a wake took
    kept_bytes: int = 0  # that a sleep kept, or a wake brought back
    copied_bytes: int = 0  # of those that a sleep kept: what it had to copy
    dropped_bytes: int = 0
    free_before_bytes: Optional[int] = None  # of the device; None if the driver was not asked
    free_after_bytes: Optional[int] = None
    total_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Residual:
    """Memory that stays on the GPU, and why. Sizes are in bytes."""

    kind: str
    device: int
    bytes: int = 0
    count: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Gate:
    """What holds the program's GPU work back under gpu-run."""

    state: str  # open, checked or shut
    on_touch: str = ""  # wait, wake or fail
    waiting_threads: int = 0  # that it holds now
    touches: int = 0  # how many times it has held a thread
    last_touch: str = ""  # the driver's function that it held last


@dataclasses.dataclass(frozen=True)
class Status:
    """A process, after an operation or as it is. Members are as in gpu-ps(1), JSON; sizes in bytes, times in seconds."""

    pid: int
    user: str = ""
    command: str = ""
    name: str = ""
    group: str = ""
    engine: str = "agent"
    state: str = ""  # awake, asleep, partial, damaged or paused; "" if it is not known
    gpu_bytes: int = 0  # of GPU memory; while all of it sleeps, what NVML says is left, as far as that is known
    changed: bool = False
    inhibited: bool = False
    deep: bool = False
    captures: bool = False  # under gpu-run
    state_seconds: float = 0
    idle_seconds: Optional[float] = None
    host_bytes: int = 0
    retained_bytes: int = 0
    file_bytes: int = 0
    tags: Tuple[TagStatus, ...] = _list_of(TagStatus)
    devices: Tuple[Device, ...] = _list_of(Device)
    residual: Tuple[Residual, ...] = _list_of(Residual)
    gate: Optional[Gate] = _one_of(Gate)
    notes: Tuple[str, ...] = ()
    error: Optional[Error] = None  # only of processes(): why nothing more is known of it


Kind = TypeVar("Kind")


def _read(kind: Type[Kind], members: Dict[str, Any]) -> Kind:
    """A dataclass of what it knows of the members of a JSON object."""
    values = {}
    dataclass: Any = kind
    for field in dataclasses.fields(dataclass):
        if field.name not in members:
            continue
        value = members[field.name]
        if "one of" in field.metadata and value is not None:
            value = _read(field.metadata["one of"], value)
        if "list of" in field.metadata:
            value = tuple(_read(field.metadata["list of"], each) for each in value)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _error_of(members: Dict[str, Any]) -> Error:
    advice = members.get("advice")
    return of_code(members["code"], members["message"] + (f"; {advice}" if advice else ""))


def _status_of(process: Dict[str, Any]) -> Status:
    members = {**process, **process.get("report", {})}
    members["error"] = _error_of(process["error"]) if "error" in process else None
    if members.get("gpu_bytes") is None:
        members["gpu_bytes"] = sum(tag["resident_bytes"] for tag in members.get("tags", []))
    return _read(Status, members)


def command_file(command: str) -> str:
    """The file of a command: of this installation, or else of the loaded agent's, or on PATH. Errors: Error (io_failed)."""
    places: List[pathlib.Path] = []
    if _installed.COMMANDS is not None:
        places.append(_installed.COMMANDS)
    agent = _agent.loaded_file()
    if agent is not None:  # in lib, or in lib/x86_64-linux-gnu
        places += [above / "bin" for above in list(agent.parents)[1:3]]
    for place in places:
        if (place / command).is_file():
            return str(place / command)
    found = shutil.which(command)
    if found is None:
        raise of_code("io_failed", f"there is no {command} beside the package or its agent, nor on PATH")
    return found


def _run(command: str, *arguments: str) -> List[Status]:
    """What a command answers of each process. Errors: those of the usage, and NoProcess, NoAgent."""
    done = subprocess.run([command_file(command), "--json", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          check=False)
    try:
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise _error_of(answer["error"])
        return [_status_of(each) for each in answer["processes"]]
    except (ValueError, KeyError) as failure:
        if isinstance(failure, Error):
            raise
        said = done.stderr.decode(errors="replace").strip()
        raise Error(f"{command} ended with status {done.returncode}: {said}") from failure


def _checked(statuses: List[Status]) -> List[Status]:
    for status in statuses:
        if status.error is not None:
            raise status.error
    return statuses


def processes(who: Union[int, str, None] = None) -> List[Status]:
    """The GPU processes of the caller (of all users for root), or those that a pid or a name selects: for a parent
    without an agent, its descendants. One that does not answer has an `error`. Wakes no process.

    Errors: NoProcess, NoAgent, InvalidArgument, Error.
    """
    return _run("gpu-ps", *([] if who is None else [_selector(who)]))


def status() -> Status:
    """This process. Errors: NoAgent (none is loaded, or it has not started yet: it does when CUDA is first used)."""
    _agent.agent()
    for each in processes(os.getpid()):
        if each.pid == os.getpid():
            return _checked([each])[0]
    raise NoAgent("this process has no gpu-sleep agent, or it has not started yet")


def _selector(who: Union[int, str]) -> str:
    if isinstance(who, bool) or not isinstance(who, (int, str)):
        raise TypeError(f"a process is a pid or a name, not {type(who).__name__}")
    text = str(who)
    if not text or text.startswith("-"):
        raise InvalidArgument(f"{who!r} is neither a pid nor a name")
    _agent.c_text(text, "the name of a process")
    return text


class Process:
    """Another process, or several, by a pid or by the name of gpu-run --name. See gpu-sleep(1), "Which process"."""

    def __init__(self, who: Union[int, str]) -> None:
        self._who = _selector(who)

    def __repr__(self) -> str:
        return f"Process({self._who!r})"

    def status(self) -> Status:
        """Its status. Errors: NoProcess, NoAgent, TimedOut, NotPermitted, InvalidArgument (there are several; processes()
        lists them), Error."""
        found = _checked(_run("gpu-ps", self._who))
        if len(found) != 1:
            raise of_code("ambiguous_name", f"{self._who} names {len(found)} processes")
        return found[0]

    def sleep(self, level: int = 1, tags: Tags = None, deep: bool = False, timeout: Optional[float] = None,
              options: Sequence[str] = ()) -> List[Status]:
        """Puts it to sleep; arguments as gpu_sleep.sleep() has them, and further options of gpu-sleep(1).

        Returns what was done to each process. Errors: those of gpu_sleep.sleep(); Inhibited, NoProcess, NotPermitted,
        OutOfDisk, OutcomeUnknown. With several processes others may be asleep then.
        """
        arguments = ["--level", str(checked_level(level)), *self._common(tags, timeout, options)]
        return _checked(_run("gpu-sleep", *arguments, *(["--deep"] if deep else []), self._who))

    def wake(self, tags: Tags = None, wait: float = 0, timeout: Optional[float] = None,
             options: Sequence[str] = ()) -> List[Status]:
        """Wakes it; arguments as gpu_sleep.wake() has them, and further options of gpu-wake(1).

        Returns what was done to each process. Errors: those of gpu_sleep.wake(); NoProcess, NotPermitted,
        OutcomeUnknown. With several processes others may be awake then.
        """
        arguments = ["--wait", f"{milliseconds(wait, 'wait')}ms"] if wait else []
        return _checked(_run("gpu-wake", *arguments, *self._common(tags, timeout, options), self._who))

    @contextlib.contextmanager
    def inhibit(self, seconds: Optional[float] = None) -> Iterator[None]:
        """For `with`: it refuses sleeps until the block ends, or for `seconds` at most, even if this program is
        killed. Does not nest: see gpu-inhibit(1). Errors, on entering: NoProcess, NoAgent, NotPermitted, Error."""
        duration = limit(seconds)
        try:
            _checked(_run("gpu-inhibit", *([] if duration is None else ["--for", f"{duration}ms"]), self._who))
            yield
        except BaseException:  # on entering, some of several processes may have been reached
            with contextlib.suppress(Error):
                self._release()
            raise
        with contextlib.suppress(NoProcess, NoAgent):  # it has ended
            self._release()

    def _release(self) -> None:
        _checked(_run("gpu-inhibit", "--release", self._who))

    @staticmethod
    def _common(tags: Tags, timeout: Optional[float], options: Sequence[str]) -> List[str]:
        if isinstance(options, str):
            raise TypeError("options must be a list of str, not one str")
        names, timeout_ms = tag_list(tags), limit(timeout)
        return (["--tags", names] if names is not None else []) + (
            ["--timeout", f"{timeout_ms}ms"] if timeout_ms is not None else []) + [*options]
