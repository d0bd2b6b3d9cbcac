"""Writes FSDP checkpoints as verl saves them, without torch: the pickles name the same classes as those of torch's DTensor, DeviceMesh and
ShardedTensor. Real files of FSDP are compared in tests/clients/test_verl.py."""
import collections
import json

import numpy as np

import torch_files
from torch_files import Tensor, _make, torch

MOMENTS = "exp_avg", "exp_avg_sq"


def _classes(module, *names):
    return torch_files._module(module, **{n: torch_files._class() for n in names})


_SERIAL = torch_files._module("torch.serialization", _get_layout=lambda *_: None)
torch._utils._rebuild_wrapper_subclass = lambda *_: None
torch._utils._rebuild_wrapper_subclass.__module__ = "torch._utils"
torch._utils._rebuild_wrapper_subclass.__qualname__ = "_rebuild_wrapper_subclass"
for _name in ("torch.distributed.tensor", "torch.distributed._shard", "torch.distributed._shard.sharded_tensor"):
    torch_files._module(_name)
_DTENSOR = _classes("torch.distributed.tensor", "DTensor")
_SPEC = _classes("torch.distributed.tensor._dtensor_spec", "DTensorSpec")
_PLACES = _classes("torch.distributed.tensor.placement_types", "Shard", "Replicate", "Partial", "_StridedShard")
_MESH = _classes("torch.distributed.device_mesh", "DeviceMesh")
_LAYOUT = _classes("torch.distributed._mesh_layout", "_MeshLayout", "_FlatLayout")
_SHARDED = _classes("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
_SHARD = _classes("torch.distributed._shard.sharded_tensor.shard", "Shard")
_META = _classes("torch.distributed._shard.metadata", "ShardMetadata")


class _Call:
    """A call of a function in a pickle."""

    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return self.args


def _wrapped(cls, array, state):
    """What _rebuild_from_type_v2 makes of a subclass that is a wrapper."""
    layout = _Call(_SERIAL._get_layout, ("torch.strided",))
    strides = tuple(int(s) // array.itemsize for s in array.strides)
    args = (cls, getattr(torch, torch_files.DTYPES[torch_files.kind_of(array)]), array.shape, strides, 0, layout, None, False)
    return _Call(torch._tensor._rebuild_from_type_v2, (torch._utils._rebuild_wrapper_subclass, cls, args, state))


def cut(array, parts, part, dim=0):
    """The part that torch.chunk gives."""
    step = -(-array.shape[dim] // parts)
    return np.ascontiguousarray(np.take(array, range(min(part * step, array.shape[dim]), min((part + 1) * step, array.shape[dim])), dim))


class Save:
    """What one save has. ranks = replicas * shards; form: how torch pickles a mesh ("2.6", "2.8", "2.11", "2.15"); kind: "fsdp2", "fsdp1" (flat
    parameters of units), "orig" (FSDP1 with use_orig_params), "sharded" ("fsdp1" with ShardedTensors). dims: {name: dim that is cut}.
    tied: the head is the embedding, so the model has it and the optimizer does not."""

    def __init__(self, state, ranks, replicas=1, form="2.8", kind="fsdp2", step=3, dims=None, tied=False):
        self.state, self.ranks, self.replicas, self.shards = state, ranks, replicas, ranks // replicas
        self.form, self.kind, self.step, self.dims, self.tied = form, kind, step, dims or {}, tied
        self.names = sorted(state["param"], key=lambda n: (2 * ("norm.weight" in n and "layers" not in n) + 3 * ("lm_head" in n) + ("layers" in n), n))

    def mesh(self, rank):
        sizes = (self.ranks,) if self.replicas == 1 else (self.replicas, self.shards)
        strides, place = (1,) if len(sizes) == 1 else (sizes[1], 1), np.unravel_index(rank, sizes)
        ranks = np.arange(self.ranks, dtype=np.int64)
        names, place = ("fsdp",) if len(sizes) == 1 else ("ddp", "fsdp"), [int(p) for p in place]
        groups = ["0"] if len(sizes) == 1 else [str(1 + place[1]), str(1 + sizes[1] + place[0])]  # as torch numbers them
        if self.form in ("2.6", "2.8"):
            near = ranks.reshape(sizes)
            near = [list(map(int, near[:, place[1]] if d == 0 and len(sizes) > 1 else near[place[0]] if d else near)) for d in range(len(sizes))]
            infos = [("ptd:" + g, n, g) for g, n in zip(groups, near)]
            said = {"_dim_group_infos": infos} if self.form == "2.6" else {"_dim_group_names": groups}
            return _make(_MESH.DeviceMesh, device_type="cuda", mesh=Tensor(ranks.reshape(sizes)), mesh_dim_names=names, _hash=rank + 3,
                         _flatten_mesh_list=tuple(range(self.ranks)), _thread_id=None, **said, _coordinate_on_dim=place)
        if self.form == "2.11":
            layout = _make(_LAYOUT._MeshLayout, shape=sizes if len(sizes) > 1 else sizes[0], stride=strides)
        else:
            layout = _make(_LAYOUT._MeshLayout, axes=tuple(_make(_LAYOUT._FlatLayout, shape=(n,) if n > 1 else (), stride=(s,) if n > 1 else ())
                                                           for n, s in zip(sizes, strides)))
        return _make(_MESH.DeviceMesh, _device_type="cuda", _layout=layout, _rank_map=Tensor(ranks), _mesh_dim_names=names,
                     _root_mesh=None, _flatten_mapping={}, _dim_group_names=groups, _rank=rank, _hash=rank + 3,
                     _flatten_rank_map=tuple(range(self.ranks)), _coordinate_on_dim=tuple(place))

    def placements(self, name):
        shard = _make(_PLACES.Shard, dim=self.dims.get(name, 0))
        return (shard,) if self.replicas == 1 else (_make(_PLACES.Replicate), shard)

    def dtensor(self, name, array, rank, mesh):
        part = Tensor(cut(array, self.shards, rank % self.shards, self.dims.get(name, 0)))
        spec = _make(_SPEC.DTensorSpec, mesh=mesh, placements=self.placements(name), _hash=5)
        return _wrapped(_DTENSOR.DTensor, array, (None, {"_local_tensor": part, "_spec": spec}))

    def sharded(self, array, rank):
        part, step = cut(array, self.ranks, rank), -(-array.shape[0] // self.ranks)
        where = _make(_META.ShardMetadata, shard_offsets=[rank * step] + [0] * (array.ndim - 1), shard_sizes=list(part.shape))
        shards = [_make(_SHARD.Shard, tensor=Tensor(part), metadata=where)] if part.size else []
        return _wrapped(_SHARDED.ShardedTensor, array, (shards, None))

    def model(self, rank):
        mesh = self.mesh(rank)
        tensors = [(n, self.sharded(a, rank) if self.kind == "sharded" else self.dtensor(n, a, rank, mesh))
                   for n, a in ((n, self.state["param"][n]) for n in self.names)]
        if self.tied:
            tensors.append(("lm_head.weight", dict(tensors)["model.embed_tokens.weight"]))
        return collections.OrderedDict(tensors)

    def units(self):
        """The names of each flat parameter."""
        found = {}
        for n in sorted(self.names, key=lambda n: "layers" in n):
            found.setdefault(n.split(".")[2] if "layers" in n else "", []).append(n)
        return list(found.values())

    def optimizer_state(self, rank):
        shard, mesh, step = rank % self.shards, self.mesh(rank), Tensor(np.array(self.step, np.float32))
        if self.kind == "fsdp2":
            return {i: {"step": step, **{m: self.dtensor(n, self.state[m][n], rank, mesh) for m in MOMENTS}} for i, n in enumerate(self.names)}
        units = self.units() if self.kind != "orig" else [[n] for n in self.names]
        found = {}
        for i, names in enumerate(units):
            flats = {m: np.concatenate([self.state[m][n].reshape(-1) for n in names]) for m in MOMENTS}
            size = flats["exp_avg"].size
            part = -(-size // self.shards)
            if self.kind == "orig":  # an interval of whatever length; here the first rank has the most
                bounds = [0] + [size - size // (r + 2) for r in range(self.shards - 1)] + [size]
                lo, hi = bounds[shard], bounds[shard + 1]
            else:
                lo, hi = shard * part, (shard + 1) * part
            parts = {m: np.concatenate([f, np.zeros(part * self.shards, f.dtype)])[lo:hi] if self.kind != "orig" else f[lo:hi] for m, f in flats.items()}
            if hi > lo:
                found[i] = {"step": step, **{m: Tensor(p) for m, p in parts.items()}}
        return found

    def optimizer(self, rank):
        count = len(self.names if self.kind in ("fsdp2", "orig") else self.units())
        group = {"lr": 2e-5, "betas": (0.9, 0.98), "eps": 1e-7, "weight_decay": 0.02, "amsgrad": False, "params": list(range(count))}
        return {"state": self.optimizer_state(rank), "param_groups": [group]}

    def extra(self, rank):
        return {"lr_scheduler": {"last_epoch": self.step, "_step_count": self.step + 1, "_last_lr": [2e-5]},
                "rng": {"cpu": Tensor(np.arange(8, dtype=np.int64) + rank), "random": (3, (1, 2, 3), None)}}

    def path(self, folder, kind, rank):
        return folder / ("%s_world_size_%d_rank_%d.pt" % (kind, self.ranks, rank))

    def write_rank(self, folder, rank, kinds=("model", "optim", "extra_state")):
        for kind in kinds:
            torch_files.save(self.path(folder, kind, rank), {"model": self.model, "optim": self.optimizer, "extra_state": self.extra}[kind](rank))

    def write(self, folder, config=None, says_world=True):
        for rank in range(self.ranks):
            self.write_rank(folder, rank)
        if says_world:
            (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2 if self.kind == "fsdp2" else 1, "world_size": self.ranks}))
        if config:
            (folder / "huggingface").mkdir(exist_ok=True)
            (folder / "huggingface/config.json").write_bytes(config.read_bytes())
        return folder
