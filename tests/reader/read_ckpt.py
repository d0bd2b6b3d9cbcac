#!/usr/bin/python3
"""An independent reader of checkpoints, written from docs/FORMAT.md alone: h5py, numpy, hashlib.

    read_ckpt.py STEP_DIR             print "SHA-256  group/name" of the bytes of every whole tensor
    read_ckpt.py STEP_DIR OUT.npz     also write the tensors (bf16 as its bits, uint16)

It uses no code of this project. If the checkpoint is damaged, it prints a sentence and exits with 1.
"""
import ctypes
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


ZSTD = ctypes.CDLL("libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


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
    check(manifest["format"] == "tp-ckpt" and manifest["version"] in (1, 2, 3), "manifest: other version")
    check(manifest["version"] == 3 or not any(s.get("chunked") for s in manifest["shards"]), "manifest: chunked shards")
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


def check_chunks(dataset, rows, where):
    """The HDF5 chunks of a compressed dataset must be those rows."""
    plist = dataset.id.get_create_plist()
    check([plist.get_filter(i)[0] for i in range(plist.get_nfilters())] == [2, 32015], f"{where}: other filters")
    check(dataset.chunks == tuple(rows[0]["len"][:len(dataset.shape)]), f"{where}: other chunks")
    check(dataset.id.get_num_chunks() == len(rows), f"{where}: another number of chunks")
    for row in rows:
        n = int(row["ndim"])
        at = dataset.id.get_chunk_info_by_coord(tuple(int(a - b) for a, b in zip(row["lo"][:n], rows[0]["lo"][:n])))
        check((at.byte_offset, at.size) == (row["offset"], row["stored_bytes"]), f"{where}: a chunk is elsewhere")
        check(at.filter_mask == {0: 3, 1: 1, 2: 0}[int(row["codec"])], f"{where}: other filter mask")


def decode(payload, row, content_bytes, element_bytes, path):
    """The raw bytes of a row's payload. content_bytes is the length of the first chunk of its dataset."""
    if row["codec"] == 0:
        return payload
    content = ctypes.create_string_buffer(content_bytes)
    n = ZSTD.ZSTD_decompress(content, content_bytes, payload.tobytes(), len(payload))
    check(n == content_bytes, f"{path}: a frame has another length")
    content = np.frombuffer(content.raw, np.uint8)
    if row["codec"] == 2:
        content = content.reshape(element_bytes, -1).T.reshape(-1)
    check(not content[row["raw_bytes"]:].any(), f"{path}: a frame has bytes after its chunk")
    return np.ascontiguousarray(content[:row["raw_bytes"]])


def check_dataset(f, tensor, rows):
    """The HDF5 dataset of these rows (all rows of one tensor and part) must be as /index says."""
    n = int(rows[0]["ndim"])
    lo, end = rows[0]["lo"][:n], rows[-1]["lo"][:n] + rows[-1]["len"][:n]
    name = tensor["name"] + (f"@{rows[0]['part']}" if rows[0]["part"] else "")
    where = f"{f.filename}: /{tensor['group']}/{name}"
    dataset = f[tensor["group"]].get(name)
    check(dataset is not None, f"{where}: missing")
    check(dataset.shape == tuple(end - lo), f"{where}: other shape")
    if dataset.chunks:
        check_chunks(dataset, rows, where)
    else:
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
        first = {}
        for row in rows:
            check(row["codec"] <= (2 if shard.get("chunked") else 0), f"{path}: codec {row['codec']}")
            content_bytes = int(first.setdefault((row["tensor"], row["part"]), row)["raw_bytes"])
            t = tensors[row["tensor"]]
            n = int(row["ndim"])
            box = tuple(slice(a, a + b) for a, b in zip(row["lo"][:n], row["len"][:n]))
            payload = data[row["offset"]:row["offset"] + row["stored_bytes"]]
            payload = decode(payload, row, content_bytes, np.dtype(HELD[t["dtype"]]).itemsize, path)
            part = payload.view(HELD[t["dtype"]]).reshape(row["len"][:n])
            whole[row["tensor"]][box] = part
            times[row["tensor"]][box] += 1
            if row["part"] == 0 and t["dtype"] != "bf16" and n > 0 and not shard.get("chunked"):  # HDF5 must give the same numbers
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
