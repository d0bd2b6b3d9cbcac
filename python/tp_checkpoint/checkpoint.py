"""Reading a step of any layout: list its tensors, read any of them or a part of one.

Only the chunks that overlap the part are read, and each is checked by its CRC32C before it is used.
"""
import contextlib
import functools
import json
import math
import operator
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import codec
from .checksums import crc32c
from .errors import DamagedError, NotFoundError
from .manifest import ITEM_BYTES
from .shard_index import ROW, find_overlap, open_shard, read_exactly, read_rows

# numpy has no bf16: its bits are read as uint16, and converted to float32, which has all of its numbers.
BITS = {"f32": "<f4", "bf16": "<u2", "f16": "<f2", "f64": "<f8", "i64": "<i8", "i32": "<i4", "u8": "u1"}
THREADS = min(8, os.cpu_count() or 1)
FILES_KEPT = 256  # that stay open: processes may often open 1024, and a checkpoint can have more shards
# A tied head is not stored: it is the embedding.
TIED = {"lm_head.weight": ("model.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                           "transformer.wte.weight"), "embed_out.weight": ("gpt_neox.embed_in.weight",)}
TIED_BY_DEFAULT = ("gpt2", "gemma", "gemma2", "gemma3_text", "opt", "smollm3")


def bf16_to_float32(bits):
    """The numbers of bf16, from their bits (uint16)."""
    numbers = np.atleast_1d(bits).astype(np.uint32) << 16
    return numbers.view(np.float32).reshape(np.shape(bits))[()]


class Tensor:
    """A tensor of a checkpoint. Nothing is read before it is indexed: t[...] is all of it, t[10:20] some rows."""

    def __init__(self, checkpoint, info):
        self._checkpoint = checkpoint
        self.info = info

    group = property(lambda self: self.info.group)
    name = property(lambda self: self.info.name)
    dtype = property(lambda self: self.info.dtype, doc="f32, bf16, f16, f64, i64, i32 or u8")
    shape = property(lambda self: self.info.shape)
    ndim = property(lambda self: len(self.info.shape))
    size = property(lambda self: int(np.prod(self.info.shape, dtype=object)))
    nbytes = property(lambda self: self.size * ITEM_BYTES[self.info.dtype])

    def __repr__(self):
        return f"<tensor {self.info.full_name} {self.dtype} {list(self.shape)}>"

    def __len__(self):
        if not self.shape:
            raise TypeError(f"{self.info.full_name} is a scalar and has no length")
        return self.shape[0]

    def __getitem__(self, key):
        """An array of the numbers; those of bf16 are float32."""
        values = self.bits(key)
        return bf16_to_float32(values) if self.dtype == "bf16" else values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self[...], dtype)

    def bits(self, key=...):
        """As t[key], but bf16 as its bits, uint16: view(ml_dtypes.bfloat16) makes numbers of them."""
        lo, lens, strides, inside = _box(key, self.shape, self.info.full_name)
        return self._checkpoint.read_box(self.info, lo, lens, strides)[inside]

    def torch(self, key=...):
        """As t[key], but a tensor of torch, with the stored dtype."""
        import torch
        values = self.bits(key)
        out = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape))
        return out.view(torch.bfloat16) if self.dtype == "bf16" else out


def _whole(value):
    """A whole number of Python, numpy or torch as an int. None: it is another kind of value."""
    if isinstance(value, (bool, np.bool_)):  # numpy would take it for a new axis
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _box(key, shape, name):
    """The box that a key of basic indexing needs, the distance of the elements that it needs on each axis, and the key
    that remains inside what is read."""
    key = key if isinstance(key, tuple) else (key,)
    if any(k is Ellipsis for k in key):
        at = next(i for i, k in enumerate(key) if k is Ellipsis)
        key = key[:at] + (slice(None),) * (len(shape) - len(key) + 1) + key[at + 1:]
    if len(key) > len(shape) or any(k is Ellipsis for k in key):
        raise IndexError(f"{name} has {len(shape)} axes, and the index has more")
    lo, lens, strides, inside = [], [], [], []
    for k, n in zip(key + (slice(None),) * (len(shape) - len(key)), shape):
        if isinstance(k, slice):
            picked = range(*k.indices(n))
            first, last = (min(picked[0], picked[-1]), max(picked[0], picked[-1])) if picked else (0, -1)
            lo.append(first)
            lens.append(last - first + 1)
            strides.append(abs(picked.step))
            inside.append(slice(None, None, -1 if picked.step < 0 else 1))
        else:
            i = _whole(k)
            if i is None:
                raise TypeError(f"{name}: an index is a number, a slice or ..., not {type(k).__name__}")
            if not -n <= i < n:
                raise IndexError(f"{name}: index {i} is out of range for an axis of length {n}")
            lo.append(i % n)
            lens.append(1)
            strides.append(1)
            inside.append(0)
    return lo, lens, strides, tuple(inside)


