#!/usr/bin/python3
"""An independent reader of checkpoints, written from docs/FORMAT.md alone: h5py, numpy, hashlib.

    read_ckpt.py STEP_DIR             print "SHA-256  group/name" of the bytes of every whole tensor
    read_ckpt.py STEP_DIR OUT.npz     also write the tensors (bf16 as its bits, uint16)

It uses no code of this project. If the checkpoint is damaged, it prints a sentence and exits with 1.
"""
import hashlib
import json
import os
import sys

import h5py
import numpy as np

# The numpy type of each dtype. numpy has no bf16, so its bits are used.
HELD = {"f32": "<f4", "bf16": "<u2", "f16": "<f2", "f64": "<f8", "i64": "<i8", "i32": "<i4",
        "u8": "u1"}
ROW = np.dtype([("tensor", "<u4"), ("part", "<u4"), ("ndim", "<u4"), ("codec", "<u4"),
                ("lo", "<i8", 6), ("len", "<i8", 6), ("offset", "<i8"), ("stored_bytes", "<i8"),
                ("raw_bytes", "<i8"), ("crc32c", "<u4"), ("reserved", "<u4"),
                ("digest0", "<u8"), ("digest1", "<u8")])
PRIME = (1 << 61) - 1
POINTS = (0x0D413CCCFE779921, 0x176CF5D0B09954E7)


def check(ok, sentence):
    if not ok:
        sys.exit(f"read_ckpt: {sentence}")


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as f:
        text = f.read()
    tail = text[-81:]
    check(tail[:13] == b'"checksum": "' and tail[77:] == b'"\n}\n', "manifest: no checksum line")
    found = hashlib.sha256(text[:-81]).hexdigest()
    check(found == tail[13:77].decode(), "manifest: its checksum differs")
    manifest = json.loads(text)
    check(manifest["format"] == "tp-ckpt" and manifest["version"] in (1, 2), "manifest: other version")
    check(manifest["train"]["step"] == manifest["step"], "manifest: the steps differ")
    return manifest


def read_index(path, shard):
    """The bytes of a shard and the rows of its /index, after both checksums of the shard."""
    with open(path, "rb") as f:
        data = np.frombuffer(f.read(), np.uint8)
    check(len(data) == shard["size_bytes"], f"{path}: other size")
    check(data[:8].tobytes() == b"\x89HDF\r\n\x1a\n", f"{path}: no HDF5 signature")
    begin, end = shard["index_offset"], shard["index_offset"] + 160 * shard["index_rows"]
    check(hashlib.sha256(data[begin:end]).hexdigest() == shard["index_sha256"],
          f"{path}: /index differs")
    rows = np.frombuffer(data[begin:end].tobytes(), ROW)
    rest, at = hashlib.sha256(), 0
    for row in sorted(rows, key=lambda r: r["offset"]):
        rest.update(data[at:row["offset"]])
        at = row["offset"] + row["stored_bytes"]
    rest.update(data[at:])
    check(rest.hexdigest() == shard["meta_sha256"], f"{path}: bytes outside payloads differ")
    return data, rows


def check_dataset(f, tensor, rows):
    """The HDF5 dataset of these rows (all rows of one tensor and part) must be as /index says."""
    n = int(rows[0]["ndim"])
    lo, end = rows[0]["lo"][:n], rows[-1]["lo"][:n] + rows[-1]["len"][:n]
    name = tensor["name"] + (f"@{rows[0]['part']}" if rows[0]["part"] else "")
    where = f"{f.filename}: /{tensor['group']}/{name}"
    dataset = f[tensor["group"]].get(name)
    check(dataset is not None, f"{where}: missing")
    check(dataset.shape == tuple(end - lo), f"{where}: other shape")
    check(dataset.id.get_offset() == rows[0]["offset"], f"{where}: other offset")
    if n > 0:
        check(list(dataset.attrs["offset"]) == list(lo), f"{where}: other attribute 'offset'")
        check(list(dataset.attrs["global_shape"]) == tensor["shape"],
              f"{where}: other attribute 'global_shape'")


def check_names(f, tensors, rows):
    """A shard has the datasets that its /index lists, and no others."""
    datasets = {}
    for row in rows:
        datasets.setdefault((int(row["tensor"]), int(row["part"])), []).append(row)
    for (tensor, _), part_rows in datasets.items():
        check_dataset(f, tensors[tensor], part_rows)
    found = sum(len(f[group]) for group in f if group != "index")
    check(found == len(datasets), f"{f.filename}: has datasets that /index does not have")


def read_shard(folder, shard, tensors, whole, times):
    path = os.path.join(folder, shard["file"])
    data, rows = read_index(path, shard)
    with h5py.File(path, "r") as f:
        check(np.array_equal(f["index"][()], rows.astype(f["index"].dtype)), f"{path}: /index")
        check_names(f, tensors, rows)
        for row in rows:
            check(row["codec"] == 0, f"{path}: codec {row['codec']}")
            t = tensors[row["tensor"]]
            n = int(row["ndim"])
            box = tuple(slice(a, a + b) for a, b in zip(row["lo"][:n], row["len"][:n]))
            payload = data[row["offset"]:row["offset"] + row["stored_bytes"]]
            part = payload.view(HELD[t["dtype"]]).reshape(row["len"][:n])
            whole[row["tensor"]][box] = part
            times[row["tensor"]][box] += 1
            if row["part"] == 0 and t["dtype"] != "bf16" and n > 0:  # HDF5 must give the same numbers
                dataset = f[t["group"]][t["name"]]
                inside = tuple(slice(s.start - o, s.stop - o)
                               for s, o in zip(box, dataset.attrs["offset"]))
                check(dataset[inside].tobytes() == part.tobytes(), f"{path}: {dataset.name}")
    return rows


def digest(tensor):
    """D_0 and D_1 of a whole tensor, by Horner's rule from the last element to the first."""
    bits = np.ascontiguousarray(tensor).reshape(-1)
    bits = bits.view(f"<u{min(bits.itemsize, 4)}").tolist()
    sums = []
    for point in POINTS:
        total = 0
        for v in reversed(bits):
            total = (total * point + v + 1) % PRIME
        sums.append(total)
    return sums


def main(folder, out=None):
    manifest = read_manifest(folder)
    tensors = manifest["tensors"]
    whole = [np.zeros(t["shape"], HELD[t["dtype"]]) for t in tensors]
    times = [np.zeros(t["shape"], np.uint8) for t in tensors]
    sums = [[0, 0] for _ in tensors]
    for shard in manifest["shards"]:
        for row in read_shard(folder, shard, tensors, whole, times):
            for k in (0, 1):
                sums[row["tensor"]][k] = (sums[row["tensor"]][k] + int(row[f"digest{k}"])) % PRIME
    for t, values, count, stated in zip(tensors, whole, times, sums):
        name = f"{t['group']}/{t['name']}"
        check(bool((count == 1).all()), f"{name}: some elements are missing or occur twice")
        if values.size <= 4096:  # Python's integers are slow, so only small tensors are checked
            check(digest(values) == stated, f"{name}: digest differs")
        print(f"{hashlib.sha256(values.tobytes()).hexdigest()}  {name}")
    if out:
        np.savez(out, **{f"{t['group']}/{t['name']}": v for t, v in zip(tensors, whole)})


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
