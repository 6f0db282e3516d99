# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the package raises: one class for each failure that a program may want to handle."""

from typing import Dict, Optional, Type


class Error(RuntimeError):
    """A call failed and changed nothing, unless its documentation says otherwise.

    `code` is a word of the list "Words of error.code" in gpu-ps(1), such as "out_of_device_memory".
    """

    code = "internal"

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidArgument(Error, ValueError):
    """A bad argument, or a call without its counterpart."""

    code = "invalid_argument"


class UnknownTag(Error):
    """The process has no such tag."""

    code = "unknown_tag"


class NoProcess(Error):
    """There is no such process, or it has ended."""

    code = "no_process"


class NoAgent(Error):
    """No agent is loaded and none was found, or that of another process does not answer."""

    code = "no_agent"


class TimedOut(Error):
    """Callbacks, GPU work, a hold or copying took too long."""

    code = "timed_out"


class NotPermitted(Error):
    """The process or the file belongs to another user."""

    code = "not_permitted"


class Damaged(Error):
    """Kept contents have changed: their tags stay asleep, the others are awake."""

    code = "damaged"


class OutOfDeviceMemory(Error):
    """Too little GPU memory is free."""

    code = "out_of_device_memory"


class OutOfHostMemory(Error):
    """Too little host memory is available."""

    code = "out_of_host_memory"


class OutOfDisk(Error):
    """Too little disk space is free."""

    code = "out_of_disk"


class Refused(Error):
    """A callback refused the sleep, or this must not be called from a callback."""

    code = "refused"


class Inhibited(Refused):
    """The process refuses sleeps that others ask for."""

    code = "inhibited"


class CaptureInProgress(Error):
    """A CUDA graph is being captured."""

    code = "capture_in_progress"


class NoDriver(Error):
    """There is no working CUDA driver, or it is too old."""

    code = "no_driver"


class NotOwned(Error):
    """The address is not in an allocation of the agent."""

    code = "not_owned"


class ContextLost(Error):
    """A CUDA context has failed, or the process is ending."""

    code = "context_lost"


class OutcomeUnknown(Error):
    """The process was past the point of no return and did not report the result."""

    code = "outcome_unknown"


_CLASSES: Dict[str, Type[Error]] = {
    each.code: each
    for each in (
        InvalidArgument, UnknownTag, NoProcess, NoAgent, TimedOut, NotPermitted, Damaged, OutOfDeviceMemory,
        OutOfHostMemory, OutOfDisk, Refused, Inhibited, CaptureInProgress, NoDriver, NotOwned, ContextLost,
        OutcomeUnknown,
    )
}
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
