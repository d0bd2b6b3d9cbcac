"""A StorageWriter of torch.distributed.checkpoint; dcp.py has what users call."""
import collections
import dataclasses
import io
import math
import os
import re

import numpy as np
import torch
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from . import checkpoint
from .checkpoint import each_in_threads
from .checksums import PRIME, digest
from .dcp_names import NOT_OF_OPTIMIZER, OPTIMIZER_STEPS, PICKLE, STEP, candidates, name_of, pickle_name
from .errors import CheckpointError, UnsupportedError
from .manifest import TensorInfo
from .roots import local_path, step_number
from .shard_file import ShardFile, chunks, stored_boxes
from .shard_index import find_overlap, open_shard, read_rows
from .step_writer import Model, list_tensors, make_manifest
from .transaction import Transaction

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64",
          torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8"}


@dataclasses.dataclass
class _RankPlan:
    """What the coordinator tells a rank: where to write, and what its items are in the manifest."""
    folder: str
    rank: int
    spec: str
    tensors: dict   # FQN -> TensorInfo
    steps: dict     # FQN -> name of the parameter
    left_out: dict  # FQNs that are not stored: those of a tied head -> the FQN of its embedding, or None


@dataclasses.dataclass
class _RankResult:
    """What a rank tells the coordinator."""
    shard: object = None
    pickle_bytes: dict = dataclasses.field(default_factory=dict)  # tensor id -> bytes
    steps: dict = dataclasses.field(default_factory=dict)         # name of the parameter -> step
    heads: dict = dataclasses.field(default_factory=dict)         # FQN of a tied head -> its _HeadParts


@dataclasses.dataclass
class _HeadParts:
    """Parts of a tied head on a rank that does not have those of its embedding."""
    shape: tuple
    elements: int = 0
    digest: tuple = (0, 0)

    def add(self, elements, digest):
        self.elements += elements
        self.digest = tuple((a + b) % PRIME for a, b in zip(self.digest, digest))


def not_plain(data):
    """Why these bytes of torch.save are more than plain values, in a few words; None: they are plain values."""
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as e:  # whatever a damaged or hostile pickle raises
        found = re.search(r"GLOBAL (\S+) was not an allowed", str(e))
        return f"it calls {found[1]}" if found else " ".join(str(e).split())[-300:] or type(e).__name__
    return None


def _checked_plain(fqn, data):
    """Bytes that a load will accept."""
    problem = not_plain(data)
    if problem:
        raise UnsupportedError(f"{fqn}: is not a plain value ({problem}), so it would not be loaded again: make it of numbers, "
                               "texts, lists, dicts and tensors, leave it out, or allow its class on all ranks with "
                               "torch.serialization.add_safe_globals")
    return data


def _to_bits(tensor):
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


