# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""vLLM's worker on a GPU. A file of its own, as it cannot be imported without vLLM, nor cheaply."""

import contextlib
import threading
from typing import Any, Callable, ContextManager, Dict, Iterator, Tuple

import torch
from vllm.v1.worker import gpu_worker

from ._calls import asleep_bytes, mark_refilled, preserve
from ._vllm_backend import Backend
from .errors import Error, NotOwned
from .vllm import BACKEND, WEIGHTS, Allocator

_measuring = threading.Lock()  # what PyTorch measures with is replaced by one thread at a time


@contextlib.contextmanager
def _others_left_out() -> Iterator[None]:
    """The calling thread is told that the device's free memory changes by what this process puts to sleep alone.

    vLLM measures it before and after a sleep, and takes it for a failure if it has shrunk; so a neighbour that takes
    what was freed at once would fail a sleep that is done.
    """
    with _measuring:
        measure: Callable[..., Tuple[int, int]] = torch.accelerator.get_memory_info
        thread, before = threading.get_ident(), asleep_bytes()
        free, total = measure()

        def measure_own(*device: Any) -> Tuple[int, int]:
            return (free + asleep_bytes() - before, total) if threading.get_ident() == thread else measure(*device)

        torch.accelerator.get_memory_info = measure_own
        try:
            yield
        finally:
            torch.accelerator.get_memory_info = measure


class Worker(gpu_worker.Worker):  # type: ignore[misc]
    """For --worker-cls. With a backend other than gpu_sleep it is vLLM's own worker."""

    @property
    def _is_ours(self) -> bool:
        config = self.vllm_config.model_config
        return bool(config.enable_sleep_mode and config.sleep_mode_backend == BACKEND)

    def _preserve_buffers(self) -> None:
        """Has each sleep keep the model's named buffers, as vLLM's at level 2 does: no file holds them."""
        for model in (self.model_runner.model, self.get_draft_model()):
            for _, buffer in model.named_buffers() if model is not None else ():
                if buffer.numel() > 0:
                    with contextlib.suppress(NotOwned):  # no sleep drops it
                        preserve(buffer)

    def load_model(self, *arguments: Any, **named: Any) -> None:
        """vLLM's; afterwards each sleep, whoever asks for it, keeps the model's buffers."""
        super().load_model(*arguments, **named)
        if self._is_ours:
            self._preserve_buffers()

    def sleep(self, level: int = 1) -> None:
        """vLLM's, which keeps the model's buffers at level 2. Errors: those of Backend.suspend()."""
        if not self._is_ours:
            super().sleep(level)
            return
        if Allocator.get_instance().is_asleep(WEIGHTS):  # vLLM's would wait for the buffers that it reads
            Backend().suspend(level)
            return
        if level == 2:
            self._preserve_buffers()  # those that came after load_model(), too
        try:
            with _others_left_out():
                super().sleep(level)
        finally:  # a later wake would bring back what the buffers were; the agent brings back what they are
            self._sleep_saved_buffers: Dict[str, Any] = {}
            self._sleep_saved_draft_buffers: Dict[str, Any] = {}

    def reload_weights(self, *arguments: Any, **named: Any) -> None:
        """vLLM's; afterwards gpu-ps no longer says that the weights need a refill."""
        super().reload_weights(*arguments, **named)
        if self._is_ours:
            self._preserve_buffers()
            mark_refilled(WEIGHTS)

    def _maybe_get_memory_pool_context(self, tag: str) -> ContextManager[None]:
        if not self._is_ours:
            pool: ContextManager[None] = super()._maybe_get_memory_pool_context(tag)
            return pool
        allocator = Allocator.get_instance()
        if tag == WEIGHTS and allocator.get_current_usage() > 0:
            raise Error("this process already has an engine, or PyTorch still keeps memory of one, and two engines "
                        "would sleep as one: start another process")
        return allocator.use_memory_pool(tag)
