# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the tests and examples of torch_memory_saver's callers use."""

from .utils import is_xpu

__all__ = ["empty_cache", "get_and_print_gpu_memory", "get_device", "is_xpu"]


def get_device() -> str:
    return "cuda"


def empty_cache() -> None:
    import torch

    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """How much of a GPU's memory is in use, by whomever, in bytes."""
    import torch

    free, total = torch.cuda.mem_get_info(gpu_id)
    print(f"GPU {gpu_id}: {(total - free) / (1 << 30):.2f} GiB in use ({message})")
    return int(total - free)
