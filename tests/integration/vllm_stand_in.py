# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What gpu_sleep.vllm needs of vLLM 0.29 or 0.30, with its signatures, on the stand-in for PyTorch.

From a folder with vLLM's own sources, of which sleep_mode_backend.py and cumem.py are imported, and of the worker in
gpu_worker.py the methods about sleeping, if it is there.
"""

import abc
import ast
import contextlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import time
import types

import torch_stand_in
from torch_stand_in import Tensor, memory_info

at_synchronize = []  # what the next calls of torch.accelerator.synchronize() do, one each
configured = []  # what PyTorch's allocator was told


class OnHost:
    """Bytes of a tensor."""

    def __init__(self, value):
        self.value, self.data = value, self

    def clone(self):
        return self


class Buffer(Tensor):
    """A named buffer of a model; all of its bytes are alike."""

    @property
    def data(self):
        return self

    def cpu(self):
        return OnHost(self.bytes()[0])

    def copy_(self, other):
        self.fill_(other.value)


class Model:
    def __init__(self):
        self.weights, self.buffer = [Tensor(), Tensor()], Buffer()

    def named_buffers(self):
        return [("frequencies", self.buffer)]


class ModelRunner:
    """Of one engine."""

    def load_model(self):
        self.model = Model()

    def initialize_kv_cache(self, kv_cache_config):
        self.cache = [Tensor() for _ in range(kv_cache_config)]

    def reload_weights(self):
        for weight in self.model.weights:
            weight.fill_(7)

    def post_kv_cache_wake_up(self):
        pass

    def tensors(self):
        return [*self.model.weights, self.model.buffer, *self.cache]


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1):
        pass

    @abc.abstractmethod
    def resume(self, tags=None):
        pass

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return False

    @classmethod
    def preserves_compiled_artifacts(cls):
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls):
        return False

    @classmethod
    def supports_durable_storage(cls):
        return False


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(name)
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def get_backend_class(cls, name):
        module, name = cls._registry[name]
        return getattr(importlib.import_module(module), name)

    @classmethod
    def create_backend(cls, model_config):
        found = cls.get_backend_class(model_config.sleep_mode_backend)
        if not found.is_supported():
            raise ValueError(model_config.sleep_mode_backend)
        return found()


class CuMemAllocator:
    """Signatures alone."""

    default_tag = "default"

    @staticmethod
    def get_instance():
        raise NotImplementedError

    def release_pools(self):
        raise NotImplementedError

    def sleep(self, offload_tags=None):
        raise NotImplementedError

    def discard(self, tags):
        raise NotImplementedError

    def wake_up(self, tags=None):
        raise NotImplementedError

    def use_memory_pool(self, tag=None):
        raise NotImplementedError

    def get_current_usage(self):
        raise NotImplementedError


class Worker:
    def __init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=False):
        self.vllm_config, self.model_runner = vllm_config, ModelRunner()
        self._sleep_mode_backend = None
        self._sleep_saved_buffers, self._sleep_saved_draft_buffers = {}, {}

    def load_model(self, *, load_dummy_weights=False):
        with self._maybe_get_memory_pool_context(tag="weights"):
            self.model_runner.load_model()

    def initialize_from_config(self, kv_cache_config):
        with self._maybe_get_memory_pool_context(tag="kv_cache"):
            self.model_runner.initialize_kv_cache(kv_cache_config)

    def reload_weights(self, *args, **kwargs):
        self.model_runner.reload_weights(*args, **kwargs)

    def get_draft_model(self):
        return None

    def synchronize_device(self):
        pass

    def sleep(self, level=1):
        torch = sys.modules["torch"]
        torch.accelerator.synchronize()
        free = torch.accelerator.get_memory_info()[0]
        if level == 2:
            self._sleep_saved_buffers = {name: buffer.cpu() for name, buffer in self.model_runner.model.named_buffers()}
        its_backend(self).suspend(level)
        torch.accelerator.synchronize()
        assert torch.accelerator.get_memory_info()[0] >= free

    def wake_up(self, tags=None):
        its_backend(self).resume(tags)
        if tags is None or "weights" in tags:
            for name, buffer in self.model_runner.model.named_buffers():
                if name in self._sleep_saved_buffers:
                    buffer.copy_(self._sleep_saved_buffers.pop(name))

    def _maybe_get_memory_pool_context(self, tag):
        return contextlib.nullcontext("vLLM's own")


class Worker29(Worker):
    def _get_sleep_mode_backend(self):
        self._sleep_mode_backend = self._sleep_mode_backend or created(self)
        return self._sleep_mode_backend


class Worker30(Worker):
    @property
    def sleep_mode_backend(self):
        self._sleep_mode_backend = self._sleep_mode_backend or created(self)
        return self._sleep_mode_backend

    def discard(self, tags):
        self.sleep_mode_backend.discard(tags)


def created(worker):
    factory = sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory
    return factory.create_backend(worker.vllm_config.model_config)


def its_backend(worker):
    return worker._get_sleep_mode_backend() if hasattr(worker, "_get_sleep_mode_backend") else worker.sleep_mode_backend


def synchronize(device=None):
    if at_synchronize:
        at_synchronize.pop(0)()


def config(backend="gpu_sleep", enabled=True):
    return types.SimpleNamespace(model_config=types.SimpleNamespace(
        enable_sleep_mode=enabled, sleep_mode_backend=backend, enable_cumem_allocator=enabled, enable_nccl_comm_suspend=False))


def module(name, **contents):
    made = types.ModuleType(name)
    made.__dict__.update(contents, __path__=[])
    sys.modules[name] = made
    return made


def imported(name, file):
    """vLLM's own module."""
    spec = importlib.util.spec_from_file_location(name, file)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


