# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the package raises: one class for each failure that a program may want to handle."""

from typing import Any, Dict, Optional, Type

_CLASSES: Dict[str, Type["Error"]] = {}


class Error(RuntimeError):
    """A call failed and changed nothing, unless its documentation says otherwise.

    `code` is a word of the list "Words of error.code" in gpu-ps(1), such as "out_of_device_memory".
    """

    code = "internal"

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __init_subclass__(cls, code: Optional[str] = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if code is not None:
            cls.code = code
            # A program's own class of the same word is not raised in place of ours.
            _CLASSES.setdefault(code, cls)


class InvalidArgument(Error, ValueError, code="invalid_argument"):
    """A bad argument, or a call without its counterpart."""


class UnknownTag(Error, code="unknown_tag"):
    """The process has no such tag."""


class NoProcess(Error, code="no_process"):
    """There is no such process, or it has ended."""


class NoAgent(Error, code="no_agent"):
    """No agent is loaded and none was found, or that of another process does not answer."""


class TimedOut(Error, code="timed_out"):
    """Callbacks, GPU work, a hold or copying took too long."""


class NotPermitted(Error, code="not_permitted"):
    """The process or the file belongs to another user."""


class Damaged(Error, code="damaged"):
    """Kept contents have changed: their tags stay asleep, the others are awake."""


class OutOfDeviceMemory(Error, code="out_of_device_memory"):
    """Too little GPU memory is free."""


class OutOfHostMemory(Error, code="out_of_host_memory"):
    """Too little host memory is available."""


class OutOfDisk(Error, code="out_of_disk"):
    """Too little disk space is free."""


class Refused(Error, code="refused"):
    """A callback refused the sleep, or this must not be called from a callback."""


class Inhibited(Refused, code="inhibited"):
    """The process refuses sleeps that others ask for."""


class CaptureInProgress(Error, code="capture_in_progress"):
    """A CUDA graph is being captured."""


class NoDriver(Error, code="no_driver"):
    """There is no working CUDA driver, or it is too old."""


class NotOwned(Error, code="not_owned"):
    """The address is not in an allocation of the agent."""


class ContextLost(Error, code="context_lost"):
    """A CUDA context has failed, or the process is ending."""


class OutcomeUnknown(Error, code="outcome_unknown"):
    """It was too late to cancel, and the process did not report the result."""


_CLASSES["agent_unreachable"] = NoAgent

# gpu_sleep_status of gpu_sleep.h; any other number is "internal".
_CODES = {
    2: "invalid_argument",
    3: "unknown_tag",
    6: "timed_out",
    8: "damaged",
    9: "driver_failed",
    10: "out_of_device_memory",
    11: "out_of_host_memory",
    12: "refused",
    13: "capture_in_progress",
    17: "io_failed",
    18: "no_refill",
    19: "no_driver",
    20: "not_owned",
    21: "context_lost",
    22: "unseen_library",
    23: "out_of_disk",
}


def of_code(code: str, message: str) -> Error:
    """The exception for a word of error.code."""
    return _CLASSES.get(code, Error)(message, code)


def of_status(status: int, message: str) -> Error:
    """The exception for a gpu_sleep_status other than 0."""
    return of_code(_CODES.get(status, "internal"), message)