class TPWriter(StorageWriter):
    """A StorageWriter that adds step `step` to the checkpoint root `root`.

    config: the model's config.json, as a dict, text or object of transformers: with it the programs know how
    tensor parallelism cuts the tensors, and tp-ckpt export writes models. rules: a text for architectures that are
    not in docs/MODELS.md. train: next_sample, tokens, seed, options. force: replace an existing step.
    """

    def __init__(self, root, step, config=None, rules=None, train=None, force=False):
        super().__init__()
        self.root, self.step, self.force = local_path(root), step_number(step), force
        self.model, self.train = Model(config, rules), train
        self.transaction = self.contents = self.embeddings = None

    # the calls of torch, in their order

    def reset(self, checkpoint_id=None):
        self.abort()

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("TPWriter needs the collectives of torch.distributed.checkpoint: leave out "
                                   "use_collectives=False")

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        """On the coordinator: list the tensors, and begin the step."""
        listing = _Listing(plans, self.model)
        keys = {fqn: key for key, fqn in listing.names.items()}
        self.embeddings = {head: (fqn, listing.by_key[keys[fqn]]) for head, fqn in listing.left_out.items() if fqn}
        self.contents = make_manifest(listing.tensors, len(plans), self.step, self.model, self.train)
        self.transaction = Transaction(self.root, self.step, self.force)
        return [dataclasses.replace(plan, storage_data=listing.rank_plan(rank, plan, self.transaction.path,
                                                                         self.contents.spec))
                for rank, plan in enumerate(plans)]

    def write_data(self, plan, planner):
        """On every rank: write a shard."""
        mine = plan.storage_data
        if not isinstance(mine, _RankPlan) or not os.path.isdir(mine.folder):
            raise CheckpointError("the temporary directory of this save does not exist on this rank: all ranks must see "
                                  "the same file system, and the planner must not cache plans (enable_plan_caching)")
        result = _RankResult()
        sizes = _write_shard(result, mine, plan.items, planner)
        results = [WriteResult(index=item.index, size_in_bytes=size, storage_data=None)
                   for item, size in zip(plan.items, sizes)]
        if results:
            results[0] = dataclasses.replace(results[0], storage_data=result)
        future = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata, results):
        """On the coordinator, after all ranks: write the manifest, and make the step appear."""
        told = [r.storage_data for rank in results for r in rank if isinstance(r.storage_data, _RankResult)]
        m = self.contents
        m.shards = sorted((t.shard for t in told if t.shard), key=lambda s: s.rank)
        sizes = {i: n for t in told for i, n in t.pickle_bytes.items()}
        m.tensors = [dataclasses.replace(t, shape=(sizes[t.id],)) if t.group == PICKLE else t for t in m.tensors]
        _record_steps(m.train, m.step, {name: step for t in told for name, step in t.steps.items()})
        self._check_heads(told)
        self.transaction.commit(m)
        self.transaction = self.contents = self.embeddings = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True

    def abort(self):
        """Remove a save that has not ended. save() does so after an error."""
        if self.transaction:
            self.transaction.abort()
        self.transaction = self.contents = self.embeddings = None

    def _check_heads(self, told):
        """Compare heads with embeddings that other ranks have, as with pipeline parallelism, by their digests."""
        for head, (fqn, tensor) in self.embeddings.items():
            parts = [t.heads[head] for t in told if head in t.heads]
            if not parts or sum(p.elements for p in parts) != math.prod(parts[0].shape):
                continue  # there is none, or ranks that have both compared their parts
            found = _HeadParts(tensor.shape)
            for part in parts:
                found.add(part.elements, part.digest)
            if parts[0].shape != tensor.shape or found.digest != self._stored_digest(tensor):
                raise _untied(head, fqn)

    def _stored_digest(self, tensor):
        """That of a tensor, from the /index of all shards."""
        found = _HeadParts(tensor.shape)
        for shard in self.contents.shards:
            fd = open_shard(self.transaction.path, shard)
            try:
                rows = read_rows(fd, os.path.join(self.transaction.path, shard.file), shard, self.contents.tensors)
            finally:
                os.close(fd)
            mine = rows[rows["tensor"] == tensor.id]
            found.add(0, (sum(mine["digest0"].tolist()), sum(mine["digest1"].tolist())))
        return found.digest


