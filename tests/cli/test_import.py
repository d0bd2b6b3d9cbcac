"""tp-ckpt import: tensors that the model does not have, several models in a root, and training from what
was imported.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/unknown_tensors reshard/root_model reshard/tied_head reshard/output_root
"""
import json
import math
import struct

import pytest

import harness
from harness import ok, run, train_args

BUFFER = "model.layers.%d.self_attn.rotary_emb.inv_freq"


def rewrite(folder, change):
    """Let change() edit the tensors of FOLDER/model.safetensors: name to (dtype, shape, bytes)."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, payload = json.loads(data[8:8 + n]), data[8 + n:]
    metadata = header.pop("__metadata__", {})
    tensors = {name: (t["dtype"], t["shape"], payload[slice(*t["data_offsets"])]) for name, t in header.items()}
    change(tensors)
    header, payload = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(payload), len(payload) + len(content)]}
        payload += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def add_tensors(folder, names, shape=(8,)):
    """Add fp32 tensors of ones to FOLDER/model.safetensors."""
    ones = struct.pack("<f", 1.0) * math.prod(shape)
    rewrite(folder, lambda tensors: tensors.update({name: ("F32", shape, ones) for name in names}))


def add_copy(folder, name, of, change=0):
    """Add a copy of a tensor, with one byte changed if `change` is not 0."""
    def add(tensors):
        dtype, shape, content = tensors[of]
        tensors[name] = dtype, shape, content[:-1] + bytes([content[-1] ^ change])
    rewrite(folder, add)


def quantize(folder, name):
    """Make a matrix 8-bit floats, as in published fp8 models."""
    def cast(tensors):
        _, shape, _ = tensors[name]
        tensors[name] = "F8_E4M3", shape, bytes(math.prod(shape))
    rewrite(folder, cast)


def drop(folder, word):
    """Remove the tensors with this word in their names."""
    def remove(tensors):
        for name in [name for name in tensors if word in name]:
            del tensors[name]
    rewrite(folder, remove)


def configure(folder, **keys):
    """Add keys to FOLDER/config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(config, **keys)))


@pytest.fixture(scope="module")
def published(tiny, tmp_path_factory):
    """A Hugging Face folder of the tiny model."""
    folder = tmp_path_factory.mktemp("published")
    harness.train(tiny, folder / "ckpt", steps=1)
    ok("tp-ckpt", "export", folder / "ckpt", "--format", "safetensors", "-o", folder / "hf")
    return folder / "hf"


@pytest.fixture
def hf(published, tmp_path):
    return harness.copy(published, tmp_path / "hf")


def import_(hf, root, *more):
    return run("tp-ckpt", "import", hf, "--layout", "tp2", "-o", root, *more)


EXTRA = ["model.layers.0.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight",
         "model.layers.0.self_attn.k_norm.weight", "foo.bar"]


def test_what_is_no_checkpoint_of_another_framework_is_refused(hf, trained, tmp_path):
    for source, words in ((trained, "is a checkpoint of tp-train, which needs no import; tp-reshard"),
                          (harness.steps(trained)[0], "is a checkpoint of tp-train"), (hf / "config.json", "is not a folder"),
                          (tmp_path / "absent", "no such folder")):
        r = harness.run("tp-ckpt", "import", source, "-o", tmp_path / "out")
        assert r.rc == 2 and words in r.err and not (tmp_path / "out").exists(), repr(r)
    for source, words in (tmp_path / "absent", "absent: no such folder"), (hf / "model.safetensors", "is not a folder"):
        r = harness.run("tp-reshard", source, "--from-format", "safetensors", "--to", "tp1", "-o", tmp_path / "out")
        assert r.rc == 2 and words in r.err and not (tmp_path / "out").exists(), repr(r)


def test_the_folder_of_another_framework_is_no_root(hf, trained, tmp_path):
    """tp-ckpt would find what was there, and not the new step."""
    before = harness.tree(hf)
    for words in (["tp-ckpt", "import", hf, "-o", hf], ["tp-ckpt", "import", hf, "-o", hf, "--force"],
                  ["tp-reshard", hf, "--to", "tp2", "--format", "tp", "-o", hf], ["tp-reshard", trained, "--to", "tp2", "-o", hf],
                  ["tp-reshard", trained, "--to", "tp2", "-o", hf, "--dry-run"]):
        r = run(*words)
        assert r.rc == 2 and "has the format safetensors" in r.err and "another --out" in r.err, repr(r)
    assert harness.tree(hf) == before


