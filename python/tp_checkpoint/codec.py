"""Compressed chunks (docs/FORMAT.md, section 3): zstd frames, decoded by libzstd or by the package zstandard.

A frame is refused before it is decoded unless it states the length that is expected, so a frame never makes
a reader use more memory than a chunk has.
"""
import ctypes
import ctypes.util
import functools

import numpy as np

from .errors import UnsupportedError

RAW, ZSTD, SHUFFLED = 0, 1, 2
STORED_MAX = (4 << 20) + (4 << 12) + 64


class BadFrame(ValueError):
    """What is wrong with a frame, as the rest of a sentence."""


@functools.lru_cache(maxsize=None)
def _libzstd():
    """libzstd with the types of its functions, or None."""
    try:
        z = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    except OSError:
        return None
    size, data = ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in (("ZSTD_getFrameContentSize", ctypes.c_ulonglong, [data, size]),
                                    ("ZSTD_findFrameCompressedSize", size, [data, size]),
                                    ("ZSTD_decompress", size, [ctypes.c_void_p, size, data, size])):
        function = getattr(z, name)
        function.restype, function.argtypes = result, arguments
    return z


def _by_libzstd(z, frame, n_bytes):
    if z.ZSTD_getFrameContentSize(frame, len(frame)) != n_bytes:
        raise BadFrame("is not a zstd frame of the length of the chunk")
    if z.ZSTD_findFrameCompressedSize(frame, len(frame)) != len(frame):
        raise BadFrame("is not one whole zstd frame")
    out = np.empty(n_bytes, np.uint8)
    if z.ZSTD_decompress(out.ctypes.data, n_bytes, frame, len(frame)) != n_bytes:
        raise BadFrame("is a zstd frame that cannot be decoded")
    return out


def _by_zstandard(frame, n_bytes):
    try:
        import zstandard
    except ImportError:
        raise UnsupportedError("the checkpoint is compressed, but there is neither libzstd nor the Python package "
                               "zstandard: pip install zstandard") from None
    try:
        if zstandard.get_frame_parameters(frame).content_size != n_bytes:
            raise BadFrame("is not a zstd frame of the length of the chunk")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(frame, max_output_size=n_bytes), np.uint8)
    except zstandard.ZstdError as e:
        raise BadFrame(f"is a zstd frame that cannot be decoded: {e}") from None


def decode(codec, stored, raw_bytes, frame_bytes, item_bytes):
    """The raw bytes of a chunk, whose frame has frame_bytes. BadFrame says what is wrong."""
    if codec == RAW:
        return stored
    frame, z = stored.tobytes(), _libzstd()
    content = _by_libzstd(z, frame, frame_bytes) if z else _by_zstandard(frame, frame_bytes)
    if codec == SHUFFLED:
        content = content.reshape(item_bytes, -1).T.reshape(-1)
    if content[raw_bytes:].any():
        raise BadFrame("has bytes after its end that are not zero")
    return np.ascontiguousarray(content[:raw_bytes])


def frame_bytes_of(rows):
    """For each row of a shard's /index the raw_bytes of the first row of its dataset."""
    first = np.ones(len(rows), bool)
    first[1:] = (rows["tensor"][1:] != rows["tensor"][:-1]) | (rows["part"][1:] != rows["part"][:-1])
    return rows["raw_bytes"][np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))]