class _Listing:
    """The tensors of all ranks' plans."""

    def __init__(self, plans, model):
        self.names, self.steps, self.left_out, boxes, found, counts = {}, {}, {}, {}, {}, {}
        for plan in plans:
            paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
            for item in plan.items:
                self._add(found, boxes, counts, item, paths.get(item.index.fqn, (item.index.fqn,)))
        self._take_steps(found, boxes, counts)
        self._leave_out_tied(found, model.as_dict() or {})
        self.tensors = list_tensors([(*key, *value) for key, value in found.items()], model)
        self.by_key = {(t.group, t.name): t for t in self.tensors}
        for key, t in self.by_key.items():
            if key[0] != PICKLE:
                _check_tiling(t, boxes[key])
        for key, fqn in self.names.items():
            first = next((c for c in candidates(fqn) if c in self.by_key), None)
            if first != key:
                raise UnsupportedError(f"{fqn}: a load could not tell it from {self.names.get(first)}; rename a key")

    def _take_steps(self, found, boxes, counts):
        """The manifest has the steps of parameters with other tensors of the optimizer. The rest are stored."""
        trained = {name for group, name in found if group not in NOT_OF_OPTIMIZER}
        for fqn, (key, kind, box) in counts.items():
            if key[1] in trained:
                self.steps[fqn] = key[1]
            else:
                found[key], boxes[key], self.names[key] = kind, [box], fqn

    def _add(self, found, boxes, counts, item, path):
        fqn = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            key, kind = pickle_name(path), ("u8", (0,))
        else:
            key, data = name_of(path), item.tensor_data
            dtype = DTYPES.get(data.properties.dtype)
            if dtype is None:
                raise UnsupportedError(f"{fqn}: has the dtype {data.properties.dtype}; the format has "
                                       f"{', '.join(map(str, DTYPES))}; leave it out of the state dict or convert it")
            kind, box = (dtype, tuple(data.size)), (tuple(data.chunk.offsets), tuple(data.chunk.sizes))
            if key[0] == PICKLE:
                raise UnsupportedError(f"{fqn}: the group {PICKLE} is for what is not a tensor; rename the key")
            if data.properties.layout != torch.strided:
                raise UnsupportedError(f"{fqn}: has the layout {data.properties.layout}; the format has dense tensors only: store "
                                       "x.to_dense()")
            if key[0] == STEP and len(data.size) == 0 and len(path) > 1 and path[0] != STEP:
                counts[fqn] = key, kind, box
                return
            boxes.setdefault(key, []).append(box)
        if self.names.setdefault(key, fqn) != fqn:
            raise UnsupportedError(f"{fqn} and {self.names[key]} would both be stored as {key[0]}/{key[1]}; rename a key")
        if found.setdefault(key, kind) != kind:
            raise UnsupportedError(f"{fqn}: has another dtype or shape on another rank")

    def _leave_out_tied(self, found, config):
        """A head that is the embedding is not stored (docs/FORMAT.md). left_out: its FQN, and that of the embedding
        that it must equal, or None."""
        if config.get("tie_word_embeddings", config.get("model_type") in checkpoint.TIED_BY_DEFAULT):
            for head, sources in checkpoint.TIED.items():
                source = next((("param", s) for s in sources if ("param", s) in found), None)
                if ("param", head) in found and source:
                    for key in [k for k in found if k[1] == head and k[0] != PICKLE]:
                        del found[key]
                        self.left_out[self.names.pop(key)] = self.names[source] if key[0] == "param" else None

    def rank_plan(self, rank, plan, folder, spec):
        here = {item.index.fqn for item in plan.items}
        return _RankPlan(folder, rank, spec, {f: self.by_key[key] for key, f in self.names.items() if f in here},
                         {f: n for f, n in self.steps.items() if f in here},
                         {f: s for f, s in self.left_out.items() if f in here})


def _check_tiling(tensor, boxes):
    n = len(tensor.shape)
    lo = np.array([a for a, _ in boxes], np.int64).reshape(len(boxes), n)
    lens = np.array([b for _, b in boxes], np.int64).reshape(len(boxes), n)
    full = (lens > 0).all(axis=1)
    found, wanted = int(lens[full].prod(axis=1).sum()), int(np.prod(tensor.shape, dtype=object))
    if found != wanted or find_overlap(lo[full], lens[full]) is not None:
        raise CheckpointError(f"{tensor.full_name} {list(tensor.shape)}: the parts of all ranks do not contain each "
                              f"element once: they have {found} elements, expected {wanted}")


def _untied(head, embedding):
    return CheckpointError(f"{head} and {embedding} have different values, but the config says that they are "
                           "tied: tie them, or set tie_word_embeddings to false in the config")


def _place_of(item):
    return tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)


def _embedding_of(item, source, parts, planner):
    """The part of the embedding at the place of a head's item; None: this rank does not have it."""
    other = parts.get((source, *_place_of(item)))
    if other is not None:
        return planner.resolve_data(other)
    if item.tensor_data.chunk.sizes != item.tensor_data.size:
        return None
    try:  # of a tensor that all ranks have, torch lets any of them write it
        found = planner.resolve_data(dataclasses.replace(item, index=dataclasses.replace(item.index, fqn=source)))
    except (KeyError, ValueError):
        return None
    return found if found.shape == item.tensor_data.size else None


def _digest_of(item, values):
    """Of a part, in chunks, because a digest needs memory for many times its values."""
    lo, shape = tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.size)
    tensor, sums = TensorInfo(0, "param", item.index.fqn, DTYPES[item.tensor_data.properties.dtype], shape), []

    def add(chunk):
        part = values[tuple(slice(b - a, b - a + n) for a, b, n in zip(lo, *chunk))]
        sums.append(digest(np.ascontiguousarray(part), chunk[0], shape))

    each_in_threads(add, chunks(tensor, lo, values.shape))
    return tuple(sum(each) for each in zip(*sums))


