"""Checkpoints of torchtitan (torchtitan_ranks.py): imported, resharded and exported, weights and AdamW, by both generations
of its names. Rows of Q and K are compared by torchtitan's own rule, and logits with transformers."""
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
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402
from torchtitan_ranks import TOKENS  # noqa: E402

STEPS = 3
NAMES = {"wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj",
         "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj", "attention_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "tok_embeddings": "model.embed_tokens", "norm": "model.norm",
         "output": "lm_head", "lm_head": "lm_head"}
# ranks, whether names are the newer ones, what is loaded
JOBS = {"old": (3, False, None), "new": (2, True, None), "old-loads": (2, False, "exported"),
        "new-loads": (3, True, "exported"), "resharded-loads": (4, True, "old-tp2pp2")}


def run_jobs(folder, jobs):
    (folder / "jobs").write_text(json.dumps(jobs))
    env = dict(os.environ, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1")
    r = subprocess.run([sys.executable, "-B", HERE / "torchtitan_ranks.py", folder / "jobs"], env=env, text=True,
                       timeout=500, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, config, {job: what rank 0 said}) after all ranks have run."""
    folder = tmp_path_factory.mktemp("torchtitan")
    path = harness.write_config(folder / "model", head_dim=16)
    config = json.loads(path.read_text())
    harness.train(path, folder / "ckpt", steps=STEPS, layout="tp2pp2")
    harness.ok("tp-ckpt", "export", folder / "ckpt", "--format", "torchtitan", "-o", folder / "exported", "--layout",
               "tp2dp3zero1")
    jobs = {name: dict(ranks=ranks, renamed=renamed, load=load and str(folder / load), config=config,
                       save=str(folder / name), out=str(folder / (name + ".pt")))
            for name, (ranks, renamed, load) in JOBS.items()}
    run_jobs(folder, [job for name, job in jobs.items() if name != "resharded-loads"])
    harness.ok("tp-reshard", folder / "old", "--to", "tp2pp2", "--config", path, "-o", folder / "old-tp2pp2")
    run_jobs(folder, [jobs["resharded-loads"]])
    return folder, config, {name: torch.load(job["out"]) for name, job in jobs.items()}


def as_ours(config, state):
    """{"group/Hugging Face's name": tensor} of what a rank said; Q and K by torchtitan's rule."""
    found = {}
    for key, x in state.items():
        if "param_groups" in key or key.endswith(".step"):
            continue
        group, name = "param", key
        if key.startswith("optimizer.state."):
            name, group = key[len("optimizer.state."):].rsplit(".", 1)
        words = name.split(".")
        ours = NAMES[words[-2]]
        if words[0] == "layers":
            ours = "model.layers.%s.%s" % (words[1], ours)
        if words[-2] in ("wq", "wk"):
            heads = config["num_attention_heads" if words[-2] == "wq" else "num_key_value_heads"]
            x = x.view(heads, x.shape[0] // heads // 2, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)
        found["%s/%s.weight" % (group, ours)] = x
    return found


def assert_equal(found, want):
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert torch.equal(x, want[name]), name


def steps_of(state):
    return {float(x) for k, x in state.items() if k.endswith(".step")}


@pytest.mark.parametrize("job", JOBS)
def test_what_torchtitan_saves_is_imported(job, ran, tmp_path):
    folder, config, said = ran
    r = harness.ok("tp-ckpt", "import", folder / job, "--config", folder / "model", "-o", tmp_path / "ckpt", "--layout",
                   "tp2pp2")
    assert ", torchtitan\n" in r.out, repr(r)
    saved = said[job]["saved"]
    assert_equal(as_ours(config, saved), tensors(tmp_path / "ckpt", tmp_path / "all.npz"))
    assert {"step-%08d" % s for s in steps_of(saved)} == {harness.steps(tmp_path / "ckpt")[-1].name}
    assert "equal" in harness.ok("tp-ckpt", "diff", folder / job, tmp_path / "ckpt", "--config", folder / "model").out


@pytest.mark.parametrize("job", ["old-loads", "new-loads"])
def test_torchtitan_loads_the_export(job, ran, tmp_path):
    folder, config, said = ran
    loaded = said[job]["loaded"]
    assert_equal(as_ours(config, loaded), tensors(folder / "ckpt", tmp_path / "all.npz"))
    assert steps_of(loaded) == {STEPS}
    options = {k: x for k, x in loaded.items() if ".param_groups." in k}
    assert {x for k, x in options.items() if k.endswith(".betas")} == {(0.9, 0.95)}
    assert all(0 < x < 1e-2 for k, x in options.items() if k.endswith((".lr", ".initial_lr")))
    harness.ok("tp-ckpt", "export", folder / "ckpt", "-o", tmp_path / "hf")
    with torch.no_grad():
        want = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)(TOKENS).logits
    assert (said[job]["logits"] - want).abs().max() < 1e-5


def test_torchtitan_loads_what_is_resharded(ran):
    _, config, said = ran
    assert_equal(as_ours(config, said["resharded-loads"]["loaded"]), as_ours(config, said["old"]["saved"]))
    assert (said["resharded-loads"]["logits"] - said["old"]["logits"]).abs().max() > 0, "there was no step"
