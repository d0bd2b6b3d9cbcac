"""Adapters of PEFT are no models: every program says so in one sentence, with what to do, and takes nothing of them, neither the
base model's weights beside them nor a part of their optimizer.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/foreign_adapter
"""
import json
import shutil

import numpy as np
import pytest

import test_accelerate_ddp
import torch_files
from harness import ok, run
from test_trainer import RULES, config_of, optimizer_of, options, oracle_numpy, order_of
from torch_files import Tensor

MERGE = "merge it into its base model with merge_and_unload()"
LORA = {"base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight" % k: np.ones((2, 2), np.float32) for k in "AB"}


def adapter(folder, weights="safetensors"):
    """As PeftModel.save_pretrained writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    if weights == "safetensors":
        oracle_numpy.save_safetensors(folder / "adapter_model.safetensors", LORA)
    else:
        torch_files.save(folder / "adapter_model.bin", {k: Tensor(v) for k, v in LORA.items()})
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "my/base", "r": 2}))
    return folder


def with_optimizer(folder, name):
    torch_files.save(folder / name, {"state": {i: {g: Tensor(v) for g in ("exp_avg", "exp_avg_sq")} for i, v in enumerate(LORA.values())},
                                     "param_groups": [{**options(0), "params": [0, 1]}]})
    return folder


def commands(source, state, out):
    """Each program that reads checkpoints of others; with a config.json, without one, and by the name of a format."""
    importing = "tp-ckpt", "import", source, "-o", out
    config = "--config", state.config
    return [("tp-ckpt", verb, source) for verb in ("ls", "show", "verify", "digest")] + [
        ("tp-ckpt", "diff", source, state.root), ("tp-ckpt", "diff", state.root, source), importing, (*importing, *config),
        (*importing, *config, "--no-optim"), (*importing, *config, "--format", "safetensors"), (*importing, *config, "--format", "bin"),
        ("tp-reshard", source, "--to", "tp2", "-o", out, "--format", "dcp", *config),
        ("tp-reshard", source, "--to", "tp2", "-o", out, *config),
        ("tp-train", "--model", source, "--data", state.config, "--steps", "1")]


def refused_by_all(source, state, out, *says):
    for argv in commands(source, state, out):
        r = run(*argv)
        assert r.rc == 2 and len(r.lines) == 1 and "adapter of PEFT" in r.err and MERGE in r.err and not r.out, repr(r)
        assert all(s in r.err for s in says) and str(source) in r.err and not out.exists(), repr(r)


@pytest.mark.parametrize("weights", ["safetensors", "bin"])
def test_an_adapter_alone(weights, f32, tmp_path):
    refused_by_all(adapter(tmp_path / "lora", weights), f32, tmp_path / "out", "and no model")


@pytest.mark.parametrize("optimizer", ["optimizer.pt", "optimizer.bin"])
def test_an_adapter_with_its_optimizer(optimizer, f32, tmp_path):
    source = with_optimizer(adapter(tmp_path / "checkpoint-2"), optimizer)
    refused_by_all(source, f32, tmp_path / "out", "and no model", optimizer + " has the state of the adapter's weights alone")


@pytest.mark.parametrize("optimizer", [False, True])
def test_an_adapter_beside_a_model(optimizer, f32, tmp_path):
    """Programs would take the weights without the adapter's changes."""
    source = tmp_path / "both"
    ok("tp-ckpt", "export", f32.root, "-o", source)
    ok("tp-ckpt", "digest", source)
    adapter(source)
    if optimizer:
        with_optimizer(source, "optimizer.pt")
    refused_by_all(source, f32, tmp_path / "out", "beside model.safetensors, whose weights are without it", "move the adapter's files away")


def wrapped(state):
    """{name: array} of a PeftModel as a whole."""
    params = {"base_model.model." + k.replace("q_proj.", "q_proj.base_layer."): v for k, v in state.group("param").items()}
    return {**params, **{k.replace(".weight", ".default.weight"): v for k, v in LORA.items()}}


@pytest.mark.parametrize("kind", ["accelerate", "safetensors", "bin", "dcp"])
def test_a_model_with_an_adapter_around_it(kind, f32, tmp_path):
    """As Accelerate's save_state and torch.save have it: all weights, by other names."""
    source, names = tmp_path / "whole", wrapped(f32)
    source.mkdir()
    if kind == "dcp":
        torch_files.dcp(source, {"model." + k: (v, [((0,) * v.ndim, v.shape)]) for k, v in names.items()})
    elif kind == "bin":
        torch_files.save(source / "pytorch_model.bin", {k: Tensor(v) for k, v in names.items()})
    else:
        oracle_numpy.save_safetensors(source / "model.safetensors", names)
    if kind == "accelerate":
        with_optimizer(source, "optimizer.bin")
    for more in (), ("--no-optim",):
        r = run("tp-ckpt", "import", source, "-o", tmp_path / "out", "--config", f32.config, *more)
        assert r.rc == 2 and len(r.lines) == 1 and "adapter of PEFT around it" in r.err and MERGE in r.err, repr(r)
    r = run("tp-reshard", source, "--to", "tp2", "-o", tmp_path / "out", "--format", "megatron", "--config", f32.config)
    assert r.rc == 2 and "adapter of PEFT around it" in r.err and not (tmp_path / "out").exists(), repr(r)
    ok("tp-ckpt", "ls", source)  # looking at the files is no harm


def test_a_merged_model_is_read(f32, tmp_path):
    """Where the adapter's files are gone, or below."""
    source = test_accelerate_ddp.save(tmp_path / "checkpoint_0", f32, optimizer_of(f32, order_of(config_of(f32)), RULES["none"], 1))
    adapter(source / "adapter")
    test_accelerate_ddp.assert_imported(f32, source, tmp_path / "ckpt")
    shutil.rmtree(source / "adapter")
    r = run("tp-ckpt", "ls", adapter(tmp_path / "runs/lora").parent)
    assert r.rc == 2 and "adapter of PEFT" in r.err, repr(r)
