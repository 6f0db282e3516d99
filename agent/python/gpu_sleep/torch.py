# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What a program with PyTorch needs besides tags: reading dropped weights again, in place."""

import collections
import concurrent.futures
import contextlib
import ctypes
import importlib
import json
import os
import pathlib
from typing import Any, Deque, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from . import _agent
from ._calls import Tags, hold, mark_refilled, tag_list
from .errors import InvalidArgument, of_code

Path = Union[str, "os.PathLike[str]"]

# tests/gpu/torch_reload.py measures with them, and with others (--readers, --ahead, --piece-mib).
_READERS = 12
_AHEAD = 4  # pieces that readers find when they are done, while an earlier one is slow: copies go in the order of pieces
_COPIES = 3  # pieces that are on their way to a GPU
_PIECE = 8 << 20

# Of the format, and PyTorch's. Those that a version of PyTorch does not have no model of it can have.
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}


class _Stored(NamedTuple):
    """A tensor in a file."""

    file: pathlib.Path
    first: int  # byte of the file
    size: int  # in bytes
    type: str
    shape: Tuple[int, ...]


class _Part(NamedTuple):
    """Bytes of a piece, and where they go."""

    at: int
    target: Any  # a tensor of bytes, as long


class _Piece(NamedTuple):
    """Bytes of a file that are read at once."""

    file: pathlib.Path
    first: int
    size: int
    parts: List[_Part]


def _files_of(path: Union[Path, Sequence[Path]]) -> List[pathlib.Path]:
    if not isinstance(path, (str, os.PathLike)):
        return [file for each in path for file in _files_of(each)]
    given = pathlib.Path(path)
    index = given / "model.safetensors.index.json" if given.is_dir() else given
    if index.name.endswith(".index.json") and index.is_file():
        with index.open(encoding="utf-8") as text:
            return [index.parent / name for name in sorted(set(json.load(text)["weight_map"].values()))]
    if not given.is_dir():
        return [given]
    found = sorted(given.glob("*.safetensors"))
    if not found:
        raise InvalidArgument(f"there are no safetensors files in {given}")
    return found


def _stored_in(file: pathlib.Path) -> Dict[str, _Stored]:
    """The tensors in a file. The format's own reader judges the header, which then holds what it says."""
    safetensors: Any = importlib.import_module("safetensors")
    with file.open("rb") as opened:
        try:
            with safetensors.safe_open(str(file), framework="pt"):
                pass
        except safetensors.SafetensorError as failure:
            raise of_code("io_failed", f"{file} is not a safetensors file: {failure}") from failure
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    return {name: _Stored(file, 8 + length + its["data_offsets"][0], its["data_offsets"][1] - its["data_offsets"][0],
                          its["dtype"], tuple(its["shape"])) for name, its in header.items()}


def _stored(path: Union[Path, Sequence[Path]]) -> Dict[str, _Stored]:
    found: Dict[str, _Stored] = {}
    for file in _files_of(path):
        for name, stored in _stored_in(file).items():
            if name in found:
                raise InvalidArgument(f"'{name}' is in {found[name].file} and in {file}")
            found[name] = stored
    return found


def _tensors_of(torch: Any, model: Any) -> Dict[str, Any]:
    named = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(named, Mapping):
        raise TypeError(f"this is neither a module nor tensors by name: {type(model).__name__}")
    return {name: tensor.detach() for name, tensor in named.items() if isinstance(tensor, torch.Tensor)}


def _place(tensor: Any) -> Tuple[str, int, int]:
    return str(tensor.device), tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _check_buffers(model: Any, tensors: Dict[str, Any]) -> None:
    """Buffers that no file ever has, such as a table of rotary embeddings: nothing would fill them again."""
    read = {_place(tensor) for tensor in tensors.values()}
    buffers = model.named_buffers() if hasattr(model, "named_buffers") else ()
    left = [name for name, buffer in buffers if buffer.device.type == "cuda" and _place(buffer) not in read]
    if left:
        raise InvalidArgument(f"the model's files never contain {_some(left)}: allocate such buffers outside the tag, or "
                              "fill them yourself and pass strict=False")


def _check_names(tensors: Dict[str, Any], stored: Dict[str, _Stored]) -> None:
    read: Set[Tuple[str, int, int]] = {_place(tensor) for name, tensor in tensors.items() if name in stored}
    missing = [name for name, tensor in tensors.items() if name not in stored and _place(tensor) not in read]
    unexpected = stored.keys() - tensors.keys()
    faults = ([f"the files have no {_some(missing)}"] if missing else []) + (
        [f"the model has no {_some(unexpected)}"] if unexpected else [])
    if faults:
        raise InvalidArgument("; ".join(faults))


def _check_kind(torch: Any, name: str, tensor: Any, stored: _Stored) -> None:
    if tuple(tensor.shape) != stored.shape:
        raise InvalidArgument(f"'{name}' has shape {tuple(tensor.shape)} in the model, and {stored.shape} in {stored.file}")
    if tensor.dtype is not getattr(torch, _TYPES.get(stored.type, ""), None):
        raise InvalidArgument(f"'{name}' is {tensor.dtype} in the model, and {stored.type} in {stored.file}")
    if tensor.device.type == "meta":
        raise InvalidArgument(f"'{name}' has no memory: it is on the device 'meta'")