_made = weakref.WeakSet()


def _after_fork():
    for checkpoint in _made:
        if checkpoint._lock.locked():  # by a thread that was reading the index, and is not in this process
            checkpoint._rows, checkpoint._lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _picks(begin, end, strides):
    """Of the elements 0, stride, 2 * stride, ..: the numbers of those from begin to end."""
    return -(-begin // strides), -(-end // strides)


class Checkpoint:
    """A step of a checkpoint. Made by tp_checkpoint.open(); a context manager, which closes its files."""

    def __init__(self, folder, contents):
        self.path = folder
        self.manifest = contents
        self.groups = list(dict.fromkeys(t.group for t in contents.tensors))
        self.names = {(t.group, t.name): t for t in contents.tensors}
        self._forget()

    def _forget(self):
        self._files, self._rows, self._shard_of, self._begins, self._frame_bytes = {}, None, None, None, None
        self._lock = threading.Lock()  # several threads may read
        _made.add(self)

    def __getstate__(self):
        """A copy, such as that of a worker process, opens files of its own: descriptors are of one process, and each is
        closed once."""
        return {k: v for k, v in self.__dict__.items()
                if k not in ("_files", "_rows", "_shard_of", "_begins", "_frame_bytes", "_lock")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._forget()

    step = property(lambda self: self.manifest.step)
    layout = property(lambda self: self.manifest.spec, doc="of the job that wrote it, such as tp8")
    train = property(lambda self: self.manifest.train)

    @functools.cached_property
    def model_config(self):
        """The model's config.json as a dict, or None."""
        text = self.manifest.model_config
        try:
            config = None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            config = ()
        if not isinstance(config, (dict, type(None))):
            raise DamagedError(f"{self.path}: the model_config of its manifest is not a JSON object")
        return config

    def __repr__(self):
        return f"<checkpoint {self.path}: step {self.step}, {self.layout}, {len(self.manifest.tensors)} tensors>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the files. Reading opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    __del__ = close

    def tensors(self, group=None):
        """All tensors, or those of a group, in the order of the manifest."""
        return [Tensor(self, t) for t in self.manifest.tensors if group in (None, t.group)]

    def tensor(self, name, group="param"):
        """The tensor of this name. NotFoundError names similar ones."""
        if not isinstance(name, str):
            raise TypeError(f"a tensor has a name, such as {self._example()}; this is {name!r:.60}")
        info = self.names.get((group, name))
        if info is None:
            raise NotFoundError(f"{self.path}: has no tensor {group}/{name}; {self._similar(name, group)}")
        return Tensor(self, info)

    __getitem__ = tensor

    def __contains__(self, name):
        return ("param", name) in self.names

    def keys(self):
        """The names of the parameters: dict(ckpt) is {name: Tensor}."""
        return [t.name for t in self.manifest.tensors if t.group == "param"]

    def __iter__(self):
        return iter(self.keys())

    def _example(self):
        return repr(next(iter(self.names), ("", "a.weight"))[1])

    def _similar(self, name, group):
        if group not in self.groups:
            return f"its groups are {', '.join(self.groups)}"
        end = name.rsplit(".", 2)[-2:]
        found = [t.name for t in self.manifest.tensors if t.group == group]
        likely = [n for n in found if n.rsplit(".", 2)[-2:] == end] or found
        return f"it has {likely[0]} and {len(found) - 1} more" if found else "the group is empty"

    def load_state_dict(self, dtype=None, group="param"):
        """{name: tensor of torch} for model.load_state_dict() of transformers, with a tied head. dtype: a
        dtype of torch to convert the floating-point tensors to; None: as stored."""
        import torch
        if not isinstance(dtype, (torch.dtype, type(None))):
            raise TypeError(f"dtype is a dtype of torch, such as torch.bfloat16, not {dtype!r:.60}")
        if group not in self.groups:
            raise NotFoundError(f"{self.path}: has no group {group}; its groups are {', '.join(self.groups)}")
        state = {}
        for t in self.tensors(group):
            values = t.torch()
            state[t.name] = values.to(dtype) if dtype and values.is_floating_point() else values
        if group == "param":
            for head in TIED:
                source = self.tied_source(head)
                if source:
                    state[head] = state[source]
        return state

    def tied_source(self, name):
        """The embedding that `name`, a head that is not stored, is tied to; None: it is not such a head."""
        config = self.model_config or {}
        tied = config.get("tie_word_embeddings", config.get("model_type") in TIED_BY_DEFAULT)
        if not tied or name in self:
            return None
        return next((source for source in TIED.get(name, ()) if source in self), None)

    # ---- reading chunks ----

    @contextlib.contextmanager
    def _file(self, number):
        """A descriptor of a shard."""
        if number < FILES_KEPT:
            if number not in self._files:
                self._files[number] = open_shard(self.path, self.manifest.shards[number])
            yield self._files[number]
            return
        fd = open_shard(self.path, self.manifest.shards[number])
        try:
            yield fd
        finally:
            os.close(fd)

    def _rows_of(self, number):
        shard = self.manifest.shards[number]
        with self._file(number) as fd:
            return read_rows(fd, os.path.join(self.path, shard.file), shard, self.manifest.tensors)

    def _index(self):
        """The rows of all shards, ordered by tensor, are read when the first tensor is."""
        with self._lock:
            return self._read_index()

    def _read_index(self):
        if self._rows is None or len(self._files) < min(len(self.manifest.shards), FILES_KEPT):
            tensors = self.manifest.tensors
            parts = [self._rows_of(i) for i in range(len(self.manifest.shards))]
            rows = np.concatenate(parts) if parts else np.zeros(0, ROW)
            numbers = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
            order = np.argsort(rows["tensor"], kind="stable")
            self._frame_bytes = np.concatenate([codec.frame_bytes_of(p) for p in parts] or [rows["raw_bytes"]])[order]
            self._begins = np.searchsorted(rows["tensor"][order], np.arange(len(tensors) + 1))
            self._rows, self._shard_of = rows[order], numbers[order]
        return self._rows

    def read_box(self, info, lo, lens, strides):
        """An array of a box of a tensor, or of every strides-th element of it, from the chunks that have such elements."""
        shape = [-(-n // s) for n, s in zip(lens, strides)]
        if 0 in shape:
            return np.empty(shape, BITS[info.dtype])
        rows = self._index()
        begin, end = self._begins[info.id], self._begins[info.id + 1]
        n, low = len(info.shape), np.array(lo, np.int64)
        high = low + np.array(lens, np.int64)
        mine = rows[begin:end]
        meets = ((mine["lo"][:, :n] < high) & (mine["lo"][:, :n] + mine["len"][:, :n] > low)).all(axis=1)
        numbers = np.flatnonzero(meets) + begin
        found = rows[numbers]
        self._check_tiling(info, found, low, high)
        steps = np.array(strides, np.int64)
        first, last = _picks(np.maximum(found["lo"][:, :n], low) - low,
                             np.minimum(found["lo"][:, :n] + found["len"][:, :n], high) - low, steps)
        out = np.empty(shape, BITS[info.dtype])
        each_in_threads(lambda i: self._copy_chunk(out, info, i, low, high, steps), numbers[(first < last).all(axis=1)])
        return out

    def _check_tiling(self, info, rows, low, high):
        """Each element of the box must be in one chunk."""
        n = len(low)
        lo = np.maximum(rows["lo"][:, :n], low)
        lens = np.minimum(rows["lo"][:, :n] + rows["len"][:, :n], high) - lo
        found, wanted = int(lens.prod(axis=1).sum()), math.prod((high - low).tolist())
        if found != wanted or find_overlap(lo, lens) is not None:
            raise DamagedError(f"{self.path}: {info.full_name}: its boxes do not contain each element once "
                               f"({found} elements in chunks, expected {wanted})")

    def _copy_chunk(self, out, info, i, low, high, strides):
        row, number = self._rows[i], self._shard_of[i]
        path = os.path.join(self.path, self.manifest.shards[number].file)
        with self._file(number) as fd:
            data = np.frombuffer(read_exactly(fd, int(row["stored_bytes"]), int(row["offset"]), path), np.uint8)
        found = crc32c(data)
        n = len(low)
        if found != row["crc32c"]:
            raise DamagedError(f"{path}: {info.full_name}, chunk at {row['lo'][:n].tolist()}: has the CRC32C "
                               f"{found:08x}, expected {int(row['crc32c']):08x}: the file is damaged")
        try:
            data = codec.decode(row["codec"], data, int(row["raw_bytes"]), int(self._frame_bytes[i]), ITEM_BYTES[info.dtype])
        except codec.BadFrame as e:
            raise DamagedError(f"{path}: {info.full_name}, chunk at {row['lo'][:n].tolist()}: {e}") from None
        first, last = _picks(np.maximum(row["lo"][:n], low) - low,
                             np.minimum(row["lo"][:n] + row["len"][:n], high) - low, strides)
        at = low - row["lo"][:n]
        chunk = data.view(BITS[info.dtype]).reshape(row["len"][:n])
        out[_slices(first, last, np.ones(n, np.int64))] = chunk[_slices(at + first * strides,
                                                                        at + (last - 1) * strides + 1, strides)]


def _slices(begin, end, strides):
    return tuple(slice(*each) for each in zip(begin.tolist(), end.tolist(), strides.tolist()))


def each_in_threads(work, items):
    """work(item) for every item; numpy computes sums of several chunks at the same time."""
    if len(items) < 2 or THREADS < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(work, items):
            pass