def with_methods_of(file, base, names):
    """A class with these methods of vLLM's own worker, on what they name. It has to have all of them."""
    (worker,) = (each for each in ast.parse(file.read_text(encoding="utf-8")).body
                 if isinstance(each, ast.ClassDef) and each.name == "Worker")
    worker.body = [each for each in worker.body if getattr(each, "name", None) in names]
    assert {each.name for each in worker.body} == set(names), f"{file} is of another version: it lacks some of {names}"
    worker.bases = [ast.Name("base", ast.Load())]
    tree = ast.parse("from __future__ import annotations")
    tree.body.append(worker)
    platform = sys.modules["vllm.platforms"].current_platform
    known = {"base": base, "torch": sys.modules["torch"], "time": time, "current_platform": platform, "format_gib": str,
             "nullcontext": contextlib.nullcontext, "logger": sys.modules["vllm.logger"].init_logger("")}
    exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), known)
    return known["Worker"]


WORKER_METHODS = {version: ("sleep", "wake_up", "_maybe_get_memory_pool_context", *more) for version, more in (
    ("0.29", ("_get_sleep_mode_backend",)), ("0.30", ("sleep_mode_backend", "discard")))}


def parameters(function):
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def differences(own, real):
    """Where a stand-in has other abstract methods or parameters than vLLM's own class."""
    if getattr(own, "__abstractmethods__", ()) != getattr(real, "__abstractmethods__", ()):
        yield f"{real.__name__} has other abstract methods: {', '.join(sorted(real.__abstractmethods__))}"
    for name, its in vars(own).items():
        if name.startswith("_") or not callable(getattr(own, name)):
            continue
        if not hasattr(real, name):
            yield f"{real.__name__} has no {name}"
        elif parameters(getattr(own, name)) != parameters(getattr(real, name)):
            yield f"{real.__name__}.{name}{inspect.signature(getattr(real, name))} is not as in the stand-in"


def install(version, sources=None):
    """Has `import torch` and `import vllm` give this. Returns how vLLM's own classes, if any, differ from it."""
    torch_stand_in.install()
    torch = sys.modules["torch"]
    torch.accelerator = types.SimpleNamespace(synchronize=synchronize, get_memory_info=memory_info)
    torch.cuda.empty_cache = lambda: None
    torch.cuda.memory.MemPool = torch_stand_in.MemPool
    torch._C._accelerator_setAllocatorSettings = configured.append
    logger = types.SimpleNamespace(info=lambda *its: None)
    platform = types.SimpleNamespace(is_rocm=lambda: False, is_cuda_alike=lambda: True, is_xpu=lambda: False)
    for name, contents in {
        "vllm": {"envs": module("vllm.envs")}, "vllm.logger": {"init_logger": lambda name: logger}, "vllm.utils": {},
        "vllm.platforms": {"current_platform": platform}, "vllm.utils.mem_constants": {"GiB_bytes": 1 << 30},
        "vllm.utils.system_utils": {"find_loaded_library": None}, "vllm.utils.torch_utils": {"PIN_MEMORY": True},
        "vllm.device_allocator": {"AllocationData": None, "HandleType": tuple}, "vllm.v1": {},
    }.items():
        module(name, **contents)
    worker = {"0.29": Worker29, "0.30": Worker30}[version]
    if sources is None:
        module("vllm.device_allocator.sleep_mode_backend", SleepModeBackend=SleepModeBackend,
               SleepModeBackendFactory=SleepModeBackendFactory)
        module("vllm.device_allocator.cumem", CuMemAllocator=CuMemAllocator)
        its_worker = worker
        found = []
    else:
        directory = pathlib.Path(sources)
        backends = imported("vllm.device_allocator.sleep_mode_backend",
                            directory / "vllm/device_allocator/sleep_mode_backend.py")
        cumem = imported("vllm.device_allocator.cumem", directory / "vllm/device_allocator/cumem.py")
        found = [each for own, real in ((SleepModeBackend, backends.SleepModeBackend), (CuMemAllocator, cumem.CuMemAllocator),
                                        (SleepModeBackendFactory, backends.SleepModeBackendFactory))
                 for each in differences(own, real)]
        file = directory / "vllm/v1/worker/gpu_worker.py"
        its_worker = with_methods_of(file, worker, WORKER_METHODS[version]) if file.exists() else worker
    module("vllm.v1.worker", gpu_worker=module("vllm.v1.worker.gpu_worker", Worker=its_worker))
    return found
