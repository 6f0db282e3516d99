# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What a hook mode has, for programs that write one of their own."""

import abc
from typing import Any, Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase(abc.ABC):
    @staticmethod
    def create(hook_mode: HookMode) -> "HookUtilBase":
        from .mode_preload import HookUtilModePreload
        from .mode_torch import HookUtilModeTorch

        return HookUtilModePreload() if hook_mode == "preload" else HookUtilModeTorch()

    @abc.abstractmethod
    def get_path_binary(self) -> str:
        """The library of this process that has torch_memory_saver's C functions."""

    def get_allocator(self) -> Any:
        """For PyTorch's pools; None for PyTorch's own."""
        return None