def test_unknown_tensors_are_refused_and_listed(hf, tmp_path):
    add_tensors(hf, EXTRA)
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 2 and len(r.lines) == 1 and r.out == "", repr(r)
    for words in ("4 tensors", "model.layers.*.self_attn.q_norm.weight (2)", "k_norm", "foo.bar", "--ignore"):
        assert words in r.err, repr(r)
    assert not (tmp_path / "ckpt").exists()
    r = run(*train_args(hf, tmp_path / "ckpt"))
    assert r.rc == 2 and "q_norm" in r.err and "foo.bar" in r.err, repr(r)
    assert not (tmp_path / "ckpt").exists()


def test_a_hundred_unknown_tensors_are_listed_in_one_sentence(hf, tmp_path):
    add_tensors(hf, ["extra_%03d.weight" % i for i in range(100)])
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 2 and "100 tensors" in r.err and " more" in r.err and len(r.lines) == 1, repr(r)


def test_ignore_leaves_them_out_on_purpose(hf, published, tmp_path):
    add_tensors(hf, EXTRA)
    r = import_(hf, tmp_path / "ckpt", "--ignore", "foo.bar", "--ignore", "*.self_attn.?_norm.weight")
    assert r.rc == 0 and "left out 4: " in r.out and "foo.bar" in r.out, repr(r)
    r = import_(hf, tmp_path / "part", "--ignore", "foo.bar")
    assert r.rc == 2 and "3 tensors" in r.err and "foo.bar" not in r.err, repr(r)
    import_(published, tmp_path / "plain")
    assert harness.digest(tmp_path / "ckpt") == harness.digest(tmp_path / "plain")


@pytest.mark.parametrize("fmt", ["tp", "safetensors", "dcp"])
def test_tp_reshard_leaves_them_out_on_purpose_too(fmt, hf, published, tmp_path):
    add_tensors(hf, EXTRA)
    out = tmp_path / "out"
    convert = ["tp-reshard", hf, "--to", "tp2", "--format", fmt, "-o", out, "--ignore", "foo.bar"]
    r = run(*convert)
    assert r.rc == 2 and "3 tensors" in r.err and "foo.bar" not in r.err and not out.exists(), repr(r)
    r = run(*convert, "--ignore", "*.self_attn.?_norm.weight")
    assert r.rc == 0 and "foo.bar" in r.out, repr(r)
    import_(published, tmp_path / "plain")
    assert harness.digest(out) == harness.digest(tmp_path / "plain")
    for more in ([], ["--format", "dcp"]):  # our own checkpoints have no such tensors
        r = run("tp-reshard", tmp_path / "plain", "--to", "tp2", "-o", tmp_path / "no", "--ignore", "foo.bar", *more)
        assert r.rc == 2 and "--ignore" in r.err and not (tmp_path / "no").exists(), repr(r)


@pytest.mark.parametrize("name", ["absent.weight", "model.norm.weight"])
def test_ignore_must_name_an_unknown_tensor(name, hf, tmp_path):
    r = import_(hf, tmp_path / "ckpt", "--ignore", name)
    assert r.rc == 2 and name in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_buffers_that_are_computed_are_left_out_and_announced(hf, tmp_path):
    add_tensors(hf, [BUFFER % 0, BUFFER % 1])
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert "left out 2: model.layers.*.self_attn.rotary_emb.inv_freq (2)" in r.out, repr(r)
    assert json.loads(import_(hf, tmp_path / "json", "--json").out)["left_out"] == 2
    r = ok(*train_args(hf, tmp_path / "new"))
    assert "left out: model.layers.*.self_attn.rotary_emb.inv_freq (2)" in r.err, repr(r)


