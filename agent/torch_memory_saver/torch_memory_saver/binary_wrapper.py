# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The C functions of this process's library."""

import contextlib
import ctypes
import os
from typing import Any, Dict, List, Optional, Tuple

from gpu_sleep import _agent
from gpu_sleep.errors import of_status

_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {  # result and arguments
    "tms_last_error": (ctypes.c_char_p, []),
    "tms_last_status": (ctypes.c_int, []),
    "tms_set_interesting_region": (None, [ctypes.c_bool]),
    "tms_get_interesting_region": (ctypes.c_bool, []),
    "tms_set_current_tag": (None, [ctypes.c_char_p]),
    "tms_get_current_tag": (ctypes.c_char_p, []),
    "tms_set_enable_cpu_backup": (None, [ctypes.c_bool]),
    "tms_get_enable_cpu_backup": (ctypes.c_bool, []),
    "tms_set_cpu_backup_backend": (None, [ctypes.c_char_p]),
    "tms_get_cpu_backup_backend": (ctypes.c_char_p, []),
    "tms_set_enable_disk_backup": (None, [ctypes.c_bool]),
    "tms_get_enable_disk_backup": (ctypes.c_bool, []),
    "tms_set_retain_cpu_backup": (None, [ctypes.c_bool]),
    "tms_get_retain_cpu_backup": (ctypes.c_bool, []),
    "tms_set_disk_backup_dir": (None, [ctypes.c_char_p]),
    "set_memory_margin_bytes": (None, [ctypes.c_uint64]),
    "tms_pause": (ctypes.c_int, [ctypes.c_char_p]),
    "tms_resume": (ctypes.c_int, [ctypes.c_char_p]),
    "tms_keep_resident": (ctypes.c_uint64, [ctypes.c_void_p]),
    "tms_affected_devices": (ctypes.c_uint32, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_uint32]),
    "tms_get_cpu_backup_pointer": (ctypes.POINTER(ctypes.c_uint8), [ctypes.POINTER(ctypes.c_uint8), ctypes.c_uint64]),
}


class _Library(ctypes.CDLL):
    """It has the CUDA runtime's functions, too, as if it were linked with that: the one that the process has loaded."""

    def __getitem__(self, name: Any) -> Any:
        try:
            return super().__getitem__(name)
        except AttributeError:
            for runtime in (None, "libcudart.so.13", "libcudart.so.12") if str(name).startswith("cuda") else ():
                with contextlib.suppress(OSError, AttributeError):
                    return ctypes.CDLL(runtime, mode=os.RTLD_NOLOAD if runtime else ctypes.DEFAULT_MODE)[name]
            raise


class BinaryWrapper:
    """`cdll` is the library of `path_binary`. Errors: OSError; NoAgent; Error (protocol_mismatch) where the agent is too old."""

    def __init__(self, path_binary: str) -> None:
        _agent.agent()  # is there, and new enough: else PyTorch would say that memory is short
        self.cdll = _Library(path_binary)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.cdll, name)
            function.restype, function.argtypes = result, arguments

    def set_config(self, *, tag: str, interesting_region: bool, enable_cpu_backup: bool,
                   cpu_backup_backend: Optional[str] = None, enable_disk_backup: bool = False) -> None:
        """How the calling thread allocates from here on."""
        self.cdll.tms_set_current_tag(_agent.c_text(tag, "a tag"))
        self.cdll.tms_set_interesting_region(interesting_region)
        self.cdll.tms_set_enable_cpu_backup(enable_cpu_backup)
        if cpu_backup_backend is not None:
            self.cdll.tms_set_cpu_backup_backend(cpu_backup_backend.encode())
        self.cdll.tms_set_enable_disk_backup(enable_disk_backup)

    def last_error(self) -> str:
        return str(self.cdll.tms_last_error().decode(errors="replace"))

    def check(self, status: int) -> None:
        """Errors: those of gpu_sleep."""
        if status != 0:
            raise of_status(status, self.last_error())
