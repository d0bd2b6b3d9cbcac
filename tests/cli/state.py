"""A checkpoint of tp-train with all of its tensors, for tests that convert it."""
import subprocess
import sys

import numpy as np

import harness


class State:
    """A checkpoint of tp-train: its root, config.json, step, and tensors by "group/name"."""

    def __init__(self, folder, config, **options):
        self.root, self.config = folder / "ckpt", config
        harness.train(config, self.root, steps=3, layout="tp1", **options)
        self.step = harness.steps(self.root)[-1]
        subprocess.run([sys.executable, harness.REPO / "tests/reader/read_ckpt.py", self.step, folder / "all.npz"],
                       check=True, stdout=subprocess.DEVNULL)
        self.tensors = dict(np.load(folder / "all.npz"))

    def group(self, name):
        return {k.split("/", 1)[1]: v for k, v in self.tensors.items() if k.startswith(name + "/")}

    def digests(self, *groups):
        return [d for d in digests(self.root) if d.split()[1].split("/")[0] in groups]


def digests(root):
    return harness.ok("tp-ckpt", "digest", root).out.splitlines()[:-1]
