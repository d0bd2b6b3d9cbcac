#!/usr/bin/env python3
"""An independent check of resharding, for Llama and GPT-2 checkpoints. It reads whole tensors with numpy and
uses no code and no tables of this project. The name of a tensor says how it is sharded.

usage: naive_reshard.py A B SPEC
Exit code 0: step directory B is exactly A at SPEC. Every box is in the file of a rank that holds it, with
the same bits, and every element occurs once. Exit code 1 and a sentence: B differs.

h5py finds the boxes. With by_index=True they are read from the table /index (docs/FORMAT.md), which is a
hundred times faster for many files.
"""
import functools
import itertools
import json
import pathlib
import re
import sys

import h5py
import numpy as np

SIZE = {"f32": 4, "bf16": 2, "f16": 2}
AXES = ("tp", "pp", "vpp", "dp", "cp", "zero")
ROW = np.dtype([("tensor", "<u4"), ("part", "<u4"), ("ndim", "<u4"), ("codec", "<u4"),
                ("lo", "<i8", 6), ("len", "<i8", 6), ("offset", "<i8"), ("stored_bytes", "<i8"),
                ("raw_bytes", "<i8"), ("crc32c", "<u4"), ("reserved", "<u4"),
                ("digest0", "<u8"), ("digest1", "<u8")])
PRIME = (1 << 61) - 1
POINTS = (0x0D413CCCFE779921, 0x176CF5D0B09954E7)


class Differs(Exception):
    pass


def parse_spec(text):
    spec = {axis: 1 for axis in AXES} | {"zero": 0}
    for axis, degree in re.findall(r"(tp|vpp|pp|dp|cp|zero)(\d+)", text.replace("=", "")):
        spec[axis] = int(degree)
    return spec


# ---- reading: the positions of boxes, and their bits ----

