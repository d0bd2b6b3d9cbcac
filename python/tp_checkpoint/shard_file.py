"""Writing one shard (docs/FORMAT.md, section 3).

h5py creates the structure of the file: datasets that are contiguous, allocated early, never filled, and
aligned. Payloads, /index and checksums are then written to the offsets that HDF5 chose.
"""
import dataclasses
import hashlib
import os

import numpy as np

from .checkpoint import BITS, each_in_threads
from .checksums import crc32c, digest
from .errors import CheckpointError, UnsupportedError
from .manifest import CHUNK_BYTES_MAX, ITEM_BYTES, ShardInfo, TensorInfo
from .shard_index import ROW, SIGNATURE

ALIGNMENT = 4096
CHUNK_BYTES_MIN = 64 << 10
COLUMN_BLOCKS, COLUMN_BYTES_LEAST = 8, 64 << 10
PARTS_MAX = 64


@dataclasses.dataclass(frozen=True)
class StoredBox:
    """A box of a tensor that a shard stores as a dataset of its own."""
    tensor: TensorInfo
    part: int
    lo: tuple
    lens: tuple


# ---- which boxes and chunks ------------------------------------------------------------------

def column_blocks(tensor, lo, lens):
    """The boxes as which a box is stored: blocks of columns, where tensor parallelism cuts the columns, so that
    a reader of half of the columns reads half of the bytes."""
    dim, unit, blocks = tensor.rule["dim"], tensor.rule["unit"], tensor.rule["blocks"]
    lo, lens = tuple(lo), tuple(lens)
    if dim < 1 or "first" in tensor.rule:
        return [(lo, lens)]
    each = tensor.shape[dim] // blocks
    column_bytes = int(np.prod(lens, dtype=object)) // lens[dim] * ITEM_BYTES[tensor.dtype]
    n = COLUMN_BLOCKS
    while n > 1 and (each % (unit * n) or column_bytes * (each // n) < COLUMN_BYTES_LEAST):
        n //= 2
    width = each // n if n > 1 else tensor.shape[dim]
    found, at, end = [], lo[dim], lo[dim] + lens[dim]
    while at < end:
        edge = min((at // width + 1) * width, end)
        found.append((lo[:dim] + (at,) + lo[dim + 1:], lens[:dim] + (edge - at,) + lens[dim + 1:]))
        at = edge
    return found


def stored_boxes(boxes):
    """The datasets of a shard: [(tensor, lo, lens)] in blocks of columns and with part numbers, in the order of
    /index. No box may be empty."""
    found, blocks = [], {}
    for tensor, lo, lens in boxes:
        blocks.setdefault(tensor.id, (tensor, []))[1].extend(column_blocks(tensor, lo, lens))
    for tensor, mine in blocks.values():
        if len(mine) > PARTS_MAX:
            raise UnsupportedError(f"{tensor.full_name}: a rank holds {len(mine)} boxes of it; the most is {PARTS_MAX}")
        found += [StoredBox(tensor, part, lo, lens) for part, (lo, lens) in enumerate(sorted(mine))]
    return sorted(found, key=lambda b: (b.tensor.id, b.part))


def _chunk_rows(tensor, lens):
    """Rows of a chunk: 1/16 of the tensor's, more if that is small, fewer if it is more than 4 MiB."""
    row_bytes = int(np.prod(lens[1:], dtype=object)) * ITEM_BYTES[tensor.dtype]
    rows, parts = tensor.shape[0], 16
    if tensor.rule["dim"] == 0:
        rows = (rows - tensor.rule.get("first", 0)) // (tensor.rule["blocks"] - ("first" in tensor.rule))
    while parts > 1 and (rows % parts or rows // parts * row_bytes < CHUNK_BYTES_MIN):
        parts //= 2
    rows //= parts
    most = CHUNK_BYTES_MAX // row_bytes if row_bytes else rows
    if rows > most > 0:  # the largest part of it that fits
        rows = next((rows // n for n in range(-(-rows // most), -(-rows // most) + 64) if rows % n == 0), most)
    return max(min(rows, most), 1) if most else 0


def chunks(tensor, lo, lens):
    """The boxes of the chunks of a stored box, in its order."""
    if not lens:
        return [((), ())]
    rows = _chunk_rows(tensor, lens)
    if rows == 0:  # a row is larger than a chunk may be: each row is cut like a box of one axis less
        inner = dataclasses.replace(tensor, shape=tensor.shape[1:], rule={"dim": -1})
        return [((i, *a), (1, *b)) for i in range(lo[0], lo[0] + lens[0]) for a, b in chunks(inner, lo[1:], lens[1:])]
    found, at, end = [], lo[0], lo[0] + lens[0]
    while at < end:
        edge = min((at // rows + 1) * rows, end)  # cuts are where those of other ranks are
        found.append(((at, *lo[1:]), (edge - at, *lens[1:])))
        at = edge
    return found


# ---- the structure ---------------------------------------------------------------------------

def _float16(h5t, exponent, mantissa, bias):
    t = h5t.IEEE_F32LE.copy()
    t.set_fields(15, mantissa, exponent, 0, mantissa)
    t.set_precision(16)
    t.set_size(2)
    t.set_ebias(bias)
    return t


def _type(h5t, dtype):
    return {"f32": lambda: h5t.IEEE_F32LE, "f64": lambda: h5t.IEEE_F64LE, "i64": lambda: h5t.STD_I64LE,
            "i32": lambda: h5t.STD_I32LE, "u8": lambda: h5t.STD_U8LE,
            "bf16": lambda: _float16(h5t, 8, 7, 127), "f16": lambda: _float16(h5t, 5, 10, 15)}[dtype]()


class _Structure:
    """An HDF5 file that is being created; a context manager."""

    def __init__(self, path):
        try:
            import h5py
        except ImportError:
            raise UnsupportedError("writing checkpoints needs h5py, which is not installed: pip install h5py") from None
        self.h5py = h5py
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)  # HDF5 1.10 opens the file
        access.set_alignment(ALIGNMENT, ALIGNMENT)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        self.data = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self.data.set_layout(h5py.h5d.CONTIGUOUS)
        self.data.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self.data.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        create, self.group = h5py.h5p.create(h5py.h5p.FILE_CREATE), h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        for plist in create, self.group, self.data:
            plist.set_obj_track_times(False)  # the same state has the same bytes
        self.links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        self.links.set_char_encoding(h5py.h5t.CSET_UTF8)
        self.file = h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_EXCL, create, access))
        self.groups = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def put_root_attributes(self, spec, rank):
        for key, text in ("format", "tp-ckpt"), ("layout", spec):
            self.file.attrs.create(key, text, dtype=self.h5py.string_dtype("utf-8", len(text)))
        self.file.attrs.create("version", 2, dtype="<i8")
        self.file.attrs.create("rank", rank, dtype="<i8")

    def add(self, group, name, kind, shape):
        """A dataset; its offset in the file."""
        h5py = self.h5py
        space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        made = h5py.h5d.create(group, name.encode(), kind, space, self.data, lcpl=self.links)
        return made, made.get_offset()

    def add_box(self, box):
        h5py, t = self.h5py, box.tensor
        if t.group not in self.groups:
            self.groups[t.group] = h5py.h5g.create(self.file.id, t.group.encode(), self.links, self.group)
        name = f"{t.name}@{box.part}" if box.part else t.name
        made, offset = self.add(self.groups[t.group], name, _type(h5py.h5t, t.dtype), box.lens)
        if t.shape:
            attributes = h5py.Dataset(made).attrs
            attributes.create("global_shape", t.shape, dtype="<i8")
            attributes.create("offset", box.lo, dtype="<i8")
        return offset


# ---- a shard ---------------------------------------------------------------------------------

class ShardFile:
    """A shard that is being written. Its structure is complete from the beginning; write() each box, then finish()."""

    def __init__(self, folder, rank, spec, boxes):
        self.file, self.rank, self.boxes = f"rank-{rank:05d}.h5", rank, boxes
        self.path = os.path.join(folder, self.file)
        cut = [chunks(b.tensor, b.lo, b.lens) for b in boxes]
        self.first_row = np.cumsum([0] + [len(c) for c in cut]).tolist()
        self.rows = np.zeros(self.first_row[-1], ROW)
        with _Structure(self.path) as s:
            s.put_root_attributes(spec, rank)
            for i, box in enumerate(boxes):
                self._place(i, box, cut[i], s.add_box(box))
            kind = s.h5py.h5t.py_create(ROW)
            self.index_offset = s.add(s.file.id, "index", kind, (len(self.rows),))[1]
        self.fd = os.open(self.path, os.O_RDWR)
        self.written = np.zeros(len(boxes), bool)

    def _place(self, number, box, cut, offset):
        n = len(box.lens)
        for row, (lo, lens) in zip(self.rows[self.first_row[number]:], cut):
            n_bytes = int(np.prod(lens, dtype=object)) * ITEM_BYTES[box.tensor.dtype]
            row["tensor"], row["part"], row["ndim"], row["offset"] = box.tensor.id, box.part, n, offset
            row["lo"][:n], row["len"][:n] = lo, lens
            row["stored_bytes"] = row["raw_bytes"] = n_bytes
            offset += n_bytes

    def write(self, number, values):
        """Write box `number`: an array of its shape, of bits (checkpoint.BITS)."""
        box = self.boxes[number]
        if values.shape != box.lens or values.dtype != np.dtype(BITS[box.tensor.dtype]):
            raise CheckpointError(f"{box.tensor.full_name}: has {values.dtype} {list(values.shape)}, expected "
                                  f"{BITS[box.tensor.dtype]} {list(box.lens)}")
        flat = np.ascontiguousarray(values).reshape(-1)
        rows = self.rows[self.first_row[number]:self.first_row[number + 1]]
        ends = np.cumsum(rows["raw_bytes"]) // flat.itemsize
        each_in_threads(lambda i: self._write_chunk(rows[i], flat[ends[i] - rows[i]["raw_bytes"] // flat.itemsize:ends[i]],
                                                    box.tensor.shape), range(len(rows)))
        self.written[number] = True

    def _write_chunk(self, row, part, shape):
        n, data = int(row["ndim"]), part.view(np.uint8)
        self._pwrite(data, int(row["offset"]))
        row["crc32c"] = crc32c(data)
        row["digest0"], row["digest1"] = digest(part.reshape(row["len"][:n]), row["lo"][:n].tolist(), shape)

    def _pwrite(self, data, offset):
        view = memoryview(data)
        while view:
            n = os.pwrite(self.fd, view, offset)
            view, offset = view[n:], offset + n

    def finish(self):
        """Write /index, fsync; what the manifest says about the shard."""
        if not self.written.all():
            missing = self.boxes[int(np.argmin(self.written))]
            raise CheckpointError(f"{self.path}: {missing.tensor.full_name} was not written")
        self._pwrite(self.rows.view(np.uint8), self.index_offset)
        os.fsync(self.fd)
        info = ShardInfo(self.file, self.rank, os.fstat(self.fd).st_size, self.index_offset, len(self.rows),
                         hashlib.sha256(self.rows.tobytes()).hexdigest(), self._meta_sha256())
        self.close()
        return info

    def _meta_sha256(self):
        """Of all bytes outside payloads."""
        sha, at, end = hashlib.sha256(), 0, os.fstat(self.fd).st_size
        if os.pread(self.fd, 8, 0) != SIGNATURE:
            raise CheckpointError(f"{self.path}: HDF5 wrote no signature at its beginning")
        rows = self.rows[np.argsort(self.rows["offset"])]
        for begin, n in zip(rows["offset"].tolist() + [end], rows["stored_bytes"].tolist() + [0]):
            while at < begin:
                data = os.pread(self.fd, min(begin - at, 1 << 20), at)
                if not data:
                    raise CheckpointError(f"{self.path}: ended at byte {at} while it was written")
                sha.update(data)
                at += len(data)
            at = begin + n
        return sha.hexdigest()

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
