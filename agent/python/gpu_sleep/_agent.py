# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The agent in this process: found, loaded if need be, and called."""

import ctypes
import os
import pathlib
from typing import Any, Dict, List, Optional

from . import _installed
from .errors import InvalidArgument, NoAgent, of_code, of_status

# The loader finds a loaded library by this name, whatever its file is called and wherever it was.
SONAME = "libgpu-sleep-agent.so.0"
_FILE = "libgpu-sleep-agent.so"  # where it is installed
VARIABLE = "GPU_SLEEP_AGENT"
_NEEDED_API_VERSION = 11


class Event(ctypes.Structure):
    """gpu_sleep_event of gpu_sleep.h."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("level", ctypes.c_int),
        ("tag_count", ctypes.c_size_t),
        ("tags", ctypes.POINTER(ctypes.c_char_p)),
        ("dropped_tag_count", ctypes.c_size_t),
        ("dropped_tags", ctypes.POINTER(ctypes.c_char_p)),
        ("deep", ctypes.c_int),
        ("argument", ctypes.c_char_p),
    ]


class TagState(ctypes.Structure):
    """gpu_sleep_tag_state of gpu_sleep.h."""

    _fields_ = [
        ("tag", ctypes.c_char * 72),
        ("device", ctypes.c_int),
        ("state", ctypes.c_int),
        ("retention", ctypes.c_int),
        ("needs_refill", ctypes.c_int),
        ("bytes", ctypes.c_uint64),
        ("resident_bytes", ctypes.c_uint64),
        ("kept_bytes", ctypes.c_uint64),
        ("dropped_bytes", ctypes.c_uint64),
    ]


Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Event), ctypes.c_void_p)

_ARGUMENTS: Dict[str, List[Any]] = {
    "gpu_sleep_push_tag": [ctypes.c_char_p],
    "gpu_sleep_pop_tag": [],
    "gpu_sleep_set_policy": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "gpu_sleep_preserve": [ctypes.c_void_p, ctypes.c_size_t],
    "gpu_sleep_mark_refilled": [ctypes.c_char_p],
    "gpu_sleep_add_callback": [Callback, Callback, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)],
    "gpu_sleep_add_named_callback": [ctypes.c_char_p, Callback, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)],
    "gpu_sleep_reply": [ctypes.c_char_p],
    "gpu_sleep_remove_callback": [ctypes.c_int],
    "gpu_sleep_hold": [],
    "gpu_sleep_resume": [],
    "gpu_sleep_inhibit": [],
    "gpu_sleep_uninhibit": [],
    "gpu_sleep_sleep": [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32],
    "gpu_sleep_wake_within": [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32],
    "gpu_sleep_explain": [ctypes.c_char_p],
    "gpu_sleep_tag_states": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)],
    "gpu_sleep_enlist": [ctypes.POINTER(Event)],
    "gpu_sleep_discharge": [],
}

_declared: Optional[ctypes.CDLL] = None


def loaded() -> Optional[ctypes.CDLL]:
    """The agent that is in this process already, if any."""
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def loaded_file() -> Optional[pathlib.Path]:
    """The file of the agent that is in this process, if any."""
    library = loaded()
    if library is None:
        return None
    address = ctypes.cast(library.gpu_sleep_version, ctypes.c_void_p).value or 0
    for line in pathlib.Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        words = line.split(None, 5)
        first, last = (int(bound, 16) for bound in words[0].split("-"))
        if first <= address < last:
            return pathlib.Path(words[5])
    return None


def _load() -> ctypes.CDLL:
    named = os.environ.get(VARIABLE)
    path = named or (str(_installed.LIBRARIES / _FILE) if _installed.LIBRARIES else None)
    if path is None:
        raise NoAgent(f"no gpu-sleep agent is loaded: start this program with gpu-run, or name the library in {VARIABLE}")
    try:
        return ctypes.CDLL(path)
    except OSError as failure:
        raise NoAgent(f"the gpu-sleep agent cannot be loaded: {failure}") from failure


def agent() -> ctypes.CDLL:
    """The agent: the loaded one, or else the one that VARIABLE names or that is installed with the package.

    Errors: NoAgent; Error (protocol_mismatch) where it is older than the package.
    """
    global _declared
    if _declared is None:
        library = loaded() or _load()
        try:
            version = library.gpu_sleep_api_version()
        except AttributeError as failure:
            raise NoAgent(f"{library._name} is not a gpu-sleep agent") from failure
        if version < _NEEDED_API_VERSION:
            raise of_code("protocol_mismatch", f"the loaded gpu-sleep agent is too old: its interface has version "
                          f"{version}, and this package needs {_NEEDED_API_VERSION}")
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        library.gpu_sleep_last_error.restype = ctypes.c_char_p
        library.gpu_sleep_asleep_bytes.restype = ctypes.c_size_t
        _declared = library
    return _declared


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status, without Python's lock. Errors: the status as an exception."""
    library = agent()
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise of_status(status, library.gpu_sleep_last_error().decode(errors="replace"))


def tag_states() -> List[TagState]:
    """How each tag stands on each device, without asking another process. Errors: NoAgent."""
    room = 0
    while True:
        states, count = (TagState * room)(), ctypes.c_size_t()
        call("gpu_sleep_tag_states", states, ctypes.sizeof(TagState), room, ctypes.byref(count))
        if count.value <= room:
            return list(states[:count.value])
        room = count.value


def explain(why: str) -> None:
    """In a callback: whoever asked is told why it is going to refuse or fail."""
    agent().gpu_sleep_explain(why.replace("\0", "").encode(errors="replace"))


def c_text(text: str, what: str) -> bytes:
    """A text for the C API. Errors: TypeError, InvalidArgument."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument(f"{what} contains a NUL")
    try:
        return text.encode()
    except UnicodeEncodeError as failure:
        raise InvalidArgument(f"{what} is not text: {failure}") from failure
