"""What each tp rank holds of a checkpoint, from the HDF5 files of its ranks."""
import json

import h5py
import numpy as np


def read_shard(path):
    """{name: [(offset, array)]} of the weights in a shard."""
    found = {}
    with h5py.File(path, "r") as f:
        for name, dataset in f.get("param", {}).items():
            found.setdefault(name.split("@")[0], []).append((tuple(dataset.attrs["offset"]), dataset[()]))
    return found


def rank_parts(step, tp):
    """[{name: array}] of the tp ranks of a step whose layout is tp alone. Boxes that several ranks hold are stored by one
    of them (docs/FORMAT.md, section 5): those of tensors that are not cut by any, and those of shared units by a neighbour."""
    manifest = json.loads((step / "manifest.json").read_text())
    assert manifest["layout"]["ranks"] == tp
    shards = [read_shard(step / ("rank-%05d.h5" % r)) for r in range(tp)]
    parts = [{} for _ in range(tp)]
    for t in manifest["tensors"]:
        cut = t["rule"]
        dim, units = max(cut["dim"], 0), tp
        if cut["dim"] < 0:
            units = 1
        elif cut["share"]:
            units = min(tp, t["shape"][dim] // cut["blocks"] // cut["unit"])
        for r in range(tp):
            first = r // (tp // units) * (tp // units)
            boxes = [b for s in shards[first:first + tp // units] for b in s.get(t["name"], [])]
            boxes.sort(key=lambda box: box[0][dim])
            shape = [0 if i == dim else n for i, n in enumerate(t["shape"])]
            parts[r][t["name"]] = np.concatenate([np.zeros(shape, np.float32)] + [values for _, values in boxes], axis=dim)
    return parts
