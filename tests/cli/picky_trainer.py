#!/usr/bin/env python3
"""A trainer that tp-run does not recognize as tp-train, and that reads only its own layout.

    picky_trainer.py LAYOUT ROOT TP_TRAIN_ARGUMENTS...

It calls tp-train, but first reads the newest checkpoint. Another layout is an error (exit code 4), as in
most trainers.
"""
import json
import os
import pathlib
import sys

layout, root = sys.argv[1], pathlib.Path(sys.argv[2])
steps = sorted(p for p in root.glob("step-????????") if (p / "manifest.json").is_file())
if steps:
    has = json.loads((steps[-1] / "manifest.json").read_text())["layout"]["spec"]
    if has != layout:
        sys.exit("picky: %s has layout %s, not %s" % (steps[-1].name, has, layout))
os.execvp("tp-train", ["tp-train", "--layout", layout, "--ckpt", str(root), "--resume"] + sys.argv[3:])
