# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Where the libraries are, and setting a variable for a while."""

import contextlib
import ctypes
import os
import pathlib
import sys
from typing import Iterator

_MAJORS = (13, 12)  # versions of CUDA, for which file names differ, and no more


def _cuda_major() -> int:
    """Of PyTorch, or else of the runtime that can be loaded. Errors: RuntimeError."""
    try:
        import torch

        return int((torch.version.cuda or "").partition(".")[0])
    except (ImportError, AttributeError, ValueError):
        pass
    for major in _MAJORS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"libcudart.so.{major}")
            return major
    raise RuntimeError("there is neither a PyTorch for CUDA nor a CUDA runtime: libcudart.so.13 or libcudart.so.12")


def is_xpu() -> bool:
    """Whether the GPUs are Intel's, which this does not work on."""
    return False


def get_binary_path_from_package(stem: str) -> pathlib.Path:
    """The library of this stem for the version of CUDA (for a PyTorch for AMD's GPUs, where there is none of ours, for none): in the package, or beside it. Errors: RuntimeError."""
    package = pathlib.Path(__file__).absolute().parent
    is_rocm = bool(getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None))
    pattern = f"{stem}.*.so" if is_rocm else f"{stem}_cu{_cuda_major()}.*.so"
    found = list(package.glob(pattern)) or list(package.parent.glob(pattern))
    if len(found) != 1:
        raise RuntimeError(f"expected one library {pattern} in {package.parent}, found {len(found)}: reinstall gpu-sleep's "
                           "stand-in for torch_memory_saver")
    return found[0]


@contextlib.contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """For `with`: the variable has this value. Nobody else may change it meanwhile (AssertionError)."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        assert os.environ.get(key) == value, f"{key} was changed meanwhile"
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before
