# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu-sleep under the name of torch_memory_saver, for programs that call that: the same names with the same meaning.

    from torch_memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build_model().to("cuda")
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

What is paused sleeps, and gpu-ps shows it. gpu-sleep(7) says what differs. Importing needs no GPU and no PyTorch.
"""

from .entrypoint import TorchMemorySaver, configure_subprocess, register_hook_mode, torch_memory_saver

__all__ = ["TorchMemorySaver", "configure_subprocess", "register_hook_mode", "torch_memory_saver"]
