# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What %load_ext gpu_sleep adds to a notebook: %gpu_state, %gpu_sleep [LEVEL] [TAG...] and %gpu_wake [TAG...]."""

import contextlib
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

from ._calls import sleep, wake
from ._processes import Status, processes, status
from .errors import Error

_ADVICE = ("Memory allocated from now on inside `with gpu_sleep.tag(NAME):` can sleep. For all of it to sleep, run "
           "`gpu-enable user`, log in again and restart this kernel; or start Jupyter with gpu-run.")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _own() -> Optional[Status]:
    try:
        return status()
    except Error:
        return None


def _out_of_reach(own: Optional[Status]) -> Optional[int]:
    """How many bytes of GPU memory this process has that its agent, if any, cannot move. None: nobody knows."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reserved: int = sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))
        agents = sum(tag.bytes for tag in own.tags) + sum(each.bytes for each in own.residual) if own else 0
        return max(0, reserved - agents)
    try:
        known = [] if own else processes(os.getpid())
    except Error:
        known = []
    return sum(device.moved_bytes for each in known for device in each.devices) if known else None


def _warning(own: Optional[Status]) -> List[str]:
    """What is to be said where the agent is not in all of the process's GPU work."""
    if own is not None and own.captures:
        return []
    size = _out_of_reach(own)
    if size:
        return [f"CUDA was started without the agent, so {size:,} bytes ({_mib(size)}) of this kernel cannot sleep. {_ADVICE}"]
    if own is None and "libgpu-sleep-" in os.environ.get("LD_PRELOAD", ""):
        return ["The agent starts when CUDA is first used."]
    return [f"Memory that is allocated without the agent cannot sleep. {_ADVICE}"] if size is None else []


def state() -> str:
    """The memory of this process in words, a line for each tag, and what cannot sleep."""
    own = _own()
    lines = [f"{own.state}, {_mib(own.host_bytes)} of host memory"] if own else ["no gpu-sleep agent has started in this process"]
    lines += [f"  {tag.tag} on device {tag.device}: {tag.state}{', needs refill' if tag.needs_refill else ''}, {_mib(tag.resident_bytes)} of {_mib(tag.bytes)} on the GPU, "
              f"{_mib(tag.kept_bytes)} kept" for tag in (own.tags if own else ())]
    return "\n".join([*lines, *_warning(own)])


def _to_be_dropped(level: int, tags: List[str]) -> List[str]:
    """The tags of which a sleep drops contents, those of preserve() apart."""
    own, policies = _own(), {1: ("discard",), 2: ("discard", "offload")}.get(level, ())
    return sorted({tag.tag for tag in (own.tags if own else ())
                   if tag.resident_bytes and tag.policy in policies and (not tags or tag.tag in tags)})


@contextlib.contextmanager
def _failing_in_a_line() -> Iterator[None]:
    """Of an exception of the package IPython shows what it says, and not where it comes from."""
    try:
        yield
    except Error as failure:
        line = f"{type(failure).__name__}: {failure}"
        setattr(failure, "_render_traceback_", lambda: [line])
        raise


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext gpu_sleep."""

    def show(line: str = "") -> None:
        """Shows the GPU memory of this kernel, and how much of it cannot sleep."""
        print(state())

    def put_to_sleep(line: str) -> None:
        """%gpu_sleep [LEVEL] [TAG...]: puts the memory of this kernel, or that of tags, to sleep."""
        words = line.split()
        level = int(words.pop(0)) if words and words[0].isdecimal() else 1
        dropped = _to_be_dropped(level, words)
        if dropped:
            print(f"dropped, which reads as zero after the wake: {', '.join(dropped)}")
        sleep(level, words or None)
        print(state())

    def wake_up(line: str) -> None:
        """%gpu_wake [TAG...]: wakes the memory of this kernel, or that of tags."""
        wake(line.split() or None)
        print(state())

    magics: Dict[str, Callable[[str], None]] = {"gpu_state": show, "gpu_sleep": put_to_sleep, "gpu_wake": wake_up}
    for name, function in magics.items():
        shell.register_magic_function(_failing_in_a_line()(function), "line", name)
    print(state())
