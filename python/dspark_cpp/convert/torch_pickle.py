"""The side file mask_embedding.pt of z-lab's drafts, read without importing torch and without running its pickle.

The zip archive holds a pickle that describes two values and a file with the numbers. The pickle's opcodes are walked
as data: only opcodes that build plain values and the two calls that describe a tensor are understood, and these are
recorded, not called.
Source: torch.save's zip layout (data.pkl, data/<key>, byteorder).
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FileError, FormatError
from .weights import BF16, as_f32

__all__ = ["read_mask_embedding"]

FILE_NAME = "mask_embedding.pt"
_MAX_PICKLE_BYTES = 1 << 16
_MAX_DATA_BYTES = 1 << 22
_STORAGES = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch BFloat16Storage": BF16,
    "torch DoubleStorage": np.dtype("<f8"),
}
_REBUILD = "torch._utils _rebuild_tensor_v2"
_ORDERED_DICT = "collections OrderedDict"


class _Global(str):
    """A name that the pickle would import, kept as a name."""


class _Storage:
    def __init__(self, dtype: np.dtype, key: str) -> None:
        self.dtype, self.key = dtype, key


class _Tensor:
    def __init__(self, storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride


_MARK = object()


def _walk(data: bytes) -> Any:
    """What the pickle describes, as plain values and _Tensor records.

    Raises: ValueError for anything that a saved dictionary of tensors does not need.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_to_mark() -> list[Any]:
        items: list[Any] = []
        while (item := stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    for opcode, arg, _ in pickletools.genops(data):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        elif name == "STOP":
            return stack.pop()
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT"):
            stack.append(arg)
        elif name in ("NEWTRUE", "NEWFALSE"):
            stack.append(name == "NEWTRUE")
        elif name == "NONE":
            stack.append(None)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif name == "TUPLE":
            stack.append(tuple(pop_to_mark()))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[int(arg or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(arg or 0)])
        elif name == "GLOBAL":
            stack.append(_Global(arg))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_Global(f"{module} {attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            args = stack.pop()
            stack.append(_call(stack.pop(), args))
        elif name in ("SETITEM", "SETITEMS"):
            items = pop_to_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError(f"opcode {name} is not one that a dictionary of tensors needs")
    raise ValueError("the pickle has no end")


def _storage(pid: Any) -> _Storage:
    if not (isinstance(pid, tuple) and len(pid) >= 3 and pid[0] == "storage" and pid[1] in _STORAGES):
        raise ValueError(f"storage {pid!r} is not a CPU float storage")
    return _Storage(_STORAGES[pid[1]], str(pid[2]))


def _call(function: Any, args: Any) -> Any:
    if function == _ORDERED_DICT and args == ():
        return {}
    if function == _REBUILD and isinstance(args, tuple) and len(args) >= 4 and isinstance(args[0], _Storage):
        storage, offset, shape, stride = args[:4]
        numbers = (offset, *shape, *stride)
        if all(type(n) is int and 0 <= n < 2**31 for n in numbers):
            return _Tensor(storage, offset, tuple(shape), tuple(stride))
    raise ValueError(f"a call of {function} is not one that a dictionary of tensors needs")


def read_mask_embedding(folder: Path, mask_token_id: int, n_embd: int) -> NDArray[np.float32] | None:
    """The embedding of the mask token that the folder's side file gives, (H,) float32, or None without such a file.

    Raises: FileError where it is not a torch archive; FormatError where it is for another token or size.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}

            def read(name: str, limit: int) -> bytes:
                info = archive.getinfo(names[name])
                if info.file_size > limit:
                    raise ValueError(f"{name} has {info.file_size} bytes, at most {limit} are expected")
                return archive.read(info)

            if "byteorder" in names and read("byteorder", 16) != b"little":
                raise ValueError("it is not little endian")
            value = _walk(read("data.pkl", _MAX_PICKLE_BYTES))
            tensor = value.get("embedding") if isinstance(value, dict) else None
            if not isinstance(tensor, _Tensor):
                raise ValueError("it has no tensor 'embedding'")
            raw = read(f"data/{tensor.storage.key}", _MAX_DATA_BYTES)
    except Exception as e:  # zipfile and pickletools raise whatever a malformed file happens to trip
        raise FileError(f"{path}: not a file of mask_token_id and embedding as torch.save writes it: {e}") from None
    if value.get("mask_token_id") != mask_token_id:
        raise FormatError(
            f"{path}: mask_token_id is {value.get('mask_token_id')!r}, but the config says {mask_token_id}"
        )
    n_stored = len(raw) // tensor.storage.dtype.itemsize
    if tensor.shape != (n_embd,) or tensor.stride != (1,) or tensor.offset + n_embd > n_stored:
        raise FormatError(f"{path}: embedding has shape {list(tensor.shape)}, but [{n_embd}] is needed")
    stored = np.frombuffer(
        raw, tensor.storage.dtype, count=n_embd, offset=tensor.offset * tensor.storage.dtype.itemsize
    )
    return as_f32(stored)