def test_the_causal_mask_is_a_buffer_of_gpt2_alone(hf, tmp_path):
    add_tensors(hf, ["model.layers.0.attn.bias"])
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 2 and "attn.bias" in r.err, repr(r)
    gpt2 = harness.write_config(tmp_path / "gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_head=4,
                                n_layer=2, n_positions=64, model_type="gpt2", tie_word_embeddings=True)
    harness.train(gpt2, tmp_path / "trained", steps=1)
    ok("tp-ckpt", "export", tmp_path / "trained", "--format", "safetensors", "-o", tmp_path / "hf2")
    add_tensors(tmp_path / "hf2", ["transformer.h.0.attn.bias", "h.1.attn.masked_bias"], (1, 1, 4, 4))
    add_copy(tmp_path / "hf2", "lm_head.weight", "transformer.wte.weight")
    r = import_(tmp_path / "hf2", tmp_path / "imported")
    assert r.rc == 0 and "left out 3: " in r.out and "lm_head.weight" in r.out, repr(r)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A Hugging Face folder of a model with a tied head, which is not in it."""
    folder = tmp_path_factory.mktemp("tied")
    config = harness.write_config(folder / "model", tie_word_embeddings=True)
    harness.train(config, folder / "ckpt", steps=1)
    ok("tp-ckpt", "export", folder / "ckpt", "--format", "safetensors", "-o", folder / "hf")
    return folder / "hf"


def test_a_tied_head_that_is_a_copy_is_left_out(tied, tmp_path):
    hf = harness.copy(tied, tmp_path / "hf")
    add_copy(hf, "lm_head.weight", "model.embed_tokens.weight")
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 0 and "left out 1: lm_head.weight" in r.out, repr(r)
    import_(tied, tmp_path / "plain")
    assert harness.digest(tmp_path / "ckpt") == harness.digest(tmp_path / "plain")


def test_a_tied_head_that_is_no_copy_is_refused(tied, tmp_path):
    """transformers computes with such a head, whatever config.json says."""
    hf = harness.copy(tied, tmp_path / "hf")
    add_copy(hf, "lm_head.weight", "model.embed_tokens.weight", change=1)
    for argv in (["tp-ckpt", "import", hf, "-o", tmp_path / "ckpt"], train_args(hf, tmp_path / "ckpt"),
                 ["tp-reshard", hf, "--to", "tp2", "--format", "dcp", "-o", tmp_path / "ckpt"]):
        r = run(*argv)
        assert r.rc == 2 and "lm_head.weight differs from model.embed_tokens.weight" in r.err, repr(r)
        assert "tie_word_embeddings" in r.err and not (tmp_path / "ckpt").exists(), repr(r)
    r = import_(hf, tmp_path / "ckpt", "--ignore", "lm_head.weight")
    assert r.rc == 0 and "left out 1: lm_head.weight" in r.out, repr(r)
    configure(hf, tie_word_embeddings=False)
    import_(hf, tmp_path / "own")
    assert "param/lm_head.weight" in ok("tp-ckpt", "digest", tmp_path / "own").out


# ---- quantized weights, and what is missing -------------------------------------------------------


def test_a_value_that_f16_does_not_have_is_refused(hf, tmp_path):
    """It would be infinite. What is infinite already stays so."""
    name = "model.layers.1.mlp.up_proj.weight"

    def change(value):
        def add(tensors):
            dtype, shape, content = tensors[name]
            tensors[name] = dtype, shape, content[:-4] + struct.pack("<f", value)
        rewrite(hf, add)

    for value, fits in ((-65504.0, True), (-66000.0, False), (math.inf, True)):
        change(value)
        ok("tp-ckpt", "import", hf, "-o", tmp_path / ("ckpt%g" % value), "--layout", "tp2")
        for i, argv in enumerate((["tp-ckpt", "export", tmp_path / ("ckpt%g" % value)], ["tp-ckpt", "import", hf],
                                  ["tp-reshard", hf, "--to", "tp2"], ["tp-reshard", tmp_path / ("ckpt%g" % value), "--to", "tp4"])):
            out = tmp_path / ("out%g-%d" % (value, i))
            r = run(*argv, "--dtype", "f16", "-o", out)
            assert r.rc == (0 if fits else 2), repr(r)
            assert fits or (name in r.err and "65504" in r.err and not harness.steps(out)), repr(r)


QUANTIZED = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("method", ["fp8", None])
def test_quantized_weights_are_refused(method, hf, published, tmp_path):
    quantize(hf, QUANTIZED)
    if method:
        configure(hf, quantization_config={"quant_method": method})
    for argv in (["tp-ckpt", "import", hf, "-o", tmp_path / "ckpt"],
                 ["tp-reshard", hf, "--to", "tp2", "-o", tmp_path / "ckpt"],
                 train_args(hf, tmp_path / "ckpt", steps=1, layout="tp2")):
        r = run(*argv)
        assert r.rc == 3 and QUANTIZED in r.err and len(r.lines) == 1, repr(r)
        assert not method or "weights are quantized (fp8), which is not supported; convert the model to bf16 first" in r.err, repr(r)
        assert not (tmp_path / "ckpt").exists()
    for argv in (["digest", hf], ["diff", hf, hf], ["diff", published, hf]):  # 'equal' would be no proof
        r = run("tp-ckpt", *argv)
        assert r.rc == 3 and QUANTIZED in r.err and "equal" not in r.out and " more" not in r.err, repr(r)
    r = run("tp-ckpt", "verify", hf)
    assert "types are not read: 1 of the tensors" in r.err and QUANTIZED in r.err, repr(r)
    assert "tensors whose types are not read" in r.out.split("not proved: ")[1], repr(r)
    quantize(hf, QUANTIZED.replace("layers.0", "layers.1"))
    assert "and so have 1 more; supported are" in run("tp-ckpt", "digest", hf).err


def test_a_mask_of_bits_is_no_loss(hf, published):
    """As in published GPT-2 and GPT-NeoX models."""
    rewrite(hf, lambda tensors: tensors.update({"transformer.h.0.attn.bias": ("BOOL", (1, 1, 4, 4), bytes(16))}))
    assert ok("tp-ckpt", "digest", hf).out == ok("tp-ckpt", "digest", published).out
    assert "not read" not in ok("tp-ckpt", "verify", hf).err


def test_verify_finds_missing_weights(hf):
    ok("tp-ckpt", "verify", hf)
    drop(hf, "layers.1.")
    r = run("tp-ckpt", "verify", hf)
    assert r.rc == 1 and "model.layers.1.input_layernorm.weight is missing, and so are 8 more" in r.out, repr(r)
    (hf / "config.json").unlink()
    ok("tp-ckpt", "verify", hf)  # nothing says that there were two layers


def test_one_missing_weight_has_no_others(hf):
    drop(hf, "layers.1.mlp.up_proj.weight")
    r = run("tp-ckpt", "verify", hf)
    assert r.rc == 1 and "model.layers.1.mlp.up_proj.weight is missing, which the model" in r.out, repr(r)


def test_verify_does_not_take_a_quantized_model_for_damaged(hf):
    drop(hf, "down_proj")
    configure(hf, quantization_config={"quant_method": "gptq"})
    assert "not proved" in ok("tp-ckpt", "verify", hf).out


# ---- one model in a root --------------------------------------------------------------------------


@pytest.mark.parametrize("change, words", [
    ({"intermediate_size": 128}, "intermediate_size is 128, not 96"),
    ({"num_hidden_layers": 3}, "num_hidden_layers is 3, not 2"),
    ({"num_key_value_heads": 8}, "num_key_value_heads is 8, not 4")], ids=lambda x: "")
def test_a_root_of_another_model_is_refused(change, words, hf, tmp_path):
    other = harness.write_config(tmp_path / "other", **change)
    harness.train(other, tmp_path / "ckpt", steps=1, layout="tp1")
    before = harness.tree(tmp_path / "ckpt")
    for more in [], ["--force"]:
        r = import_(hf, tmp_path / "ckpt", *more)
        assert r.rc == 2 and words in r.err and "another model" in r.err and len(r.lines) == 1, repr(r)
    assert harness.tree(tmp_path / "ckpt") == before


def test_without_a_config_the_tensors_are_compared(hf, tmp_path):
    from test_ckpt import sign
    other = harness.write_config(tmp_path / "other", intermediate_size=128)
    harness.train(other, tmp_path / "ckpt", steps=1, layout="tp1")
    step = tmp_path / "ckpt/step-00000001"
    lines = (step / "manifest.json").read_text().splitlines(True)
    sign(step, "".join('"model_config": null,\n' if l.startswith('"model_config"') else l for l in lines))
    r = import_(hf, tmp_path / "ckpt")
    assert r.rc == 2 and "mlp." in r.err and "another shape" in r.err, repr(r)


def test_a_root_of_the_same_model_and_a_replaced_step_are_accepted(hf, tiny, tmp_path):
    harness.train(tiny, tmp_path / "ckpt", steps=1, layout="tp1")
    assert import_(hf, tmp_path / "ckpt").rc == 0
    other = harness.write_config(tmp_path / "other", intermediate_size=128)
    harness.train(other, tmp_path / "trained", steps=1, layout="tp1")
    ok("tp-ckpt", "export", tmp_path / "trained", "--format", "safetensors", "-o", tmp_path / "hf2")
    assert import_(tmp_path / "hf2", tmp_path / "alone").rc == 0
    assert import_(hf, tmp_path / "alone").rc == 2
    assert import_(hf, tmp_path / "alone", "--force").rc == 0, "the only step is replaced"


def test_the_step_of_weights_is_0_or_that_of_the_option(hf, tmp_path):
    for step, more in (0, ()), (7, ("--step", 7)):
        assert import_(hf, tmp_path / "ckpt", *more).rc == 0
        ok("tp-ckpt", "verify", tmp_path / "ckpt", "--step", step)
    ok("tp-reshard", hf, "--format", "tp", "--to", "tp2", "--step", 9, "-o", tmp_path / "ckpt")
    ok("tp-ckpt", "verify", tmp_path / "ckpt", "--step", 9)


# ---- training -----------------------------------------------------------------------------------------


def test_what_was_imported_can_be_trained_as_from_the_folder(hf, tmp_path):
    assert import_(hf, tmp_path / "ckpt").rc == 0
    words = train_args(hf, tmp_path / "ckpt", steps=3, resume="must", log=tmp_path / "a")
    del words[1:3]
    r = ok(*words)
    assert "has no optimizer state: AdamW starts with zero moments" in r.err, repr(r)
    ok(*train_args(hf, tmp_path / "direct", steps=3, log=tmp_path / "b"))
    assert harness.losses(tmp_path / "a") == harness.losses(tmp_path / "b")
    assert harness.digest(tmp_path / "ckpt") == harness.digest(tmp_path / "direct")
