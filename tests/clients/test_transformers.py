"""transformers and safetensors read what tp-ckpt exports, and find the trained weights in it."""
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
import oracle_torch  # noqa: E402

LOGITS_WITHIN = 2e-4
# q and k are large. Otherwise attention is almost uniform, and swapped heads hardly change a logit.
MODELS = {
    "untied": dict(sharpen=12.0, num_attention_heads=8, num_key_value_heads=4),
    "tied": dict(sharpen=12.0, num_attention_heads=8, num_key_value_heads=2, vocab_size=261,
                 tie_word_embeddings=True, head_dim=12),
}


@pytest.fixture(scope="module", params=MODELS)
def unchanged(request, tmp_path_factory):
    """(model folder, checkpoint root) of a run with learning rate 0, which keeps its weights."""
    folder = tmp_path_factory.mktemp("unchanged")
    oracle_torch.make_model(folder / "model", **MODELS[request.param])
    harness.ok("tp-train", "--model", folder / "model", "--data", harness.TEXT, "--steps", 1,
               "--batch", 4, "--seq", 64, "--layout", "tp8", "--lr", 0, "--min-lr", 0,
               "--weight-decay", 0, "--ckpt", folder / "ckpt")
    return folder / "model", folder / "ckpt"


def export(root, out, *more):
    harness.ok("tp-ckpt", "export", root, "--format", "safetensors", "-o", out, *more)
    return out


def tensors(folder):
    """{name: tensor} of all safetensors files of a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        part = load_file(path)
        assert not set(part) & set(found), "a tensor is in two files"
        found.update(part)
    return found


def load(folder):
    """Load the model. No key may be missing, unexpected or of another shape."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                       output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info.get(kind), "%s: %s" % (kind, info[kind])
    return model.eval()


def assert_bits(got, want):
    assert sorted(got) == sorted(want)
    for name, t in want.items():
        assert got[name].dtype == t.dtype and torch.equal(got[name], t), name


def test_an_export_has_the_bits_that_were_trained(unchanged, tmp_path):
    model, root = unchanged
    out = export(root, tmp_path / "hf")
    assert_bits(tensors(out), tensors(model))
    load(out)


def test_many_files_have_the_same_tensors_as_one(unchanged, tmp_path):
    model, root = unchanged
    out = export(root, tmp_path / "hf", "--max-shard-size", "64K")
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 2
    assert (out / "model.safetensors.index.json").exists()
    assert_bits(tensors(out), tensors(model))
    load(out)


@pytest.mark.parametrize("name,dtype", [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_a_cast_export_is_rounded_as_pytorch_rounds(name, dtype, unchanged, tmp_path):
    model, root = unchanged
    out = export(root, tmp_path / "hf", "--dtype", name)
    assert_bits(tensors(out), {k: t.to(dtype) for k, t in tensors(model).items()})
    load(out)


def test_a_resharded_checkpoint_exports_the_same(unchanged, tmp_path):
    model, root = unchanged
    for spec in ("tp4", "tp1", "dp2"):
        harness.ok("tp-reshard", root, "--to", spec, "-o", tmp_path / spec)
        assert_bits(tensors(export(tmp_path / spec, tmp_path / (spec + "-hf"))), tensors(model))


@pytest.mark.parametrize("layout", ["tp1", "tp2", "tp8"])
def test_logits_of_the_export_are_those_of_training(layout, unchanged, tmp_path, figure):
    _, root = unchanged
    out = export(root, tmp_path / "hf")
    harness.ok("tp-train", "--model", out, "--data", harness.TEXT, "--steps", 1, "--batch", 4,
               "--seq", 64, "--layout", layout, "--logits", tmp_path / "logits.safetensors")
    ours = load_file(tmp_path / "logits.safetensors")
    with torch.no_grad():
        theirs = load(out)(input_ids=ours["input_ids"].long()).logits
    assert ours["logits"].shape == theirs.shape
    worst = (ours["logits"] - theirs).abs().max().item()
    figure("largest difference of logits", "%.1e, of up to %.1f" % (worst, theirs.abs().max()))
    assert worst <= LOGITS_WITHIN


def test_the_tolerance_of_logits_finds_swapped_heads(unchanged, tmp_path):
    """Swapping two heads of q changes the logits by much more than the tolerance."""
    _, root = unchanged
    out = export(root, tmp_path / "hf")
    model = load(out)
    ids = torch.arange(64).unsqueeze(0)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        q = model.model.layers[0].self_attn.q_proj.weight
        half = q.shape[0] // 2
        q.copy_(torch.cat([q[half:], q[:half]]))
        moved = (model(input_ids=ids).logits - before).abs().max().item()
    assert moved > 50 * LOGITS_WITHIN


def test_trained_weights_generate(tmp_path):
    """transformers generates text with the weights of a short training run."""
    oracle_torch.make_model(tmp_path / "model")
    harness.ok("tp-train", "--model", tmp_path / "model", "--data", harness.TEXT, "--steps", 20,
               "--layout", "tp4", "--ckpt", tmp_path / "ckpt")
    model = load(export(tmp_path / "ckpt", tmp_path / "hf"))
    ids = torch.tensor([list(b"GNU GENERAL ")])
    out = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert out.shape == (1, ids.shape[1] + 8) and int(out.max()) < 256
