"""The table /index of a shard (docs/FORMAT.md, section 3), and boxes."""
import errno
import hashlib
import os
import stat

import numpy as np

from . import codec
from .errors import CheckpointError, DamagedError
from .manifest import CHUNK_BYTES_MAX, ITEM_BYTES

ROW = np.dtype([("tensor", "<u4"), ("part", "<u4"), ("ndim", "<u4"), ("codec", "<u4"),
                ("lo", "<i8", 6), ("len", "<i8", 6), ("offset", "<i8"), ("stored_bytes", "<i8"),
                ("raw_bytes", "<i8"), ("crc32c", "<u4"), ("reserved", "<u4"),
                ("digest0", "<u8"), ("digest1", "<u8")])
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def read_exactly(fd, n, offset, path):
    """n bytes of a file at an offset."""
    parts = []
    while n > 0:
        part = os.pread(fd, n, offset)
        if not part:
            raise DamagedError(f"{path}: ends at byte {offset}, which is too early")
        parts.append(part)
        n, offset = n - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_shard(folder, info):
    """A descriptor of a shard, whose kind and length have been checked."""
    path = os.path.join(folder, info.file)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as e:
        if e.errno in (errno.EMFILE, errno.ENFILE):  # nothing is wrong with the file
            raise CheckpointError(f"{path}: cannot be opened: {e.strerror}; raise the limit of this process "
                                  "(ulimit -n)") from None
        raise DamagedError(f"{path}: cannot be opened: {e.strerror}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != info.size_bytes:
        os.close(fd)
        raise DamagedError(f"{path}: is not a regular file of {info.size_bytes} bytes")
    return fd


def read_rows(fd, path, info, tensors):
    """The checked rows of a shard's /index."""
    def need(ok, sentence):
        if not ok:
            raise DamagedError(f"{path}: {sentence}")

    n_bytes = ROW.itemsize * info.index_rows
    need(info.index_offset <= info.size_bytes - n_bytes, "/index is not inside the file")
    need(read_exactly(fd, 8, 0, path) == SIGNATURE, "does not begin with HDF5's signature")
    data = read_exactly(fd, n_bytes, info.index_offset, path)
    need(hashlib.sha256(data).hexdigest() == info.index_sha256, "/index has another SHA-256 than in the "
         "manifest: the file is damaged")
    rows = np.frombuffer(data, ROW)
    need((rows["tensor"] < len(tensors)).all(), "/index has a tensor that the manifest does not have")
    shapes = np.zeros((len(tensors), 6), np.int64)
    for t in tensors:
        shapes[t.id, :len(t.shape)] = t.shape
    ndims = np.array([len(t.shape) for t in tensors])[rows["tensor"]]
    items = np.array([ITEM_BYTES[t.dtype] for t in tensors])[rows["tensor"]]
    shape, used = shapes[rows["tensor"]], np.arange(6) < ndims[:, None]
    lo, lens = rows["lo"], rows["len"]
    need((rows["ndim"] == ndims).all(), "/index has a row with another number of axes than its tensor")
    need(np.where(used, (lo >= 0) & (lens >= 1) & (lens <= shape) & (lo <= shape - lens),
                  (lo == 0) & (lens == 0)).all(), "/index has a box that is not inside its tensor")
    # a chunk is small, so its lengths are; check before they are multiplied
    need((lens <= CHUNK_BYTES_MAX).all(), "/index has a chunk of more than 4 MiB")
    elements = np.prod(np.where(used, lens, 1).astype(np.float64), axis=1)
    need((elements * items == rows["raw_bytes"]).all() and (rows["raw_bytes"] <= CHUNK_BYTES_MAX).all(),
         "/index has a chunk of another size than its box, or of more than 4 MiB")
    need((rows["codec"] <= (codec.SHUFFLED if info.chunked else codec.RAW)).all(), "/index has a chunk of an unknown codec")
    need(np.where(rows["codec"] == codec.RAW, rows["stored_bytes"] == rows["raw_bytes"],
                  (rows["stored_bytes"] >= 1) & (rows["stored_bytes"] <= codec.STORED_MAX)).all(),
         "/index has a chunk of another stored size")
    need(((rows["codec"] == codec.RAW) | (rows["raw_bytes"] <= codec.frame_bytes_of(rows))).all(),
         "/index has a compressed chunk that is longer than the first of its dataset")
    need(((rows["offset"] >= 0) & (rows["offset"] <= info.size_bytes - rows["stored_bytes"])).all(),
         "/index has a payload that is not inside the file")
    return rows


def find_overlap(lo, lens):
    """The numbers of two boxes that overlap, or None. lo and lens are arrays [boxes, axes]."""
    if len(lo) < 2 or lo.shape[1] == 0:
        return (0, 1) if len(lo) > 1 else None
    order = np.lexsort(lo.T[::-1])
    lo, end = lo[order], lo[order] + lens[order]
    for i in range(len(lo) - 1):
        # boxes that begin behind this one on the first axis cannot overlap it, nor can those after them
        stop = i + 1 + np.searchsorted(lo[i + 1:, 0], end[i, 0])
        meets = ((lo[i + 1:stop] < end[i]) & (lo[i] < end[i + 1:stop])).all(axis=1)
        if meets.any():
            return int(order[i]), int(order[i + 1 + int(meets.argmax())])
    return None
