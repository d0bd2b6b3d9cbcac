"""The PyTorch script that bench_reshard.py compares with: it loads every file, concatenates and splits.

    PYTHON torch_reshard.py make FOLDER RANKS BYTES     RANKS files of the same tensors, BYTES in all
    PYTHON torch_reshard.py convert FOLDER TARGET OUT   TARGET: tp4, tp8, tp2pp2, tp4dp4zero1, safetensors

This is the usual script for such a conversion, without a check of what it read or wrote: a dict of tensors
per rank, cut along rows or columns; torch.load, torch.cat, torch.chunk, torch.save. A file is loaded once.
Prints one JSON object: wall and CPU seconds of the conversion, without the start of Python and PyTorch.
"""
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch  # noqa: E402 (threads are set before it is loaded)
from safetensors.torch import save_file  # noqa: E402

COLUMNS, ROWS, TENSORS = 1024, 1024, 16


def make(folder, ranks, total):
    """Rows of 4 KiB; half of the tensors are cut by rows, half by columns; fp32 as masters and moments are."""
    rows = max(1, total // (TENSORS * COLUMNS * 4) // ranks) * ranks
    folder.mkdir(parents=True)
    for rank in range(ranks):
        shapes = [(rows // ranks, COLUMNS) if t % 2 == 0 else (rows, COLUMNS // ranks) for t in range(TENSORS)]
        torch.save({f"layers.{t}.weight": torch.rand(s) for t, s in enumerate(shapes)}, folder / f"rank-{rank}.pt")


def is_row_cut(name):
    return int(name.split(".")[1]) % 2 == 0


def pieces(full, target):
    """The files of the target: a dict of tensors each."""
    tp = int(target[2])
    names = sorted(full)
    stages = [names[:len(names) // 2], names[len(names) // 2:]] if "pp2" in target else [names]
    for stage in stages:
        for rank in range(tp):
            part = {n: torch.chunk(full[n], tp, 0 if is_row_cut(n) else 1)[rank] for n in stage}
            copies = 4 if "dp4" in target else 1
            for dp in range(copies):
                yield {n: torch.chunk(t, copies, 0)[dp].clone() for n, t in part.items()}


def convert(folder, target, out):
    out.mkdir(parents=True)
    files = sorted(folder.glob("rank-*.pt"))
    ranks = [torch.load(f, map_location="cpu", weights_only=True) for f in files]
    full = {n: torch.cat([r.pop(n) for r in ranks], 0 if is_row_cut(n) else 1) for n in list(ranks[0])}
    if target == "safetensors":
        save_file(full, out / "model.safetensors")
        return
    for i, piece in enumerate(pieces(full, target)):
        torch.save(piece, out / f"rank-{i}.pt")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        wall, cpu = time.monotonic(), time.process_time()
        convert(pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4]))
        print(json.dumps({"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}))
