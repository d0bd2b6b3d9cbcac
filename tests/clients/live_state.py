"""The state of a live model and its optimizer by the names of files, and that of a checkpoint of ours, to compare them."""
import pathlib
import subprocess
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402

MOMENTS = ("exp_avg", "exp_avg_sq")
# One model of each class, and those whose parameters differ from others of their class.
MODELS = [n for n in family_models.FAMILIES if "-" not in n or n in ("llama-biases", "gpt-neox", "qwen3-moe")]


def names_in_files(name, p):
    """{name in model.safetensors: the part of p} of a parameter of a live model. Files have each expert by itself, and some
    older names."""
    if name.endswith("mlp.experts.gate_up_proj") or name.endswith("mlp.experts.down_proj"):
        mixtral = name.startswith("mixtral:")
        head = name.split(":")[1].rsplit(".", 1)[0]
        head = head.replace("mlp", "block_sparse_moe") if mixtral else head
        if name.endswith("down_proj"):
            return {"%s.%d.%s.weight" % (head, e, "w2" if mixtral else "down_proj"): x for e, x in enumerate(p)}
        halves = ("w1", "w3") if mixtral else ("gate_proj", "up_proj")
        return {"%s.%d.%s.weight" % (head, e, half): x for e, both in enumerate(p) for half, x in zip(halves, both.chunk(2))}
    family, name = name.split(":")
    if family == "mixtral":
        name = name.replace("mlp.gate", "block_sparse_moe.gate")
    return {name.replace("lm_head", "embed_out") if family == "gpt-neox" else name: p}


def live_state(model, optimizer, family):
    """{"group/name": tensor} of a live model and its AdamW, by the names of files."""
    found = {}
    for name, p in model.named_parameters():
        for group, x in [("param", p)] + [(g, optimizer.state[p][g]) for g in MOMENTS if optimizer]:
            for key, part in names_in_files("%s:%s" % (family, name), x.detach()).items():
                found["%s/%s" % (group, key)] = part.contiguous()
    return found


def state_of(root, folder):
    """{"group/name": tensor} of a checkpoint of ours, by the reader that only needs h5py."""
    npz = folder / "all.npz"
    subprocess.run(["/usr/bin/python3", harness.REPO / "tests/reader/read_ckpt.py", harness.steps(root)[-1], npz], check=True,
                   stdout=subprocess.DEVNULL)
    return {k: torch.from_numpy(v) for k, v in np.load(npz).items()}


def assert_equal(got, want):
    assert sorted(got) == sorted(want)
    for name in want:
        assert torch.equal(got[name], want[name].float()), name
