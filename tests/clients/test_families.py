"""Every family of models: its table has the names and shapes of transformers, and what was imported,
resharded and exported has the bits, and for transformers the logits, of what it was.

covers: layout/family/llama layout/model_tensors"""
import json
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
import oracle_torch  # noqa: E402
from test_training import assert_same  # noqa: E402
from test_transformers import LOGITS_WITHIN, assert_bits, load, tensors  # noqa: E402

FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "fixture" / "families.json"


def test_the_fixture_has_what_transformers_writes(tmp_path):
    """After a change, `family_models.py tests/fixture/families.json` writes it again."""
    made, kept = family_models.entries(tmp_path), json.loads(FIXTURE.read_text())
    assert sorted(made) == sorted(kept)
    for name in made:
        assert made[name]["tensors"] == kept[name]["tensors"], name


TRAINED = {"llama": "tp8", "llama-biases": "tp4", "llama-linear": "tp2", "llama-dynamic": "cp2",
           "llama-yarn": "tp2", "llama-llama3": "tp2cp2", "mistral": "tp4", "qwen2": "tp8", "qwen3": "tp4sp", "gemma": "tp2",
           "gemma2": "tp4sp", "gemma3": "tp2pp2", "smollm3": "tp2pp2", "phi3": "tp4sp", "phi3 longrope": "tp2cp2", "granite": "tp2pp2", "olmo2": "tp8",
           "olmo3": "tp2pp2", "opt": "tp4sp", "gpt-neox": "tp4sp",
           "mixtral": "tp4sp", "qwen3-moe": "tp2ep2dp2"}
# Values that change the logits of models as small as these.
CHANGES = {"gemma2": dict(sliding_window=16, query_pre_attn_scalar=24, attn_logit_softcapping=3.0,
                          final_logit_softcapping=1.0),
           "gemma3": dict(sliding_window=16, query_pre_attn_scalar=5, layer_types=["full_attention", "sliding_attention"],
                          rope_parameters=dict(
                              full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                              sliding_attention=dict(rope_type="default", rope_theta=500.0))),
           "smollm3": dict(sliding_window=16, use_sliding_window=True, no_rope_layers=[0, 1, 1, 0], layer_types=[
               "full_attention", "sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
                   rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=500.0)),
           "phi3": dict(sliding_window=16, rope_parameters=dict(
               rope_type="default", rope_theta=500.0, partial_rotary_factor=0.75)),
           "phi3 longrope": dict(original_max_position_embeddings=16, rope_parameters=dict(
               rope_type="longrope", rope_theta=500.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.5],
               long_factor=[1.0, 9.0])),
           "granite": dict(rms_norm_eps=1e-3),
           "olmo2": dict(rms_norm_eps=1e-3), "olmo3": dict(sliding_window=16), "opt": dict(dropout=0.0),
           "gpt-neox": dict(layer_norm_eps=1e-3, rope_parameters=dict(
               rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5))}


@pytest.mark.parametrize("layout", ["tp1", "its own"])
@pytest.mark.parametrize("name", TRAINED)
def test_logits_are_those_of_transformers(name, layout, tmp_path, figure):
    theirs = family_models.make(name.split()[0], tmp_path / "model", vocab_size=256, **CHANGES.get(name, {}))
    theirs.set_attn_implementation("eager")  # sdpa has no cap of scores
    harness.ok("tp-train", "--model", tmp_path / "model", "--data", harness.TEXT, "--steps", 1, "--batch", 4,
               "--seq", 64, "--layout", TRAINED[name] if layout == "its own" else layout,
               "--logits", tmp_path / "logits.safetensors")
    ours = load_file(tmp_path / "logits.safetensors")
    with torch.no_grad():
        want = theirs(input_ids=ours["input_ids"].long()).logits
    worst = (ours["logits"] - want).abs().max().item()
    figure("largest difference of logits", "%.1e, of up to %.1f" % (worst, want.abs().max()))
    assert worst <= LOGITS_WITHIN


@pytest.mark.parametrize("name", ["phi3", "phi3 longrope", "granite", "olmo2", "olmo3", "opt", "gpt-neox"])
def test_losses_and_gradient_norms_are_those_of_transformers(name, tmp_path, figure):
    """Of a run at a layout with every axis, whose restart from a checkpoint is at another one."""
    family_models.make(name.split()[0], tmp_path / "model", vocab_size=256, **CHANGES.get(name, {}))
    want = oracle_torch.train(tmp_path / "model", harness.TEXT, steps=8)
    argv = ["tp-train", "--model", tmp_path / "model", "--data", harness.TEXT, "--steps", 8, "--seq", 64, "--batch", 8,
            "--micro", 2, "--log", tmp_path / "log", "--ckpt", tmp_path / "ckpt"]
    assert harness.run(*argv, "--layout", "tp2pp2dp2spzero1", "--exit-step", 4).rc == 75
    harness.ok(*argv, "--layout", "tp2cp2dp2zero3", "--resume=must")
    assert_same(harness.read_log(tmp_path / "log"), want, figure)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_the_loss_that_balances_experts_is_that_of_transformers(name, tmp_path, figure):
    """Of a single sequence. That of a batch is the mean over its sequences."""
    theirs = family_models.make(name, tmp_path / "model", vocab_size=256, output_router_logits=True,
                                router_aux_loss_coef=0.5)
    harness.ok("tp-train", "--model", tmp_path / "model", "--data", harness.TEXT, "--steps", 1, "--batch", 3,
               "--seq", 64, "--layout", "pp2cp2", "--micro", 1, "--log", tmp_path / "log",
               "--logits", tmp_path / "logits.safetensors")
    data = pathlib.Path(harness.TEXT).read_bytes()
    losses, plain = [], []
    for i, ids in enumerate(load_file(tmp_path / "logits.safetensors")["input_ids"].long()):
        targets = torch.tensor(list(data[64 * i + 1:64 * i + 65]))
        with torch.no_grad():
            out = theirs(input_ids=ids[None])
        plain.append(torch.nn.functional.cross_entropy(out.logits[0], targets).item())
        losses.append(plain[-1] + 0.5 * out.aux_loss.item())
    ours = harness.read_log(tmp_path / "log")[0]["loss"]
    figure("loss, and without the part that balances", "%.6f, %.6f" % (ours, sum(plain) / 3))
    assert abs(ours - sum(losses) / 3) <= 5e-6 and ours - sum(plain) / 3 > 0.5


@pytest.mark.parametrize("name", family_models.FAMILIES)
def test_a_model_survives_import_reshard_and_export(name, tmp_path):
    before = family_models.make(name, tmp_path / "model")
    harness.ok("tp-ckpt", "import", tmp_path / "model", "--layout", "tp4pp2", "-o", tmp_path / "ckpt")
    harness.ok("tp-reshard", tmp_path / "ckpt", "--to", "tp2dp2zero3", "-o", tmp_path / "tp2")
    harness.ok("tp-ckpt", "export", tmp_path / "tp2", "--format", "safetensors", "-o", tmp_path / "hf")
    assert_bits(tensors(tmp_path / "hf"), tensors(tmp_path / "model"))
    ids = torch.arange(3, 35).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "hf")(input_ids=ids).logits, before(input_ids=ids).logits)