def _check_tied(mine, items, planner):
    """A head that is left out must be the embedding; otherwise its values would be lost. {FQN: _HeadParts} of heads whose
    embeddings other ranks have."""
    parts = {(item.index.fqn, *_place_of(item)): item for item in items if item.tensor_data}
    heads = {}
    for item in items:
        source = mine.left_out.get(item.index.fqn)
        if source is None or 0 in item.tensor_data.chunk.sizes:
            continue
        head, embedding = planner.resolve_data(item), _embedding_of(item, source, parts, planner)
        if embedding is None:
            heads.setdefault(item.index.fqn, _HeadParts(tuple(item.tensor_data.size))).add(
                head.numel(), _digest_of(item, _to_bits(head)))
        elif head.data_ptr() != embedding.data_ptr() and _to_bits(head).tobytes() != _to_bits(embedding).tobytes():
            raise _untied(item.index.fqn, source)
    return heads


def _write_shard(result, mine, items, planner):
    """Write the shard of a rank; the bytes of each item."""
    result.heads = _check_tied(mine, items, planner)
    boxes, pickles = [], {}
    for item in items:
        fqn = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            pickles[fqn] = np.frombuffer(_checked_plain(fqn, planner.resolve_data(item).getvalue()), np.uint8)
            t = dataclasses.replace(mine.tensors[fqn], shape=pickles[fqn].shape)
            result.pickle_bytes[t.id] = len(pickles[fqn])
            boxes.append((t, (0,), t.shape))
        elif fqn in mine.steps:
            result.steps[mine.steps[fqn]] = _count(fqn, planner.resolve_data(item).item())
        elif fqn not in mine.left_out and 0 not in item.tensor_data.chunk.sizes:
            boxes.append((mine.tensors[fqn], tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)))
    stored, numbers = stored_boxes(boxes), {}
    for number, box in enumerate(stored):
        numbers.setdefault(box.tensor.id, []).append(number)
    shard = ShardFile(mine.folder, mine.rank, mine.spec, stored) if stored else None
    try:
        sizes = [_write_item(shard, mine, numbers, item, _values_of(item, mine, planner, pickles)) for item in items]
        result.shard = shard.finish() if shard else None
    finally:
        if shard:
            shard.close()
    return sizes


def _count(fqn, value):
    """The step of a parameter as an int."""
    if not (math.isfinite(value) and value == int(value) and 0 <= value < 1 << 62):
        raise CheckpointError(f"{fqn}: is {value}, expected a whole number of steps")
    return int(value)


def _values_of(item, mine, planner, pickles):
    """The array that an item stores, or None."""
    fqn = item.index.fqn
    if fqn in pickles:
        return pickles[fqn]
    if fqn in mine.steps or fqn in mine.left_out or 0 in item.tensor_data.chunk.sizes:
        return None
    values = planner.resolve_data(item)
    if values.is_meta:
        raise CheckpointError(f"{fqn}: is on the device meta, so it has no values to save")
    return _to_bits(values)


def _write_item(shard, mine, numbers, item, values):
    """Write the stored boxes of an item; its bytes. numbers: those of the boxes of each tensor."""
    if values is None:
        return 0
    lo = (0,) if item.type == WriteItemType.BYTE_IO else tuple(item.tensor_data.chunk.offsets)
    end = tuple(a + n for a, n in zip(lo, values.shape))
    for number in numbers[mine.tensors[item.index.fqn].id]:
        box = shard.boxes[number]
        if all(a <= b and b + n <= e for a, b, n, e in zip(lo, box.lo, box.lens, end)):
            shard.write(number, values[tuple(slice(b - a, b - a + n) for a, b, n in zip(lo, box.lo, box.lens))])
    return values.nbytes


def _record_steps(train, step, steps):
    """AdamW counts a step for each parameter. Almost always they are equal, and the manifest has one number."""
    if not steps:
        return
    usual = collections.Counter(steps.values()).most_common(1)[0][0]
    others = {name: n for name, n in steps.items() if n != usual}
    if usual <= step:
        train["optimizer_start"] = step - usual
    if others or usual > step:
        train["options"] = {**train["options"], OPTIMIZER_STEPS: {"*": usual, **others}}
