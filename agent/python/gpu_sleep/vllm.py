# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""vLLM's sleep mode by gpu-sleep.

    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend gpu_sleep --worker-cls gpu_sleep.vllm.Worker

The wheel registers the backend with vLLM. The worker class has the engine allocate under the tags "weights" and
"kv_cache", which vLLM's routes /sleep and /wake_up then put to sleep and wake, and gpu-sleep and gpu-wake as well. At
level 1 weights are kept and the cache is dropped, at level 2 both are dropped. Of the engine's own tags the scratch memory
of "workspace" is dropped at both. The model's buffers and all other tags are kept at both, and wake with whatever wakes. At
level 0 vLLM pauses by itself, and no memory sleeps.

Under gpu-run the tags also cover what libraries (cuBLAS, NCCL) allocate by themselves on the thread that loads the model or
makes the cache, and it is dropped with them. Without gpu-run they cover PyTorch's memory alone, like vLLM's own.

Memory that is freed while a model is loaded stays with the tag, for later allocations, and so does that of an engine that has
ended: start another process for another engine. If any other tag is entered again, memory of an earlier entry goes back to the
driver once none of it is in use. After "gpu-sleep --level 2" from outside, vLLM does not know that its weights and cache are
gone: use level 1. Until reload_weights has run, gpu-ps says that dropped weights need a refill. Host memory is retained after a
wake, whatever VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY says: gpu-sleep --release-retained gives it back.

Unlike vLLM's own: a wake without room changes nothing and can be tried again; another process that takes what a sleep gave
back does not make it fail; and each sleep is all or nothing. Importing needs neither vLLM nor PyTorch.

