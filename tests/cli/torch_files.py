"""Writes files as torch.save and torch.distributed.checkpoint do, without torch.

The bytes follow those of torch 2: the pickles name the same functions and classes, and the members of
the archives are stored. Real files of the frameworks are compared in tests/clients.
"""
import collections
import io
import pickle
import sys
import types
import zipfile

import numpy as np


def _module(name, **members):
    """A module for pickle to find names in; nothing in it is ever called."""
    module = types.ModuleType(name)
    for key, value in members.items():
        value.__module__, value.__qualname__, value.__name__ = name, key, key
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def _class(*_, base=object):
    return type("_", (base,), {})


STORAGES = {"f32": "FloatStorage", "bf16": "BFloat16Storage", "f16": "HalfStorage", "i64": "LongStorage", "i32": "IntStorage",
            "i8": "CharStorage"}
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "i64": "int64", "i32": "int32", "i8": "int8"}
ITEM = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "i8": 1}

torch = _module("torch", Size=_class(base=tuple), Tensor=_class(), **{s: _class() for s in STORAGES.values()},
                **{d: _class() for d in DTYPES.values()})
torch._utils = _module("torch._utils", _rebuild_tensor_v2=lambda *_: None, _rebuild_parameter=lambda *_: None,
                       _rebuild_parameter_with_state=lambda *_: None)
torch._tensor = _module("torch._tensor", _rebuild_from_type_v2=lambda *_: None)
META = _module("torch.distributed.checkpoint.metadata", **{c: _class() for c in (
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
    "MetadataIndex")})
FILES = _module("torch.distributed.checkpoint.filesystem", _StorageInfo=_class())
for _name in ("torch.distributed", "torch.distributed.checkpoint"):
    _module(_name)


def kind_of(array):
    """The type of a numpy array: bf16 is held as u16."""
    return {"float32": "f32", "uint16": "bf16", "float16": "f16", "int64": "i64", "int32": "i32", "int8": "i8"}[str(array.dtype)]


