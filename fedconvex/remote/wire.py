"""Messages as bytes on a connection: names, types and shapes of arrays in JSON, then numbers as they lie in memory.

All sizes are known before anything is read, and nothing that is made of a message is larger than it: anybody may have
sent it. An npz file would do as well, and takes a hundred times as long for the few short arrays of a round.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fedconvex._archives import Unsafe, json_of

_HEAD = struct.Struct("<8sI")  # the mark of a message, and the bytes of its description
_MARK = b"arrays 1"
_DESCRIPTION = 1 << 22  # bytes of the longest one: JSON takes up to thirty times as much
_SHORT = 1 << 12  # bytes of one that is remembered
_AXES = 64  # of an array, at most, as for NumPy: the product of a million numbers takes minutes
_DTYPE = re.compile(r"[<>|][biuf][1248]")  # plain numbers


def packed(arrays: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message; equal arrays have equal bytes.

    Examples
    --------
    >>> from fedconvex.remote.wire import packed, unpacked
    >>> unpacked(packed({"w": [[0.5, 2.0]], "t": 3}))
    {'w': array([[0.5, 2. ]]), 't': array(3)}
    """
    given = [(name, np.asarray(a)) for name, a in arrays.items()]
    head = _head(tuple((name, a.dtype.str, a.shape) for name, a in given))
    return b"".join([head, *(a.tobytes() for _, a in given)])


@lru_cache(maxsize=64)
def _head(described: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """Return what comes before the numbers; messages of a run have few different ones."""
    description = json.dumps(described).encode()
    return _HEAD.pack(_MARK, len(description)) + description


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message.

    Raises
    ------
    ValueError, TypeError and others
        If they are none: `Unsafe` where sizes are not what they are said to be.
    """
    if len(content) < _HEAD.size:
        raise Unsafe("no message")
    mark, size = _HEAD.unpack_from(content)
    at, out = _HEAD.size + size, {}  # type: int, dict[str, np.ndarray]
    if mark != _MARK or at > len(content):
        raise Unsafe("no message")
    arrays = (_known if size <= _SHORT else _described)(content[_HEAD.size : at])
    for name, dtype, shape, length in arrays:
        if length > len(content) - at:
            raise Unsafe(f"has {len(content) - at} bytes at most for shape {list(shape)}, {dtype}", name)
        a: Any = np.ndarray(shape, np.uint8 if dtype.kind == "b" else dtype, content, at)
        out[name] = np.asarray(a != 0) if dtype.kind == "b" else a.copy()  # bytes other than 0 and 1 are no flags
        at += length
    if at != len(content):
        raise Unsafe(f"{len(content) - at} bytes that belong to no array")
    return out


def _described(description: bytes) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]:
    """Return names, types, shapes and bytes of arrays, as they are described."""
    out: dict[str, Any] = {}
    for name, kind, shape in json_of(description, _DESCRIPTION):
        if not isinstance(name, str) or name in out or not (isinstance(kind, str) and _DTYPE.fullmatch(kind)):
            raise Unsafe("an array without a name of its own, or not of plain numbers")
        if not isinstance(shape, list) or len(shape) > _AXES or not all(type(n) is int and n >= 0 for n in shape):
            raise Unsafe("has a shape that no array has", name)
        dtype = np.dtype(kind)
        out[name] = name, dtype, tuple(shape), math.prod(shape) * dtype.itemsize
    return tuple(out.values())


_known = lru_cache(maxsize=64)(_described)  # of messages that came: a run has few different ones
