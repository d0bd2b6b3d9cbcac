#!/usr/bin/env python3
"""A trainer that is not tp-train to tp-run and that reads no layout but its own.

    picky_trainer.py LAYOUT ROOT TP_TRAIN_ARGUMENTS...

It trains by tp-train, but first looks at the newest checkpoint: one of another layout is an error
(exit 4), as it is for most trainers.
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
        sys.exit("picky: %s is of %s, not of %s" % (steps[-1].name, has, layout))
os.execvp("tp-train", ["tp-train", "--layout", layout, "--ckpt", str(root), "--resume"] + sys.argv[3:])
