"""A StorageReader of torch.distributed.checkpoint; dcp.py has what users call."""
import io

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader

from . import roots
from .dcp_names import NOT_OF_OPTIMIZER, OPTIMIZER_STEPS, PICKLE, STEP, candidates
from .dcp_writer import DTYPES, not_plain
from .errors import DamagedError

_TORCH = {name: dtype for dtype, name in DTYPES.items()}


class _Names(dict):
    """The metadata of tensors by FQN. It has one FQN of each tensor, and finds the others that a program may use."""

    def __init__(self, reader):
        super().__init__()
        self.reader = reader

    def __contains__(self, fqn):
        return self.reader.find(fqn) is not None

    def __missing__(self, fqn):
        found = self.reader.find(fqn)
        if found is None:
            raise KeyError(fqn)
        return found[1]


class TPReader(StorageReader):
    """A StorageReader of a checkpoint of any layout: `root` is a root (its newest complete step, or `step`) or a step
    directory. Each rank reads the chunks that its parts need.

    Where there are other ranks, the checkpoint is opened in the load, and not before: there torch sends an error of one rank
    to the others, which wait for it."""

    def __init__(self, root, step=None):
        super().__init__()
        self.root, self.wanted, self._checkpoint = roots.local_path(root), step, None
        if not (dist.is_available() and dist.is_initialized()):
            self.open()

    def open(self):
        if self._checkpoint is None:
            self._checkpoint = roots.open(self.root, self.wanted)
            self.wanted = self._checkpoint.step
            # parameters that have a state of an optimizer, and so a step
            self.trained = {t.name for t in self._checkpoint.manifest.tensors if t.group not in NOT_OF_OPTIMIZER}
        return self._checkpoint

    checkpoint = property(open, doc="the Checkpoint that is read")

    def reset(self, checkpoint_id=None):
        pass

    def find(self, fqn):
        """(what it is, its metadata) of an FQN: a Tensor of the checkpoint, or a step of the optimizer. None: the
        checkpoint has no such thing."""
        ckpt = self.checkpoint
        for group, name in candidates(fqn):
            if group == "param" and ckpt.tied_source(name):
                name = ckpt.tied_source(name)
            if (group, name) in ckpt.names:
                found = ckpt.tensor(name, group)
                return found, BytesStorageMetadata() if group == PICKLE else _metadata(found.dtype, found.shape)
            if group == STEP and name in self.trained and candidates(fqn)[-1] not in ckpt.names:  # an int, as of Adafactor
                return _step_of(ckpt, name), _metadata("f32", ())
        return None

    def read_metadata(self, *args, **kwargs):
        names, paths = _Names(self), {}
        for t in self.checkpoint.tensors():
            path = {"param": (t.name,), PICKLE: (t.name,), "master": ("master", t.name)}.get(
                t.group, (t.group, t.name) if "." in t.group else ("optim", "state", t.name, t.group))
            fqn = ".".join(path)
            names[fqn], paths[fqn] = names[fqn], path
        return Metadata(names, planner_data=paths)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        pass

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        for item in plan.items:
            found, _ = self.find(item.storage_index.fqn)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(_checked_pickle(found)))
                continue
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._read(found, item, target))
            planner.commit_tensor(item, target)
        future = torch.futures.Future()
        future.set_result(None)
        return future

    def _read(self, found, item, target):
        if isinstance(found, int):
            return torch.tensor(found, dtype=torch.float64)  # the target's type rounds it, if it has fewer bits
        rounded = found.group == "param" and found.dtype in ("bf16", "f16")
        if target.dtype == torch.float32 and rounded and ("master", found.name) in self.checkpoint.names:
            found = self.checkpoint.tensor(found.name, "master")  # the weights before they were rounded
        return found.torch(tuple(slice(a, a + n) for a, n in zip(item.storage_offsets, item.lengths)))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


def _metadata(dtype, shape):
    """A tensor as one chunk: any part of it can be read."""
    size = torch.Size(shape)
    return TensorStorageMetadata(TensorProperties(dtype=_TORCH[dtype]), size,
                                 [ChunkStorageMetadata(torch.Size([0] * len(shape)), size)])


def _step_of(ckpt, name):
    train = ckpt.train
    steps = train["options"].get(OPTIMIZER_STEPS)
    steps = steps if isinstance(steps, dict) else {}
    return int(steps.get(name, steps.get("*", ckpt.step - train.get("optimizer_start", 0))))


def _checked_pickle(tensor):
    """The bytes of something that is not a tensor. torch loads them without restrictions, so refuse what more than
    builds values."""
    data = tensor.bits().tobytes()
    problem = not_plain(data)
    if problem:
        raise DamagedError(f"{tensor.info.full_name}: is not loaded, because it is not a plain value: {problem}")
    return data


class LoadPlanner(DefaultLoadPlanner):
    """Like DefaultLoadPlanner; but what is not a tensor and is not in the checkpoint, such as the param_groups of an
    optimizer when tp-train wrote the checkpoint, stays as it is."""

    def create_local_plan(self):
        state = {fqn: value for fqn, value in self.state_dict.items()
                 if isinstance(value, torch.Tensor) or fqn in self.metadata.state_dict_metadata}
        return create_default_local_load_plan(state, self.metadata, not self.allow_partial_load)
