# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The object that programs call, and what some of them reach into: `_impl`, its `_binary_wrapper` and `_mem_pools`."""

import contextlib
import ctypes
import operator
import os
import stat
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Tuple, get_args

from gpu_sleep import _agent, _regions
from gpu_sleep.errors import Error, InvalidArgument

from .binary_wrapper import BinaryWrapper
from .hooks import mode_preload
from .hooks.base import HookMode, HookUtilBase
from .utils import is_xpu

_TAG_DEFAULT = "default"
CpuBackupBackend = Literal["mmap", "pinned"]
_TRUE = ("1", "true", "TRUE", "yes", "YES")
_first_use = threading.RLock()
_BOOLEANS = ("", *_TRUE, "0", "false", "FALSE", "no", "NO")


def _check_backup(cpu: bool, disk: bool, backend: Optional[str]) -> None:
    if backend is not None and not cpu:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    if backend is not None and backend not in get_args(CpuBackupBackend):
        raise ValueError(f"cpu_backup_backend must be \"mmap\" or \"pinned\", not {backend!r}")
    if backend is not None and is_xpu():
        raise ValueError("cpu_backup_backend is not supported on XPU")
    if backend == "mmap" and getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None):
        raise ValueError("cpu_backup_backend='mmap' is not supported on ROCm")
    assert not (cpu and disk), "a backup goes to host memory (enable_cpu_backup) or to files (enable_disk_backup), not to both"


def _given(options: Dict[str, Any]) -> Dict[str, Any]:
    """Those that are not the default: slime and others put in place of ours what does not know all."""
    return {name: value for name, value in options.items() if value}


def _check_environment() -> None:
    for name in ("TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP", "TMS_RETAIN_CPU_BACKUP"):
        if os.environ.get(name, "") not in _BOOLEANS:
            raise ValueError(f"{name} is neither 1 nor 0, but {os.environ[name]!r}")
    _check_backup(True, False, os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or None)
    cpu, disk = (os.environ.get(f"TMS_INIT_ENABLE_{kind}_BACKUP") in _TRUE for kind in ("CPU", "DISK"))
    _check_backup(cpu, disk, None)
    for name in _regions.CONFIGURATIONS:
        if _regions.EXPANDABLE.search(os.environ.get(name, "")):
            raise RuntimeError(f"memory of regions comes from pools, which do not work with PyTorch's expandable segments: "
                               f"take expandable_segments out of {name}")


def _c_tag(tag: Optional[str]) -> Optional[bytes]:
    """None for all. Errors: TypeError, InvalidArgument."""
    return None if tag is None else _agent.c_text(tag, "a tag")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pools: Dict[int, _regions.Diversion] = {}  # by device
        self.contexts: List[object] = []  # that are open, the innermost last

    def enter(self) -> object:
        self.contexts.append(object())
        return self.contexts[-1]

    def leave(self, context: object) -> None:
        """Before anything is as it was outside of the context. Errors: AssertionError, and nothing changes."""
        assert self.contexts[-1:] == [context], "regions end on the thread on which they began, the last one first"
        self.contexts.pop()

    def use(self, device: int, pool: Optional[_regions.Diversion]) -> None:
        """From here on this pool, or none, in place of the one that is used."""
        before = self.pools.get(device)
        if before is pool:
            return
        if before is not None:
            del self.pools[device]
            before.end()
        if pool is not None:
            pool.begin()
            self.pools[device] = pool


_thread = _Thread()


@contextlib.contextmanager
def _allocating_from(pool: Any) -> Iterator[None]:
    """For `with`: on the current device this thread allocates from this pool of PyTorch's, or from none of a region. Of several
    pools PyTorch would take the outermost. Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, get_pool."""
    import torch

    device = torch.cuda.current_device()
    outer, own = _thread.pools.get(device), None if pool is None else _regions.Diversion(torch, device, pool)
    if outer is not None and outer.pool is pool:
        own = outer
    context = _thread.enter()
    try:
        _thread.use(device, own)
        yield
    finally:
        _thread.leave(context)
        _thread.use(device, outer)


