# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""By the CUDA runtime's cudaMalloc, in a program that preloads the library."""

import contextlib
import ctypes
import os
from typing import Iterator

from ..utils import change_env, get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModePreload(HookUtilBase):
    def get_path_binary(self) -> str:
        """The library that this program preloads. Errors: AssertionError."""
        preloaded = os.environ.get("LD_PRELOAD", "")
        found = [path for path in preloaded.replace(" ", ":").split(":") if "torch_memory_saver" in path]
        assert len(found) == 1, (
            f"LD_PRELOAD has to name one library of torch_memory_saver, and is '{preloaded}': start the program within "
            "configure_subprocess(), or set hook_mode = \"torch\" before the first use")
        try:
            ctypes.CDLL(found[0], mode=os.RTLD_NOLOAD)
        except OSError as failure:
            raise AssertionError(f"LD_PRELOAD names {found[0]}, but this program began without it") from failure
        return found[0]


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """For `with`: programs that are started inside preload the library."""
    library, before = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload")), os.environ.get("LD_PRELOAD")
    with change_env("LD_PRELOAD", f"{library}:{before}" if before else library):
        yield