class Tensor:
    """A tensor: a whole array, or a view of `storage` (a flat array) with offset, shape and strides."""

    def __init__(self, array, storage=None, offset=0, shape=None, stride=None, wrap=None):
        self.kind, self.wrap = kind_of(array if storage is None else storage), wrap
        if storage is None:
            array = np.asarray(array)
            contiguous = np.ascontiguousarray(array).reshape(array.shape)
            storage, offset, shape = contiguous.reshape(-1), 0, array.shape
            stride = tuple(s // array.itemsize for s in contiguous.strides)
        self.storage, self.offset, self.shape, self.stride = storage, offset, tuple(shape), tuple(stride)


def transposed(array):
    """The same elements as `array`, stored as its transpose."""
    flat = np.ascontiguousarray(array.T).reshape(-1)
    return Tensor(None, flat, 0, array.shape, (1, array.shape[0]))


class _Storage:
    def __init__(self, array, key):
        self.array, self.key = array, key


class _Pickler(pickle.Pickler):
    def __init__(self, out, protocol):
        super().__init__(out, protocol)
        self.storages = {}

    def persistent_id(self, obj):
        if not isinstance(obj, _Storage):
            return None
        return ("storage", getattr(torch, STORAGES[kind_of(obj.array)]), obj.key, "cpu", obj.array.size)

    def reducer_override(self, obj):
        if not isinstance(obj, Tensor):
            return NotImplemented
        storage = self.storages.setdefault(id(obj.storage), _Storage(obj.storage, str(len(self.storages))))
        args = (storage, obj.offset, obj.shape, obj.stride, False, collections.OrderedDict())
        if obj.wrap == "type":
            return torch._tensor._rebuild_from_type_v2, (torch._utils._rebuild_tensor_v2, torch.Tensor, args, {})
        if obj.wrap == "parameter":
            return torch._utils._rebuild_parameter, (Tensor(None, obj.storage, *args[1:4]), True,
                                                     collections.OrderedDict())
        if obj.wrap == "attributes":
            return torch._utils._rebuild_parameter_with_state, (
                Tensor(None, obj.storage, *args[1:4]), True, collections.OrderedDict(),
                {"tensor_model_parallel": True, "partition_dim": 0, "partition_stride": 1})
        return torch._utils._rebuild_tensor_v2, args


def archive(pickled, storages, top="archive"):
    """The bytes of a zip archive as torch.save writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        members = {"data.pkl": pickled, "byteorder": b"little", **{"data/" + k: v for k, v in storages.items()},
                   "version": b"3\n"}
        for name, data in members.items():
            z.writestr(zipfile.ZipInfo(top + "/" + name, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def saved(obj, protocol=2):
    """The bytes of torch.save(obj)."""
    out = io.BytesIO()
    pickler = _Pickler(out, protocol)
    pickler.dump(obj)
    return archive(out.getvalue(), {s.key: s.array.tobytes() for s in pickler.storages.values()})


def save(path, obj):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(saved(obj))


# ---- torch.distributed.checkpoint ----

def _make(cls, **attributes):
    obj = cls.__new__(cls)
    obj.__dict__.update(attributes)
    return obj


def _size(numbers):
    class _Reduce:  # torch.Size is pickled as a call with a tuple
        def __reduce__(self):
            return torch.Size, (tuple(int(n) for n in numbers),)
    return _Reduce()


def dcp(folder, tensors, objects=None, files=2, paths=None, cut=None):
    """Write a checkpoint. tensors: {name: (array, [(offsets, sizes), ...])}; objects: {name: object}; paths: planner_data.
    cut: {name: shape}, of tensors that Megatron-core has cut and flattened."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, places, data = {}, {}, [b""] * files
    for name, (array, boxes) in tensors.items():
        chunks = []
        for number, (lo, sizes) in enumerate(boxes):
            part = np.zeros(sizes, array.dtype)  # a box may reach out of the array, as in a damaged file
            inside = array[tuple(slice(a, a + n) for a, n in zip(lo, sizes))]
            part[tuple(slice(0, n) for n in inside.shape)] = inside
            key = _make(META.MetadataIndex, fqn=name, index=number, offset=_size(lo))
            to = (len(places) * 7) % files
            blob = saved(Tensor(part))
            places[key] = _make(FILES._StorageInfo, relative_path="__%d_0.distcp" % to, offset=len(data[to]),
                                length=len(blob))
            data[to] += blob
            chunks.append(_make(META.ChunkStorageMetadata, offsets=_size(lo), sizes=_size(sizes)))
        entries[name] = _make(META.TensorStorageMetadata, size=_size(array.shape), chunks=chunks, properties=_make(
            META.TensorProperties, dtype=getattr(torch, DTYPES[kind_of(array)]), requires_grad=False))
    for name, value in (objects or {}).items():
        blob = saved(value)
        key = _make(META.MetadataIndex, fqn=name, index=None, offset=None)
        places[key] = _make(FILES._StorageInfo, relative_path="__0_0.distcp", offset=len(data[0]), length=len(blob))
        data[0] += blob
        entries[name] = _make(META.BytesStorageMetadata)
    for number, content in enumerate(data):
        (folder / ("__%d_0.distcp" % number)).write_bytes(content)
    root = _make(META.Metadata, state_dict_metadata=entries, storage_data=places, planner_data=paths, version="1.0.0")
    if cut is not None:
        root.mcore_data = {name: {"nd_reformulated_orig_global_shape": cut[name]} if name in cut else {} for name in tensors}
    (folder / ".metadata").write_bytes(pickle.dumps(root, protocol=4))


def rows(array, parts):
    """Boxes of `array` cut along its first axis as torch.chunk does: the last ones may be short or absent."""
    n = array.shape[0] if array.ndim else 1
    step = -(-n // parts)
    if array.ndim == 0:
        return [((), ())]
    return [((at,) + (0,) * (array.ndim - 1), (min(step, n - at),) + array.shape[1:]) for at in range(0, n, step)]


def columns(array, parts):
    """Boxes cut along the second axis."""
    step = array.shape[1] // parts
    return [((0, at), (array.shape[0], step)) for at in range(0, array.shape[1], step)]


# ---- reading, by Python's zipfile and pickle ----

NUMPY = {"FloatStorage": "f4", "DoubleStorage": "f8", "BFloat16Storage": "u2", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4", "ByteStorage": "u1"}


class _Named:
    """What a name in a pickle stands for that is not looked at: a class or a function."""

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.state = state


def _rebuild(storage, offset, shape, stride, *_):
    assert all(s >= 0 for s in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, [s * storage.itemsize for s in stride])


class _Unpickler(pickle.Unpickler):
    def __init__(self, data, storages=None):
        super().__init__(io.BytesIO(data))
        self.storages = storages

    def persistent_load(self, pid):
        kind, cls, key, device, n = pid
        assert kind == "storage" and device == "cpu"
        array = np.frombuffer(self.storages[key], NUMPY[cls])
        assert array.size == n
        return array

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return _rebuild
        if module == "torch":
            return torch.Size if name == "Size" else name
        if (module, name) in (("collections", "OrderedDict"), ("argparse", "Namespace")):
            return super().find_class(module, name)
        known = {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
                 "_StorageInfo"}
        return super().find_class(module, name) if name in known else _Named


def load(data):
    """What the bytes of a file of torch.save contain. Python's zipfile compares all CRC-32."""
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        assert z.testzip() is None
        top = z.namelist()[0].split("/")[0]
        assert all(i.compress_type == zipfile.ZIP_STORED for i in z.infolist())
        storages = {n.split("/")[-1]: z.read(n) for n in z.namelist() if n.startswith(top + "/data/")}
        return _Unpickler(z.read(top + "/data.pkl"), storages).load()


def load_cuts(folder):
    """{name: the shape that a tensor had before Megatron-core's cut; None: it is not cut}, or None."""
    found = getattr(_Unpickler((folder / ".metadata").read_bytes()).load(), "mcore_data", None)
    return found and {name: entry.get("nd_reformulated_orig_global_shape") for name, entry in found.items()}


def load_dcp(folder):
    """{name: array or object} of a checkpoint of torch.distributed.checkpoint, and its planner_data."""
    root = _Unpickler((folder / ".metadata").read_bytes()).load()
    places = {(k.fqn, k.offset): v for k, v in root.storage_data.items()}
    files = {p.name: p.read_bytes() for p in folder.glob("*.distcp")}

    def item(key):
        info = places.pop(key)
        return load(files[info.relative_path][info.offset:info.offset + info.length])

    found = {}
    for name, entry in root.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            found[name] = item((name, None))
            continue
        parts = [(c.offsets, c.sizes, item((name, c.offsets))) for c in entry.chunks]
        whole, seen = np.empty(entry.size, parts[0][2].dtype), np.zeros(entry.size, int)
        for lo, sizes, part in parts:
            assert part.shape == tuple(sizes)
            at = tuple(slice(a, a + n) for a, n in zip(lo, sizes))
            whole[at], seen[at] = part, seen[at] + 1
        assert (seen == 1).all(), name
        found[name] = whole
    assert not places
    return found, root.planner_data
