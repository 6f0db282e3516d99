# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The backend of vLLM's sleep mode. A file of its own, as it cannot be imported without vLLM."""

from typing import List, Optional, Tuple

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

from . import _agent
from ._calls import asleep_bytes, mark_refilled
from ._processes import TagStatus
from .errors import Error, InvalidArgument
from .vllm import CACHE, SCRATCH, WEIGHTS, Allocator


class Backend(SleepModeBackend):  # type: ignore[misc]
    """vLLM's sleep and wake by tags of the agent."""

    def __init__(self) -> None:
        super().__init__()
        self._is_resuming = False

    def suspend(self, level: int = 1) -> None:
        """Puts the engine's memory to sleep, as one: at level 1 "kv_cache" and "workspace" are dropped, at level 2 "weights" as
        well, and all else is kept in host memory. What sleeps already stays as it is. Level 0 is vLLM's own pause, for which nothing
        sleeps. On return the memory was freed, even if another process took it.

        Errors, after which all is as it was: InvalidArgument (another level), Error (the engine does not allocate by
        Worker), and those of gpu_sleep.sleep(). All are RuntimeErrors.
        """
        if level not in (0, 1, 2):
            raise InvalidArgument(f"a level is 0, 1 or 2, not {level}")
        if level == 0:
            return
        allocator = Allocator.get_instance()
        if not allocator.tags:
            raise Error("vLLM has not allocated through gpu-sleep: start it with --worker-cls gpu_sleep.vllm.Worker")
        dropped = (CACHE, SCRATCH) if level == 1 else (WEIGHTS, CACHE, SCRATCH)
        allocator.sleep(tuple(tag for tag in allocator.tags if tag not in dropped))

    def resume(self, tags: Optional[List[str]] = None) -> None:
        """Wakes these tags, by default all that sleeps in the process. Tags that vLLM cannot name (all but "weights"
        and "kv_cache") wake with any of these. An empty list wakes nothing.

        Errors, after which what was asleep still is, with its contents, so that it can be tried again:
        OutOfDeviceMemory and the others of gpu_sleep.wake(). Damaged: the other tags are awake. All are
        RuntimeErrors.
        """
        if tags is not None and not tags:
            return
        allocator = Allocator.get_instance()
        self._is_resuming = True
        try:
            allocator.wake_up(tags)
        finally:
            self._is_resuming = False
        for tag in {CACHE, SCRATCH}.intersection(allocator.tags):
            mark_refilled(tag)  # vLLM takes it for empty

    def discard(self, tags: Tuple[str, ...]) -> None:
        """Drops the contents of these tags, and lets them sleep. Errors, after which all is as it was: those of
        gpu_sleep.sleep()."""
        Allocator.get_instance().discard(tags)

    def state(self) -> str:
        """SUSPENDED while anything of the process sleeps, whoever put it to sleep; RESUMING during resume(); else
        RUNNING."""
        if self._is_resuming:
            return "RESUMING"
        return "SUSPENDED" if _agent.loaded() is not None and asleep_bytes() > 0 else "RUNNING"

    def status(self) -> Tuple[TagStatus, ...]:
        """How each of the engine's tags is on each device. Errors: NoAgent, Error."""
        return Allocator.get_instance().status()

    @classmethod
    def is_supported(cls) -> bool:
        """Whether an agent is loaded, or can be."""
        try:
            _agent.agent()
        except Error:
            return False
        return True

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Their memory has no tag, except, under gpu-run, what is made while the model is loaded: start vLLM without it."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Contexts and modules stay."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Addresses stay, too."""
        return True
