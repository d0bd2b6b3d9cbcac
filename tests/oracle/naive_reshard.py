#!/usr/bin/env python3
"""An independent resharder for Llama checkpoints: whole tensors in memory, numpy and h5py, none of
our code and none of our tables. It knows how each tensor is cut from the tensor's name alone.

usage: naive_reshard.py A B SPEC
exit: 0 when step directory B is exactly A at SPEC: every box in the file of a rank that holds it,
the same bits, every element once; 1 with a sentence when not.
"""
import itertools
import json
import pathlib
import re
import sys

import h5py
import numpy as np

SIZE = {"f32": 4, "bf16": 2, "f16": 2}
AXES = ("tp", "pp", "vpp", "dp", "cp", "zero")


class Differs(Exception):
    pass


def parse_spec(text):
    spec = {axis: 1 for axis in AXES} | {"zero": 0}
    for axis, degree in re.findall(r"(tp|vpp|pp|dp|cp|zero)(\d+)", text.replace("=", "")):
        spec[axis] = int(degree)
    return spec


# ---- reading: h5py says where a dataset lies; its bits are taken from the file as they are ----

def boxes_of_file(path, dtypes):
    """{(group, name): [(offset, bits), ...]} of one shard."""
    found = {}
    raw = np.fromfile(path, np.uint8)
    with h5py.File(path, "r") as f:
        for group in (g for g in f if isinstance(f[g], h5py.Group)):
            for key, dataset in f[group].items():
                name = (group, key.split("@")[0])
                at, size = dataset.id.get_offset(), SIZE[dtypes[name]]
                bits = raw[at:at + int(np.prod(dataset.shape)) * size].view("u%d" % size)
                offset = tuple(int(x) for x in dataset.attrs["offset"])
                found.setdefault(name, []).append((offset, bits.reshape(dataset.shape)))
    return found


def read_step(step):
    """The manifest, {(group, name): shape}, and {rank: boxes of its file}."""
    step = pathlib.Path(step)
    manifest = json.loads((step / "manifest.json").read_text())
    dtypes = {(t["group"], t["name"]): t["dtype"] for t in manifest["tensors"]}
    shapes = {(t["group"], t["name"]): tuple(t["shape"]) for t in manifest["tensors"]}
    files = {s["rank"]: boxes_of_file(step / s["file"], dtypes) for s in manifest["shards"]}
    return manifest, dtypes, shapes, files


def assemble(step):
    """Whole tensors as bits; every element must be there once."""
    manifest, dtypes, shapes, files = read_step(step)
    whole = {k: np.zeros(s, "u%d" % SIZE[dtypes[k]]) for k, s in shapes.items()}
    times = {k: np.zeros(s, np.uint8) for k, s in shapes.items()}
    for boxes in files.values():
        for key, parts in boxes.items():
            for offset, bits in parts:
                at = tuple(slice(o, o + n) for o, n in zip(offset, bits.shape))
                whole[key][at] = bits
                times[key][at] += 1
    for key, t in times.items():
        if not (t == 1).all():
            raise Differs("%s: %s/%s: %d elements are missing, %d are there more than once"
                          % ((step,) + key + ((t == 0).sum(), (t > 1).sum())))
    return manifest, dtypes, whole, files


# ---- who holds what, by the rules of tensor parallelism, stages and ZeRO ----

def ceil_cut(n, parts, part):
    each = -(-n // parts)
    return min(each * part, n), min(each * (part + 1), n)


def tp_slice(name, shape, spec, tp, config):
    """(axis, lo, hi) of a tensor-parallel rank's shard; None: the whole tensor."""
    hd = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads)
    if re.search(r"embed_tokens|lm_head", name):
        return (0,) + ceil_cut(shape[0], spec["tp"], tp)
    if "q_proj" in name or "o_proj" in name:
        lo, hi = ceil_cut(heads, spec["tp"], tp)
        return int("o_proj" in name), lo * hd, hi * hd
    if "k_proj" in name or "v_proj" in name:
        lo, hi = (ceil_cut(kv, spec["tp"], tp) if kv >= spec["tp"] else
                  (tp * kv // spec["tp"], tp * kv // spec["tp"] + 1))
        return 0, lo * hd, hi * hd
    if "gate_proj" in name or "up_proj" in name:
        return (0,) + ceil_cut(shape[0], spec["tp"], tp)
    if "down_proj" in name:
        return (1,) + ceil_cut(shape[1], spec["tp"], tp)
    return None


def stage_rank(name, spec, n_layers):
    """The pipeline rank that has a tensor."""
    if "embed_tokens" in name:
        return 0
    layer = re.search(r"layers\.(\d+)\.", name)
    if not layer:
        return spec["pp"] - 1
    stages, at = spec["pp"] * spec["vpp"], 0
    for stage in range(stages):
        at += n_layers // stages + (stage < n_layers % stages)
        if int(layer.group(1)) < at:
            return stage % spec["pp"]
    raise AssertionError(name)


def held(key, shape, spec, coord, config):
    """[lo, hi) on every axis of what the rank at coord holds, or None."""
    group, name = key
    if stage_rank(name, spec, config["num_hidden_layers"]) != coord["pp"]:
        return None
    box = [[0, n] for n in shape]
    cut = tp_slice(name, shape, spec, coord["tp"], config)
    if cut:
        box[cut[0]] = list(cut[1:])
    if spec["dp"] > 1 and (spec["zero"] == 3 or (spec["zero"] and group != "param")):
        lo, hi = ceil_cut(box[0][1] - box[0][0], spec["dp"], coord["dp"])
        box[0] = [box[0][0] + lo, box[0][0] + hi]
    return None if any(lo >= hi for lo, hi in box) else box


def coords(spec):
    """Rank by rank: pp slowest, then dp, cp, tp."""
    return [dict(zip(("pp", "dp", "cp", "tp"), c)) for c in itertools.product(
        *(range(spec[a]) for a in ("pp", "dp", "cp", "tp")))]


# ---- comparing ----

def check(a, b, spec_text):
    manifest_a, dtypes_a, want, _ = assemble(a)
    manifest, dtypes, got, files = assemble(b)
    spec, config = parse_spec(spec_text), json.loads(manifest["model_config"])
    for field in ("step", "train", "model_config"):
        if manifest[field] != manifest_a[field]:
            raise Differs("%s: %s is not carried over" % (b, field))
    if dtypes != dtypes_a or list(want) != list(got):
        raise Differs("%s: other tensors than %s" % (b, a))
    for key in want:
        if not np.array_equal(want[key], got[key]):
            raise Differs("%s: %s/%s differs" % ((b,) + key))
    for rank, boxes in files.items():
        coord = coords(spec)[rank]
        for key, parts in boxes.items():
            box = held(key, want[key].shape, spec, coord, config)
            have = [[[o, o + n] for o, n in zip(offset, bits.shape)] for offset, bits in parts]
            if have != [box]:
                raise Differs("%s: rank %d has %s/%s%s, by the rules it holds %s"
                              % ((b, rank) + key + (have, box)))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        check(*sys.argv[1:])
    except Differs as e:
        print(e)
        sys.exit(1)
