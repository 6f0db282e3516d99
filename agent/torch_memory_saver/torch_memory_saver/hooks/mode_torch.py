# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""By an allocator that PyTorch is given."""

from typing import Any

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModeTorch(HookUtilBase):
    def __init__(self) -> None:
        import torch

        self.allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(
            self.get_path_binary(), "tms_torch_malloc", "tms_torch_free")

    def get_path_binary(self) -> str:
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))

    def get_allocator(self) -> Any:
        return self.allocator.allocator()