def _straight(torch: Any, tensor: Any) -> Any:
    """The tensor, or memory for what is to go into one whose elements do not lie one after another."""
    return tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _pieces(torch: Any, tensors: List[Tuple[_Stored, Any]]) -> Iterator[_Piece]:
    """Reads of at most _PIECE bytes, each of neighbours in a file."""
    piece = _Piece(pathlib.Path(), 0, 0, [])
    for stored, tensor in sorted(tensors, key=lambda each: each[0][:2]):
        flat = tensor.reshape(-1).view(torch.uint8)
        done = 0
        while done < stored.size:
            first = stored.first + done
            if piece.size == _PIECE or (piece.file, piece.first + piece.size) != (stored.file, first):
                if piece.parts:
                    yield piece
                piece = _Piece(stored.file, first, 0, [])
            size = min(_PIECE - piece.size, stored.size - done)
            piece.parts.append(_Part(piece.size, flat[done:done + size]))
            piece = piece._replace(size=piece.size + size)
            done += size
    if piece.parts:
        yield piece


class _Buffer:
    """Host memory that pieces go through, one after another."""

    def __init__(self, torch: Any, pinned: bool) -> None:
        self._torch = torch
        self._tensor = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=pinned)
        self._bytes = memoryview((ctypes.c_ubyte * _PIECE).from_address(self._tensor.data_ptr())).cast("B")
        self._copies: Dict[str, Any] = {}  # events, by device

    def read(self, descriptor: int, piece: _Piece) -> None:
        done = 0
        while done < piece.size:
            count = os.preadv(descriptor, [self._bytes[done:piece.size]], piece.first + done)
            if count == 0:
                raise of_code("io_failed", f"{piece.file} has become shorter")
            done += count

    def copy(self, piece: _Piece) -> None:
        """Begins the copies of a piece that has been read, on the current stream of each device."""
        for part in piece.parts:
            source = self._tensor[part.at:part.at + part.target.numel()]
            part.target.copy_(source, non_blocking=True)
        for device in {part.target.device for part in piece.parts if part.target.device.type == "cuda"}:
            with self._torch.cuda.device(device):
                event = self._copies.setdefault(str(device), self._torch.cuda.Event())
                event.record()

    def wait(self) -> None:
        """Until its copies are done."""
        for event in self._copies.values():
            event.synchronize()


def _move(torch: Any, pieces: Iterable[_Piece], pinned: bool) -> None:
    """Readers fill buffers, which this thread alone copies from: in a callback others' GPU work is held back."""
    readers = max(1, min(_READERS, len(os.sched_getaffinity(0))))
    idle: Deque[_Buffer] = collections.deque()
    reading: Deque[Tuple[_Buffer, _Piece, "concurrent.futures.Future[None]"]] = collections.deque()
    copying: Deque[_Buffer] = collections.deque()

    def copy_first() -> None:
        buffer, piece, read = reading.popleft()
        read.result()
        buffer.copy(piece)
        copying.append(buffer)

    descriptors: Dict[pathlib.Path, int] = {}
    executor = concurrent.futures.ThreadPoolExecutor(readers, "gpu-sleep-read")
    try:
        for piece in pieces:
            if piece.file not in descriptors:
                descriptors[piece.file] = os.open(piece.file, os.O_RDONLY | os.O_CLOEXEC)
            while reading and (len(reading) == readers + _AHEAD or reading[0][2].done()):
                copy_first()
            if len(copying) > _COPIES:
                idle.append(copying.popleft())
                idle[-1].wait()
            buffer = idle.popleft() if idle else _Buffer(torch, pinned)
            reading.append((buffer, piece, executor.submit(buffer.read, descriptors[piece.file], piece)))
        while reading:
            copy_first()
    finally:
        executor.shutdown(cancel_futures=True)  # nobody reads into a buffer, or from a file, that is gone
        for buffer in copying:
            buffer.wait()
        for descriptor in descriptors.values():
            os.close(descriptor)


def reload(model: Any, path: Union[Path, Sequence[Path]], strict: bool = True, tags: Tags = None) -> int:
    """Reads a model's parameters and buffers from safetensors files again, into the memory that they have: after a
    sleep that dropped them, or to change weights in place. Returns how many bytes it has read.

    `model` is a module, or tensors by name, whose names and shapes are those in `path`: a file, several, or a
    directory (with model.safetensors.index.json, or else all *.safetensors). Of several names for the same memory
    one in the files suffices. With `strict=False` what only one side has is left alone, and so are a module's
    buffers on a GPU that are never in files (persistent=False). `tags` are those that this refills: on success they are
    marked so, as by mark_refilled().

    It reads by several threads, through at most 160 MiB of pinned memory, which PyTorch keeps, and copies on the current
    stream of each device; on return all is copied. It may be called in a function of on_wake(). Where an agent is loaded,
    sleeps wait for its end. Needs the package safetensors (ImportError).

    Errors, before anything is read: InvalidArgument (names, shapes or types differ), TypeError, OSError, Error
    (io_failed: not in the format). OSError or Error (io_failed) while it is read: the model is refilled in part.
    """
    torch: Any = importlib.import_module("torch")
    names = tag_list(tags or None)
    tensors, stored = _tensors_of(torch, model), _stored(path)
    if strict:
        _check_names(tensors, stored)
        _check_buffers(model, tensors)
    wanted = [(stored[name], tensor) for name, tensor in tensors.items() if name in stored]
    for name, tensor in tensors.items():
        if name in stored:
            _check_kind(torch, name, tensor, stored[name])
    with contextlib.nullcontext() if _agent.loaded() is None else hold(), torch.no_grad():
        straight = [(its, _straight(torch, tensor)) for its, tensor in wanted]
        _move(torch, _pieces(torch, straight), any(tensor.device.type == "cuda" for _, tensor in wanted))
        for (_, tensor), (_, source) in zip(wanted, straight):
            if source is not tensor:
                tensor.copy_(source)
        for device in {tensor.device for _, tensor in wanted if tensor.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
    for tag in names.split(",") if names is not None else ():
        mark_refilled(tag)
    return sum(its.size for its, _ in wanted)
