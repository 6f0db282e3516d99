# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Put this program's GPU memory to sleep, by tag, and that of other programs.

    with gpu_sleep.tag("weights"):
        model = build_model().to("cuda")
    gpu_sleep.sleep(tags=["weights"])
    gpu_sleep.wake()

"pydoc gpu_sleep.tag" describes one of these:

    this program     sleep, wake, status, asleep_bytes
    its memory       tag, cuda_graph, policy, preserve, mark_refilled, torch.reload (weights that were dropped)
    taking part      on_sleep, on_wake, on_call, enlist, remove_callback
    sleeps by others hold, inhibit
    other programs   Process, processes
    a notebook       load_ipython_extension (%load_ext gpu_sleep)

gpu_sleep.vllm is for vLLM's sleep mode. "python -m gpu_sleep run" is gpu-run, and likewise for the others.

The package uses the agent that gpu-run has loaded. In a program that was started without gpu-run, the first call that
needs the agent loads it: from the path in the environment variable GPU_SLEEP_AGENT, or else the one that is installed
with this package; then only memory with a tag sleeps. If there is no agent, that call raises NoAgent.

Sizes are in bytes, times in seconds, devices are CUDA ordinals. Every function may be called from any thread. Importing
needs no GPU, no driver, no agent and no PyTorch.
"""

import importlib
from typing import Any

from ._calls import asleep_bytes, hold, inhibit, mark_refilled, policy, preserve, sleep, wake
from ._callbacks import Event, enlist, on_call, on_sleep, on_wake, remove_callback
from ._graphs import cuda_graph
from ._notebook import load_ipython_extension
from ._processes import Device, Gate, Process, Residual, Status, TagStatus, processes, status
from ._regions import Region, tag
from .errors import (
    CaptureInProgress,
    ContextLost,
    Damaged,
    Error,
    Inhibited,
    InvalidArgument,
    NoAgent,
    NoDriver,
    NoProcess,
    NotOwned,
    NotPermitted,
    OutcomeUnknown,
    OutOfDeviceMemory,
    OutOfDisk,
    OutOfHostMemory,
    Refused,
    TimedOut,
    UnknownTag,
)

__all__ = [
    "CaptureInProgress", "ContextLost", "Damaged", "Device", "Error", "Event", "Gate", "Inhibited", "InvalidArgument",
    "NoAgent", "NoDriver", "NoProcess", "NotOwned", "NotPermitted", "OutOfDeviceMemory", "OutOfDisk",
    "OutOfHostMemory", "OutcomeUnknown", "Process", "Refused", "Region", "Residual", "Status", "TagStatus",
    "TimedOut", "UnknownTag", "asleep_bytes", "cuda_graph", "enlist", "hold", "inhibit",
    "load_ipython_extension", "mark_refilled", "on_call", "on_sleep", "on_wake", "policy", "preserve", "processes", "remove_callback", "sleep", "status",
    "tag", "wake",
]


def __getattr__(name: str) -> Any:
    """gpu_sleep.torch and gpu_sleep.vllm, which need PyTorch and vLLM once they are called."""
    if name in ("torch", "vllm"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