Written for vLLM 0.29 and 0.30, and never run inside of vLLM. Tested with these of its sources: sleep_mode_backend.py of
commit 0327d59d, cumem.py of commit 1b231062 of the fork aoshen02/vllm, and of gpu_worker.py the methods about sleeping of
a version that has _get_sleep_mode_backend(), as 0.29; 0.30's worker only as a stand-in.
"""

import contextlib
import gc
import importlib
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from . import _agent, _graphs, _regions
from ._calls import asleep_bytes, inhibit, policy, sleep, wake
from ._processes import TagStatus
from ._processes import status as process_status
from .errors import Error, OutOfDeviceMemory

BACKEND = "gpu_sleep"  # as --sleep-mode-backend names it
WEIGHTS, CACHE = "weights", "kv_cache"  # vLLM's names; a wake may leave these alone asleep
SCRATCH = "workspace"  # nothing in it outlives a step

_LAZY = {"Backend": "._vllm_backend", "Worker": "._vllm_worker"}


def register() -> None:
    """The entry point of vllm.general_plugins: lets vLLM find the backend. Does nothing the second time, or with a
    vLLM that has no backends."""
    try:
        factory = importlib.import_module("vllm.device_allocator.sleep_mode_backend").SleepModeBackendFactory
    except (ImportError, AttributeError):
        return
    with contextlib.suppress(ValueError):  # it is registered
        factory.register_backend(BACKEND, __name__, "Backend")


def __getattr__(name: str) -> Any:
    """Backend and Worker, which derive from vLLM's classes and so import it."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Allocator:
    """The memory of vLLM's tags, with the interface of vLLM's CuMemAllocator; one per process. Call it from any thread.

    It alone sets the policies of its tags (gpu_sleep.policy()). It exposes no CUDA handles.
    """

    cudagraph_tag = "cudagraph"
    default_tag = "vllm"  # all memory without a tag has "default", also what vLLM never drops
    instance: "Optional[Allocator]" = None

    @staticmethod
    def get_instance() -> "Allocator":
        """That of the process."""
        if Allocator.instance is None:
            Allocator.instance = Allocator()
        return Allocator.instance

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tags: Dict[str, None] = {}  # in the order of their first use
        self._graph_pools: Dict[Any, Any] = {}  # by what the engine calls them, and the device

    @property
    def current_tag(self) -> str:
        """That of the calling thread's innermost use_memory_pool()."""
        return _regions.current_tag().decode()

    @property
    def tags(self) -> Tuple[str, ...]:
        """Those that use_memory_pool() has had."""
        return tuple(self._tags)

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """For `with`: GPU memory that the calling thread allocates inside has this tag, by default default_tag. As
        gpu_sleep.tag(), but PyTorch's expandable segments are off until the end. When a tag is entered again, what an
        earlier entry has allocated goes back to the driver as soon as none of it is used any more, at the latest at the end.

        Errors, on entering: NoAgent, InvalidArgument (bad tag), Error (PyTorch has no memory pools).
        """
        name = self.default_tag if tag is None else tag
        is_engines = name not in (WEIGHTS, CACHE)  # which one entry fills
        with _regions.without_expandable_segments():
            with _regions.Region(name, None, has_own_pools=is_engines):
                self._add(name)
                yield
            if is_engines and asleep_bytes() == 0:  # else PyTorch could wait for what sleeps
                _regions.give_back_unused(name.encode())

    def _add(self, name: str) -> None:
        policy(name, "offload")  # from now on there is such a tag, whether or not it gets memory
        self._tags[name] = None

    @contextlib.contextmanager
    def use_cudagraph_pool(self, pool: Any = None) -> Iterator[Any]:
        """For `with`: gives a pool, for torch.cuda.graph(pool=): graphs that the calling thread captures into it have
        memory of cudagraph_tag. `pool`: graphs with the same one share memory, as PyTorch has it. Sleeps wait for the end.

        Errors, on entering: NoAgent, InvalidArgument (within a capture, expandable segments), Error (no PyTorch with a GPU).
        """
        torch = _regions.torch_with_cuda()
        if torch is None:
            raise Error("graphs need PyTorch, which is not imported or has no GPU")
        device = torch.cuda.current_device()
        with _graphs.capturing(self.cudagraph_tag.encode(), device):
            self._add(self.cudagraph_tag)
            with self._lock:
                if (pool, device) not in self._graph_pools:
                    self._graph_pools[pool, device] = _regions.new_pool(torch, device)
                own = self._graph_pools[pool, device]
            yield own.id

    cudagraph_pool = use_cudagraph_pool  # a newer name

    def release_cudagraph_pool(self, pool: Any = None) -> None:
        """Once its graphs have ended, their memory goes back to the driver."""
        with self._lock:
            for key in [each for each in self._graph_pools if each[0] == pool]:
                _regions.drop_pool(self._graph_pools.pop(key))
        sys.modules["torch"].cuda.empty_cache()

    def sleep(self, offload_tags: Union[Tuple[str, ...], str, None] = None) -> None:
        """Puts all tags to sleep: those of `offload_tags` (by default default_tag alone) are kept in host memory, all
        others are dropped. What sleeps already stays as it is. On return the memory is free.

        Errors, after which all is as it was: those of gpu_sleep.sleep().
        """
        kept = (self.default_tag,) if offload_tags is None else offload_tags
        kept = (kept,) if isinstance(kept, str) else kept
        self._sleep({tag: tag in kept for tag in self.tags})

    def discard(self, tags: Union[Tuple[str, ...], str]) -> None:
        """Drops the contents of these tags, but for what preserve() keeps, and lets them sleep; what sleeps already stays
        as it is.

        Errors, after which all is as it was: those of gpu_sleep.sleep().
        """
        names = (tags,) if isinstance(tags, str) else tags
        self._sleep({tag: False for tag in self.tags if tag in names})

    def _sleep(self, kept: Dict[str, bool]) -> None:
        """Puts tags to sleep, each kept or not, as one."""
        if not kept:
            return
        with self._lock, inhibit():  # whoever else asked now would have these policies
            asleep = self._release_caches()
            held = {each.tag for each in asleep if each.kept_bytes > 0}  # by whomever, and not dropped now
            try:
                for tag, keep in kept.items():
                    policy(tag, "offload" if keep or tag in held else "discard")
                sleep(1, kept)
            finally:
                for tag in kept:
                    policy(tag, "offload")

    def wake_up(self, tags: Optional[List[str]] = None) -> None:
        """Wakes these tags, by default all that sleeps in the process, and with any of them all but WEIGHTS and CACHE. What
        was dropped reads as zero. An empty list wakes nothing.

        Errors, after which what was asleep still is, with its contents: OutOfDeviceMemory (a RuntimeError, as all are),
        and the others of gpu_sleep.wake(). Damaged: the other tags are awake.
        """
        with self._lock:
            names = None if tags is None else [
                tag for tag in self.tags if tags and (tag in tags or tag not in (WEIGHTS, CACHE))]
            if names is not None and not names:
                return
            try:
                wake(names)
            except OutOfDeviceMemory:
                with inhibit():
                    self._release_caches()  # which may be the room that it needs
                wake(names)

    def status(self) -> Tuple[TagStatus, ...]:
        """How each of its tags is on each device. Errors: NoAgent, Error."""
        return tuple(each for each in process_status().tags if each.tag in self._tags) if self._tags else ()

    def is_asleep(self, tag: str) -> bool:
        """Whether any memory of the tag sleeps, whoever put it to sleep. Errors: NoAgent."""
        return tag in self._tags and any(each.tag == tag.encode() and each.state != 0 for each in _agent.tag_states())

    def _release_caches(self) -> List[TagStatus]:
        """What nobody uses any more is neither kept nor stays on the GPU. Returns which tags sleep, in part or wholly.

        Expandable segments are unmapped then, which waits where the gate is shut, or where they sleep themselves.
        """
        asleep: List[TagStatus] = []
        if asleep_bytes() > 0:
            process = process_status()
            asleep = [each for each in process.tags if each.state != "awake"]
            is_shut = process.deep or (process.gate is not None and process.gate.state == "shut")
            if is_shut or any(each.tag not in self._tags for each in asleep):
                return asleep
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.cuda.empty_cache()
        return asleep

    def get_current_usage(self) -> int:
        """How much GPU memory its tags have while they are awake, in bytes. Errors: NoAgent, Error."""
        return sum(each.bytes for each in self.status())

    def release_pools(self) -> None:
        """Does nothing: pools live as long as the process, and PyTorch frees nothing by them at its end."""