class TorchMemorySaver:
    """Memory that is allocated in a region() may be paused, by tag. pause() releases its GPU memory, and resume() brings it
    back at the same addresses: with its contents where it has a backup, else with zeros."""

    def __init__(self) -> None:
        self._hook_mode = "preload"
        self._impl_ctor_kwargs: Dict[str, Any] = {}  # until there is an _impl, which others may set
        self._impl: Any = None

    @contextlib.contextmanager
    def region(self, tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[CpuBackupBackend] = None) -> Iterator[None]:
        """For `with`: what the calling thread allocates by PyTorch, on the current device, is of this tag, which is any text
        without a NUL."""
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        more = {"enable_disk_backup": enable_disk_backup, "cpu_backup_backend": cpu_backup_backend}
        with self._started().region(tag=tag, enable_cpu_backup=enable_cpu_backup, **_given(more)):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global",
                   tag: str = _TAG_DEFAULT, enable_cpu_backup: bool = False,
                   cpu_backup_backend: Optional[CpuBackupBackend] = None) -> Iterator[None]:
        """For `with`, as torch.cuda.graph(): what the graph allocates is of this tag. In hook mode "preload" only."""
        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        with self._started().cuda_graph(
                cuda_graph=cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode, tag=tag,
                enable_cpu_backup=enable_cpu_backup, **_given({"cpu_backup_backend": cpu_backup_backend})):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """For `with`, in a region: what is allocated is not paused. Its pool is thrown away at the end."""
        with self._started().disable():
            yield

    def keep_resident(self, tensor: Any) -> int:
        """Keeps pause() from releasing the allocation that holds a tensor, with all else in it, until PyTorch frees it:
        for memory that is registered with a library. Returns the allocation's size in bytes, 0 where it is of no region.

        Errors: ValueError (not on a GPU), those of gpu_sleep, among them Refused (it is paused).
        """
        return int(self._started().keep_resident(tensor))

    def pause(self, tag: Optional[str] = None) -> None:
        """Releases the memory of a tag, or of all. Does nothing where there is none.

        Errors: those of gpu_sleep, among them InvalidArgument (all of it is paused already): all is as it was.
        """
        self._started().pause(tag=tag)

    def resume(self, tag: Optional[str] = None) -> None:
        """Brings the memory of a tag, or of all, back. Does nothing where there is none.

        Errors: those of gpu_sleep, among them OutOfDeviceMemory and InvalidArgument (nothing of it is paused): what was paused
        still is, with its contents.
        """
        self._started().resume(tag=tag)

    @property
    def enabled(self) -> bool:
        return True

    @property
    def hook_mode(self) -> str:
        raise AttributeError("hook_mode can only be set")

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        """ "preload", "torch" or one of register_hook_mode(), before the first use."""
        if mode not in _modes and TorchMemorySaver._ensure_initialized is _ensure_initialized:
            raise ValueError(f"hook_mode is one of {', '.join(_modes)}, not {mode!r}")
        assert self._impl is None or mode == self._hook_mode, "hook_mode must be set before the first use"
        self._hook_mode = mode
        if self._impl is None:
            self._impl_ctor_kwargs["hook_mode"] = mode

    @property
    def memory_margin_bytes(self) -> int:
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, count: int) -> None:
        """In regions, an allocation fails if it would leave less than this much GPU memory free."""
        if not 0 <= operator.index(count) < 1 << 64:
            raise InvalidArgument(f"memory_margin_bytes is a number of bytes, not {count}")
        self._started()._binary_wrapper.cdll.set_memory_margin_bytes(operator.index(count))

    @property
    def retain_cpu_backup(self) -> bool:
        return bool(self._started()._binary_wrapper.cdll.tms_get_retain_cpu_backup())

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        """Whether get_cpu_backup() goes on to answer after a resume()."""
        self._started()._binary_wrapper.cdll.tms_set_retain_cpu_backup(value)

    def set_disk_backup_dir(self, path: str) -> None:
        """Where files are written, from the next pause() on: made if it is missing.

        Errors: OSError, InvalidArgument (it belongs to somebody else, or others may look into it)."""
        self._started().set_disk_backup_dir(path)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The contents of a paused tensor that has a backup in host memory, as a tensor there; of an active one those of its
        last pause, if they are retained, else None. None, too, where the backup is in files.

        With `zero_copy` it is good until the next pause() or resume(), or until the tensor's memory is freed.

        Errors: AssertionError (not on a GPU, not contiguous), Error (not of a region, or paused without backup).
        """
        return self._started().get_cpu_backup(x, zero_copy=zero_copy)

    def _ensure_initialized(self) -> None:
        """Sets _impl. NVIDIA Dynamo puts another function in its place, which makes an object of its own."""
        with _first_use:
            if self._impl is None:
                self._impl = _modes[self._impl_ctor_kwargs.get("hook_mode", "preload")][0]()
                del self._impl_ctor_kwargs

    def _started(self) -> Any:
        self._ensure_initialized()
        return self._impl

    def _uses_preload(self) -> bool:
        return self._hook_mode not in _modes or _modes[self._hook_mode][1]


_ensure_initialized = TorchMemorySaver._ensure_initialized


class _TorchMemorySaverImpl:
    def __init__(self, hook_mode: HookMode = "preload") -> None:
        _check_environment()
        self._hook_mode = hook_mode
        self._hook_util = HookUtilBase.create(hook_mode=hook_mode)
        self._binary_wrapper = BinaryWrapper(path_binary=self._hook_util.get_path_binary())
        self._mem_pools: Dict[Tuple[str, bool, bool, str, int], Any] = {}
        # PyTorch would free memory by it when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._mem_pools))
        directory = os.environ.get("TMS_DISK_BACKUP_DIR")
        if directory:
            self.set_disk_backup_dir(directory)

    def _pool(self, key: Tuple[str, bool, bool, str, int]) -> Any:
        import torch

        if key not in self._mem_pools:
            allocator = self._hook_util.get_allocator()
            self._mem_pools[key] = torch.cuda.MemPool() if allocator is None else torch.cuda.MemPool(allocator)
        return self._mem_pools[key]

    @contextlib.contextmanager
    def region(self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[CpuBackupBackend] = None) -> Iterator[None]:
        import torch

        _c_tag(tag)  # before there is a pool for it
        backend = cpu_backup_backend or self._binary_wrapper.cdll.tms_get_cpu_backup_backend().decode()
        pool = self._pool((tag, enable_cpu_backup, enable_disk_backup, backend if enable_cpu_backup else "",
                           torch.cuda.current_device()))
        more = {"enable_disk_backup": enable_disk_backup, "cpu_backup_backend": cpu_backup_backend}
        with _allocating_from(pool), self._with_region_config(tag=tag, enable_cpu_backup=enable_cpu_backup, **_given(more)):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: Any, pool: Any, stream: Any, capture_error_mode: str, tag: str, enable_cpu_backup: bool,
                   cpu_backup_backend: Optional[CpuBackupBackend] = None) -> Iterator[None]:
        import torch

        assert self._hook_mode == "preload", "graphs are captured in hook mode \"preload\" only"
        with _allocating_from(None), torch.cuda.graph(
                cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            with self._with_region_config(
                    tag=tag, enable_cpu_backup=enable_cpu_backup, **_given({"cpu_backup_backend": cpu_backup_backend})):
                yield

    @contextlib.contextmanager
    def _with_region_config(self, tag: str, enable_cpu_backup: bool, cpu_backup_backend: Optional[CpuBackupBackend] = None,
                            enable_disk_backup: bool = False) -> Iterator[None]:
        """For `with`: how the calling thread allocates. Nests."""
        library = self._binary_wrapper.cdll
        before: Dict[str, Any] = {
            "tag": library.tms_get_current_tag().decode(),
            "interesting_region": library.tms_get_interesting_region(),
            "enable_cpu_backup": library.tms_get_enable_cpu_backup(),
            "cpu_backup_backend": library.tms_get_cpu_backup_backend().decode(),
            "enable_disk_backup": library.tms_get_enable_disk_backup(),
        }
        self._binary_wrapper.set_config(tag=tag, interesting_region=True, enable_cpu_backup=enable_cpu_backup,
                                        cpu_backup_backend=cpu_backup_backend, enable_disk_backup=enable_disk_backup)
        context = _thread.enter()
        try:
            yield
        finally:
            _thread.leave(context)
            self._binary_wrapper.set_config(**before)

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        import torch

        library = self._binary_wrapper.cdll
        assert library.tms_get_interesting_region(), "disable() must be called in a region"
        library.tms_set_interesting_region(False)
        context = _thread.enter()
        try:
            with _allocating_from(torch.cuda.MemPool()):
                yield
        finally:
            _thread.leave(context)
            library.tms_set_interesting_region(True)

    def pause(self, tag: Optional[str]) -> None:
        import torch

        for device in self._affected_devices(tag):
            torch.cuda.synchronize(device)
        self._binary_wrapper.check(self._binary_wrapper.cdll.tms_pause(_c_tag(tag)))

    def resume(self, tag: Optional[str]) -> None:
        self._binary_wrapper.check(self._binary_wrapper.cdll.tms_resume(_c_tag(tag)))

    def keep_resident(self, tensor: Any) -> int:
        if not tensor.is_cuda:
            raise ValueError(f"a tensor on {tensor.device} is not on a GPU")
        if tensor.numel() == 0:
            return 0
        size: int = self._binary_wrapper.cdll.tms_keep_resident(tensor.data_ptr())
        self._binary_wrapper.check(self._binary_wrapper.cdll.tms_last_status())
        return size

    def _affected_devices(self, tag: Optional[str]) -> List[int]:
        found = (ctypes.c_int * 64)()
        count: int = self._binary_wrapper.cdll.tms_affected_devices(_c_tag(tag), found, len(found))
        assert count <= len(found), f"Too many affected devices: {count}"
        return found[:count]

    def set_disk_backup_dir(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        its = os.lstat(path)
        if its.st_uid != os.geteuid() or stat.S_IMODE(its.st_mode) & 0o077:
            raise InvalidArgument(f"{path} is not private to this user; name a new directory in it, which will be")
        self._binary_wrapper.cdll.tms_set_disk_backup_dir(os.path.abspath(path).encode())

    def get_cpu_backup(self, x: Any, zero_copy: bool) -> Any:
        import torch

        assert x.is_cuda, f"a tensor on {x.device} has no backup"
        assert x.is_contiguous(), "only the backup of a contiguous tensor can be returned"
        if x.nbytes == 0:
            return None
        address = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
        found = self._binary_wrapper.cdll.tms_get_cpu_backup_pointer(address, x.nbytes)
        if not found:
            why = self._binary_wrapper.last_error()
            if why:
                raise Error(why)
            return None
        memory = (ctypes.c_uint8 * x.nbytes).from_address(ctypes.addressof(found.contents))
        backup = torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype).view(x.shape)
        return backup if zero_copy else backup.clone()


_modes: Dict[str, Tuple[Callable[[], Any], bool]] = {
    "preload": (_TorchMemorySaverImpl, True),
    "torch": (lambda: _TorchMemorySaverImpl("torch"), True),
}


def register_hook_mode(name: str, factory: Callable[[], Any], *, uses_preload: bool = True) -> None:
    """Adds a hook mode: `factory` makes an object with region(), cuda_graph(), pause(), resume() and all else that is used.
    `uses_preload`: configure_subprocess() has an effect. Errors: ValueError (the name is taken)."""
    if name in _modes:
        raise ValueError(f"there is a hook mode {name!r} already")
    _modes[name] = factory, uses_preload


torch_memory_saver = TorchMemorySaver()


def configure_subprocess() -> "contextlib.AbstractContextManager[None]":
    """For `with`: programs that are started inside preload the library."""
    return mode_preload.configure_subprocess() if torch_memory_saver._uses_preload() else contextlib.nullcontext()
