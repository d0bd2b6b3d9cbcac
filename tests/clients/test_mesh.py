"""What PyTorch itself saves, by torch.distributed.checkpoint with FSDP2 and tensor parallelism (mesh_ranks.py) and by torch.save, is
imported bit for bit; PyTorch continues from what becomes of it at other meshes; logits are those of transformers.

needs: tp-ckpt tp-reshard
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402

TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 130
CONFIG = dict(harness.TINY, vocab_size=131, num_key_value_heads=4)  # 131 rows are uneven on 2, 3 and 4 ranks
# mesh [dp] or [dp, tp] of the ranks that save, layout of tp-reshard, mesh that continues
CASES = [([2, 2], "tp4", [3]), ([3], "tp2pp2", [2, 2])]


def ranks(folder, name, mesh, load=None):
    job = dict(mesh=mesh, config=CONFIG, load=load and str(load), save=str(folder / name), out=str(folder / (name + ".pt")))
    (folder / (name + ".json")).write_text(json.dumps(job))
    r = subprocess.run([sys.executable, "-B", HERE / "mesh_ranks.py", folder / (name + ".json")], text=True, timeout=300,
                       env=dict(os.environ, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]
    return folder / name, torch.load(job["out"])


def assert_equal(found, want):
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert torch.equal(x, want[name]), name


@pytest.mark.parametrize("mesh,layout,then", CASES, ids=str)
def test_pytorchs_meshes_become_layouts_and_other_meshes(mesh, layout, then, tmp_path):
    config = harness.write_config(tmp_path / "model", **{k: v for k, v in CONFIG.items() if k not in harness.TINY or v != harness.TINY[k]})
    saved, said = ranks(tmp_path, "saved", mesh)
    harness.ok("tp-ckpt", "import", saved, "--config", config, "--layout", "tp2", "-o", tmp_path / "ckpt")
    assert_equal(said["saved"], tensors(tmp_path / "ckpt", tmp_path / "all.npz"))
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "hf")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)(TOKENS).logits
    assert (logits - said["logits"]).abs().max() < 1e-5
    harness.ok("tp-reshard", saved, "--config", config, "--to", layout, "-o", tmp_path / "moved")
    _, again = ranks(tmp_path, "again", then, tmp_path / "moved")
    assert_equal(again["loaded"], said["saved"])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["llama-biases", "gpt2"])
def test_a_model_that_torch_saved_is_imported(name, parts, tmp_path):
    model = family_models.make(name, tmp_path / "hf")
    state = model.state_dict()  # a tied head is a second name of one storage
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/config.json").write_bytes((tmp_path / "hf/config.json").read_bytes())
    names, files = sorted(state), ["pytorch_model.bin"] if parts == 1 else ["pytorch_model-%05d-of-%05d.bin" % (i + 1, parts) for i in range(parts)]
    for i, file in enumerate(files):
        torch.save({n: state[n] for n in names[i::parts]}, tmp_path / "bin" / file)
    if parts > 1:
        (tmp_path / "bin/pytorch_model.bin.index.json").write_text(json.dumps(
            {"metadata": {}, "weight_map": {n: files[i % parts] for i, n in enumerate(names)}}))
    harness.ok("tp-ckpt", "import", tmp_path / "bin", "--layout", "tp2pp2", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "out")
    ids = TOKENS[:, :16] % 100
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()(ids).logits, model(ids).logits)