class Step:
    """A step directory: its manifest, and the boxes in the file of every rank.

    keys: [(group, name)] by id; files: {rank: {key: [(offset, bits), ...]}}; sums: {key: its digest},
    if the tables are read.
    """

    def __init__(self, folder, by_index=False):
        self.folder = pathlib.Path(folder)
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        tensors = self.manifest["tensors"]
        self.keys = [(t["group"], t["name"]) for t in tensors]
        self.dtypes = {k: t["dtype"] for k, t in zip(self.keys, tensors)}
        self.shapes = {k: tuple(t["shape"]) for k, t in zip(self.keys, tensors)}
        self.sums = {k: [0, 0] for k in self.keys}
        read = self.boxes_by_index if by_index else self.boxes_by_hdf5
        self.files = {s["rank"]: read(s) for s in self.manifest["shards"]}

    def boxes_by_hdf5(self, shard):
        found = {}
        path = self.folder / shard["file"]
        raw = np.fromfile(path, np.uint8)
        with h5py.File(path, "r") as f:
            for group in (g for g in f if isinstance(f[g], h5py.Group)):
                for name, dataset in f[group].items():
                    key = (group, name.split("@")[0])
                    at, size = dataset.id.get_offset(), SIZE[self.dtypes[key]]
                    bits = raw[at:at + int(np.prod(dataset.shape)) * size].view("u%d" % size)
                    offset = tuple(int(x) for x in dataset.attrs["offset"])
                    found.setdefault(key, []).append((offset, bits.reshape(dataset.shape)))
        return found

    def boxes_by_index(self, shard):
        """The chunks of the tables; a box may have several."""
        found = {}
        raw = (self.folder / shard["file"]).read_bytes()
        rows = np.frombuffer(raw, ROW, shard["index_rows"], shard["index_offset"]).tolist()
        for tensor, _, ndim, codec, lo, extent, at, _, n, _, _, d0, d1 in rows:
            key = self.keys[tensor]
            size = SIZE[self.dtypes[key]]
            if codec:
                raise Differs("%s/%s: %s/%s is encoded" % ((self.folder, shard["file"]) + key))
            bits = np.frombuffer(raw, "u%d" % size, n // size, at).reshape(extent[:ndim])
            found.setdefault(key, []).append((tuple(lo[:ndim]), bits))
            total = self.sums[key]
            total[0], total[1] = (total[0] + d0) % PRIME, (total[1] + d1) % PRIME
        return found

    def whole(self):
        """{key: whole tensor as bits}. Every element must occur once."""
        whole = {k: np.zeros(s, "u%d" % SIZE[self.dtypes[k]]) for k, s in self.shapes.items()}
        times = {k: np.zeros(s, np.uint8) for k, s in self.shapes.items()}
        for boxes in self.files.values():
            for key, parts in boxes.items():
                for offset, bits in parts:
                    at = place(offset, bits)
                    whole[key][at] = bits
                    times[key][at] += 1
        for key, t in times.items():
            if not (t == 1).all():
                raise Differs("%s: %s/%s: %d elements are missing, %d occur more than once"
                              % ((self.folder,) + key + ((t == 0).sum(), (t > 1).sum())))
        return whole


def place(offset, bits):
    return tuple(slice(o, o + n) for o, n in zip(offset, bits.shape))


def assemble(folder):
    """The manifest, {key: dtype}, {key: whole tensor as bits} and the files of a step."""
    step = Step(folder)
    return step.manifest, step.dtypes, step.whole(), step.files


def digest(bits):
    """D_0 and D_1 of a whole tensor, by Horner's rule from the last element."""
    sums = []
    for point in POINTS:
        total = 0
        for v in reversed(bits.reshape(-1).tolist()):
            total = (total * point + v + 1) % PRIME
        sums.append(total)
    return sums


# ---- the boxes of each rank, by the rules of tensor and pipeline parallelism and ZeRO ----

def ceil_cut(n, parts, part):
    each = -(-n // parts)
    return min(each * part, n), min(each * (part + 1), n)


class Model:
    """The values of a config.json that the shards depend on."""

    def __init__(self, config):
        gpt2 = config["architectures"] == ["GPT2LMHeadModel"]
        self.layers = config["n_layer" if gpt2 else "num_hidden_layers"]
        self.heads = config["n_head" if gpt2 else "num_attention_heads"]
        self.kv = self.heads if gpt2 else config.get("num_key_value_heads", self.heads)
        hidden = config["n_embd" if gpt2 else "hidden_size"]
        self.head_dim = config.get("head_dim") or hidden // self.heads

    def heads_of(self, heads, tp, rank):
        """The elements of the heads of a tensor-parallel rank. With fewer heads than ranks, neighbours share."""
        lo, hi = ceil_cut(heads, tp, rank) if heads >= tp else (rank * heads // tp,) * 2
        hi += heads < tp
        return lo * self.head_dim, hi * self.head_dim

    def tp_cut(self, name, shape, tp, rank):
        """(axis, [(lo, hi), ...]) of a tensor-parallel rank's shard; None if it has the whole tensor."""
        if re.search(r"embed_tokens|lm_head|wte", name):
            return 0, [ceil_cut(shape[0], tp, rank)]
        if "q_proj" in name or "o_proj" in name:
            return int("o_proj" in name), [self.heads_of(self.heads, tp, rank)]
        if "k_proj" in name or "v_proj" in name:
            return 0, [self.heads_of(self.kv, tp, rank)]
        if "gate_proj" in name or "up_proj" in name or "mlp.c_fc" in name:
            axis = len(shape) - 1 if "c_fc" in name else 0  # GPT-2's matrices are [in, out]
            return axis, [ceil_cut(shape[axis], tp, rank)]
        if "down_proj" in name:
            return 1, [ceil_cut(shape[1], tp, rank)]
        if "c_attn" in name:
            lo, hi = self.heads_of(self.heads, tp, rank)
            third = shape[-1] // 3
            return len(shape) - 1, [(i * third + lo, i * third + hi) for i in range(3)]
        if "attn.c_proj.weight" in name:
            return 0, [self.heads_of(self.heads, tp, rank)]
        if "mlp.c_proj.weight" in name:
            return 0, [ceil_cut(shape[0], tp, rank)]
        return None

    def stage_rank(self, name, spec):
        """The pipeline rank that holds a tensor."""
        if re.search(r"embed_tokens|wte|wpe", name):
            return 0
        layer = re.search(r"(layers|h)\.(\d+)\.", name)
        if not layer:
            return spec["pp"] - 1
        stages, at = spec["pp"] * spec["vpp"], 0
        for stage in range(stages):
            at += self.layers // stages + (stage < self.layers % stages)
            if int(layer.group(2)) < at:
                return stage % spec["pp"]
        raise AssertionError(name)

    def held(self, key, shape, spec, coord):
        """The boxes of the rank at coord: each is [(lo, hi), ...], one pair for each axis."""
        group, name = key
        if self.stage_rank(name, spec) != coord["pp"]:
            return []
        axis, cuts = self.tp_cut(name, shape, spec["tp"], coord["tp"]) or (0, [(0, shape[0])])
        rows = cuts if axis == 0 else [(0, shape[0])]  # they are contiguous in the shard
        if spec["dp"] > 1 and (spec["zero"] == 3 or (spec["zero"] and group != "param")):
            lo, hi = ceil_cut(sum(b - a for a, b in rows), spec["dp"], coord["dp"])
            rows = list(cut_rows(rows, lo, hi))
        boxes = [[row] + [(0, n) for n in shape[1:]] for row in rows if row[0] < row[1]]
        if axis == 1:
            boxes = [[box[0], cut] for box in boxes for cut in cuts if cut[0] < cut[1]]
        return boxes


def cut_rows(rows, lo, hi):
    """Rows lo to hi of the concatenation of ranges."""
    for a, b in rows:
        if max(lo, 0) < min(hi, b - a):
            yield a + max(lo, 0), a + min(hi, b - a)
        lo, hi = lo - (b - a), hi - (b - a)


def coords(spec):
    """The coordinates of all ranks, in order: pp varies slowest, then dp, cp, tp."""
    return [dict(zip(("pp", "dp", "cp", "tp"), c)) for c in itertools.product(
        *(range(spec[a]) for a in ("pp", "dp", "cp", "tp")))]


# ---- comparing ----

def lies_in(inner, outer):
    return all(a >= lo and b <= hi for (a, b), (lo, hi) in zip(inner, outer))


def check_places(step, spec_text, want=None):
    """The boxes of a tensor in a file must be exactly those of its rank. If `want` is given, they must have
    the bits of these whole tensors."""
    spec = parse_spec(spec_text)
    model, at = Model(json.loads(step.manifest["model_config"])), coords(spec)
    held = functools.lru_cache(None)(
        lambda key, rank: model.held(key, step.shapes[key], spec, at[rank]))
    for rank, boxes in step.files.items():
        if rank >= len(at):
            raise Differs("%s: rank %d has a file, but there are only %d ranks" % (step.folder, rank,
                                                                               len(at)))
        for key, parts in boxes.items():
            size = sum(np.prod([b - a for a, b in box]) for box in held(key, rank))
            if sum(bits.size for _, bits in parts) != size:
                raise Differs("%s: rank %d holds other elements of %s/%s than its %d elements"
                              % ((step.folder, rank) + key + (size,)))
            for offset, bits in parts:
                have = [(o, o + n) for o, n in zip(offset, bits.shape)]
                if not any(lies_in(have, box) for box in held(key, rank)):
                    raise Differs("%s: rank %d has %s/%s%s, but should hold %s"
                                  % ((step.folder, rank) + key + (have, held(key, rank))))
                if want and not np.array_equal(want[key][place(offset, bits)], bits):
                    raise Differs("%s: %s/%s differs in the file of rank %d"
                                  % ((step.folder,) + key + (rank,)))


def check_same(a, b, want):
    """Step b must have everything of step a, whose whole tensors are want."""
    for field in ("step", "train", "model_config"):
        if b.manifest[field] != a.manifest[field]:
            raise Differs("%s: %s was not copied" % (b.folder, field))
    if b.dtypes != a.dtypes or b.shapes != a.shapes:
        raise Differs("%s: its tensors are not those of %s" % (b.folder, a.folder))
    got = b.whole()
    for key in want:
        if not np.array_equal(want[key], got[key]):
            raise Differs("%s: %s/%s differs" % ((b.folder,) + key))


def check(a, b, spec_text, by_index=False):
    a, b = Step(a, by_index), Step(b, by_index)
    want = a.whole()
    check_same(a, b, want)
    check_places(b, spec_text, want)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        check(*sys.argv[1:])
    except Differs as e:
        print(e)
        sys.exit(1)
