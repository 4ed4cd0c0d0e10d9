"""safetensors files as memory-mapped numpy arrays: nothing is read before it is sliced.

Own reader, because loading must slice single rows out of bf16 tensors without torch. The format: u64 header length,
a JSON header {name: {dtype, shape, data_offsets}}, then the bytes. Invariant: a header that doesn't fit its file is
refused before any byte is used. Host code: numpy only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_LIMIT = 100 * 2**20  # bytes; the format's own bound


def open_tensors(directory: str | Path) -> dict[str, NDArray[Any]]:
    """All tensors of a model directory by name, memory-mapped read-only.

    Reads model.safetensors.index.json and the shards it names, else every *.safetensors there. ValueError where there
    is none, a shard lacks a tensor of the index, two files hold one name, or a header is damaged.
    """
    folder = Path(directory)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        paths = [folder / name for name in sorted(set(weight_map.values()))]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise ValueError(f"{index} names shards that are not there: {missing}; download the directory again")
    else:
        weight_map, paths = {}, sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"no *.safetensors in {folder} (it holds {sorted(p.name for p in folder.glob('*'))[:20]})")
    tensors: dict[str, NDArray[Any]] = {}
    for path in paths:
        shard = open_file(path)
        if twice := sorted(set(shard) & set(tensors)):
            raise ValueError(f"{path} repeats tensors of another file: {twice[:5]}; keep one set of weights there")
        tensors.update(shard)
    if lost := sorted(set(weight_map) - set(tensors)):
        raise ValueError(f"{index} promises tensors that no shard holds: {lost[:5]} ({len(lost)} in all)")
    return tensors


def open_file(path: str | Path) -> dict[str, NDArray[Any]]:
    """Tensors of one file, memory-mapped; ValueError names what is wrong with a damaged file."""
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise ValueError(f"{path}: header of {length} bytes in a file of {size}: truncated, or no safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path}: the header is no JSON ({error})") from error
    header.pop("__metadata__", None)
    if size == 8 + length:
        return {}
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    return {name: _tensor(path, name, entry, data) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: Mapping[str, Any], data: NDArray[np.uint8]) -> NDArray[Any]:
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(
            f"{path}: tensor {name!r} is {entry['dtype']}; read are {sorted(DTYPES)} (unquantised weights)"
        )
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    need = math.prod(shape) * dtype.itemsize
    if not 0 <= start <= stop <= len(data) or stop - start != need:
        raise ValueError(
            f"{path}: tensor {name!r} of shape {shape} needs {need} bytes, the header gives [{start}, {stop}) "
            f"of {len(data)}: the file is truncated or damaged"
        )
    return data[start:stop].view(dtype).reshape(shape)


def write_file(path: str | Path, tensors: Iterable[tuple[str, tuple[int, ...], Any]], *, dtype: str) -> None:
    """Write one file, tensor by tensor, so that only one is in memory at a time; atomic (a rename at the end).

    Args:
        tensors: (name, shape, read) where read() returns the array; called once, in order.
        dtype: a numpy dtype name ("float32", "float16", "bfloat16") that everything is converted to.
    """
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if kind not in NAMES:
        raise ValueError(f"dtype={dtype!r} cannot be written; choose one of {sorted(str(d) for d in NAMES)}")
    entries = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers insists on this field
    offset = 0
    for name, shape, _ in entries:
        stop = offset + math.prod(shape) * kind.itemsize
        header[name] = {"dtype": NAMES[kind], "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape, read in entries:
            array = np.ascontiguousarray(np.asarray(read()), dtype=kind)
            if array.size != math.prod(shape):
                raise ValueError(f"tensor {name!r} has {array.size} elements where its shape {shape} was announced")
            file.write(array.tobytes())
    os.replace(part, path)
