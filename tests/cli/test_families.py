"""Families of models: import, reshard and export of small models whose config.json, names and shapes
transformers wrote (tests/clients/family_models.py makes tests/fixture/families.json).

needs: tp-train tp-ckpt tp-reshard
covers: layout/family layout/rope_config layout/model_config
"""
import json
import sys

import numpy as np
import pytest

import harness
from harness import ok, run

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import oracle_numpy  # noqa: E402

FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())


def write(folder, name, **changes):
    """Write the model with random weights; returns {name: array}."""
    rng = np.random.Generator(np.random.Philox(7))
    weights = {k: rng.standard_normal(shape).astype(np.float32)
               for k, shape in FAMILIES[name]["tensors"].items()}
    oracle_numpy.save_model(folder, {**FAMILIES[name]["config"], **changes}, weights)
    return weights


def moved(folder, tmp_path, first, second):
    """The weights and the config after import to layout `first`, reshard to `second`, and export."""
    ok("tp-ckpt", "import", folder, "--layout", first, "-o", tmp_path / "a")
    ok("tp-reshard", tmp_path / "a", "--to", second, "-o", tmp_path / "b")
    ok("tp-ckpt", "export", tmp_path / "b", "--format", "safetensors", "-o", tmp_path / "hf")
    return oracle_numpy.load_safetensors(tmp_path / "hf" / "model.safetensors"), \
        json.loads((tmp_path / "hf" / "config.json").read_text())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_survives_import_reshard_and_export(name, tmp_path):
    want = write(tmp_path / "model", name)
    got, config = moved(tmp_path / "model", tmp_path, "tp4pp2", "tp2dp2zero3")
    assert sorted(got) == sorted(want)
    for key in want:
        assert np.array_equal(got[key], want[key]), key
    for key, value in FAMILIES[name]["config"].items():
        assert config[key] == value, key


def test_a_scaled_rotary_embedding_is_exported_for_old_and_new_transformers(tmp_path):
    parameters = FAMILIES["llama-llama3"]["config"]["rope_parameters"]
    write(tmp_path / "new", "llama-llama3")
    old = {k: v for k, v in parameters.items() if k != "rope_theta"}
    write(tmp_path / "old", "llama-llama3", rope_parameters=None, rope_scaling=old,
          rope_theta=parameters["rope_theta"])
    for folder in ("new", "old"):
        _, config = moved(tmp_path / folder, tmp_path / (folder + "-out"), "tp1", "tp2")
        assert config["rope_parameters"] == parameters and config["rope_theta"] == parameters["rope_theta"]
        assert {**config["rope_scaling"], "rope_theta": 0} == {**parameters, "rope_theta": 0}


def test_a_partial_rotary_embedding_is_exported_for_old_and_new_transformers(tmp_path):
    write(tmp_path / "new", "phi3", rope_parameters=dict(rope_type="default", rope_theta=7.0, partial_rotary_factor=0.75))
    write(tmp_path / "old", "phi3", rope_parameters=None, rope_theta=7.0, partial_rotary_factor=0.75)
    write(tmp_path / "neox", "gpt-neox", rope_parameters=None, rotary_emb_base=7, rotary_pct=0.75)
    for folder in ("new", "old", "neox"):
        _, config = moved(tmp_path / folder, tmp_path / (folder + "-out"), "tp1", "tp2")
        assert config["rope_parameters"] == dict(rope_type="default", rope_theta=7.0, partial_rotary_factor=0.75)
        if folder == "neox":
            assert config["rotary_emb_base"] == 7.0 and config["rotary_pct"] == 0.75
        else:
            assert config["rope_theta"] == 7.0 and config["partial_rotary_factor"] == 0.75


def test_both_rotary_embeddings_are_exported_for_old_and_new_transformers(tmp_path):
    full, local = dict(rope_type="linear", factor=8.0, rope_theta=7.0), dict(rope_type="default", rope_theta=5.0)
    parameters = dict(full_attention=full, sliding_attention=local)
    write(tmp_path / "new", "gemma3", rope_parameters=parameters)
    write(tmp_path / "old", "gemma3", rope_parameters=None, rope_scaling=dict(rope_type="linear", factor=8.0),
          rope_theta=7.0, rope_local_base_freq=5.0)
    for folder in ("new", "old"):
        _, config = moved(tmp_path / folder, tmp_path / (folder + "-out"), "tp1", "tp2")
        assert config["rope_parameters"] == parameters
        assert config["rope_theta"] == 7.0 and config["rope_local_base_freq"] == 5.0
        assert {**config["rope_scaling"], "rope_theta": 0} == {**full, "rope_theta": 0}


@pytest.mark.parametrize("rope", [
    dict(rope_parameters=FAMILIES["olmo3"]["config"]["rope_parameters"]),
    dict(rope_theta=500.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    dict(rope_theta=500.0, rope_scaling=None)])
def test_olmo_3s_rotary_embeddings_are_exported_as_they_were(rope, tmp_path):
    """transformers 4 has one theta for all layers and scales some; 5 knows that form, but not its theta of layers with a
    window."""
    names = ("rope_parameters", "rope_theta", "rope_scaling")
    weights = write(tmp_path / "model", "olmo3")
    config = {k: v for k, v in FAMILIES["olmo3"]["config"].items() if k not in names}
    oracle_numpy.save_model(tmp_path / "model", {**config, **rope}, weights)
    _, got = moved(tmp_path / "model", tmp_path, "tp1", "tp2")
    assert {k: v for k, v in got.items() if k in names} == rope


LONGROPE = dict(rope_type="longrope", rope_theta=7.0, short_factor=[1.0, 1.0, 1.0], long_factor=[1.0, 2.0, 4.0])


def test_longrope_is_exported_for_old_and_new_transformers(tmp_path):
    """In rope_scaling transformers 4 takes a type and the two lists, and nothing else. With more it cannot have the model."""
    old = dict(type="longrope", short_factor=LONGROPE["short_factor"], long_factor=LONGROPE["long_factor"])
    for name, rope in (("new", dict(rope_parameters=LONGROPE)),
                       ("old", dict(rope_parameters=None, rope_scaling=old, rope_theta=7.0))):
        write(tmp_path / name, "phi3", **rope)
        _, config = moved(tmp_path / name, tmp_path / (name + "-out"), "tp1", "tp2")
        assert config["rope_scaling"] == old and config["rope_theta"] == 7.0
        assert config["original_max_position_embeddings"] == 4096
        assert config["rope_parameters"] == {**(LONGROPE if name == "new" else old), "rope_theta": 7.0}
    write(tmp_path / "more", "phi3", rope_parameters=dict(LONGROPE, attention_factor=1.5))
    _, config = moved(tmp_path / "more", tmp_path / "more-out", "tp1", "tp2")
    assert "rope_scaling" not in config and config["rope_parameters"] == dict(LONGROPE, attention_factor=1.5)




@pytest.mark.parametrize("name,changes,words", [
    ("olmo3", dict(rope_parameters=dict(full_attention=dict(rope_type="default"), sliding_attention=dict(
        rope_type="linear", factor=2.0))), "scaled rotary embedding of layers with a sliding window"),
    ("opt", dict(activation_function="gelu"), "activation_function"), ("opt", dict(layerdrop=0.1), "layerdrop"), ("phi3", dict(rope_parameters=dict(LONGROPE, long_factor=[1.0, 2.0])), "long_factor of 3 numbers"),
    ("phi3", dict(rope_parameters=None, rope_scaling=dict(LONGROPE, rope_type="su", short_factor=[1.0])), "longrope"),
    ("phi3", dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.9)), "5 of the 6 elements of a head"),
    ("llama", dict(partial_rotary_factor=0.75), "partial_rotary_factor of 0.75"),
    ("gpt-neox", dict(hidden_act="relu"), '"hidden_act" of "relu" (only kinds of GELU are implemented)'),
    ("phi3", dict(hidden_act="gelu"), "hidden_act"), ("phi3", dict(resid_pdrop=0.1), "resid_pdrop")])
def test_training_what_only_moves_is_refused_by_name(name, changes, words, tmp_path):
    write(tmp_path / "model", name, **changes)
    r = run("tp-train", "--model", tmp_path / "model", "--data", harness.TEXT, "--steps", 1, "--seq", 16)
    assert r.rc == 2 and words in r.err and "exported" in r.err and len(r.lines) == 1, repr(r)


@pytest.mark.parametrize("fmt", ["megatron", "torch_dist"])
@pytest.mark.parametrize("name,changes,words", [
    ("granite", {}, ["GraniteForCausalLM", "factors"]), ("olmo3", {}, ["post_attention_layernorm", "no place"]),
    ("smollm3", {}, ["SmolLM3ForCausalLM", "layers without a rotary embedding"]),
    ("mistral", dict(layer_types=["full_attention", "sliding_attention"]), ["MistralForCausalLM", "layers without a sliding window"])])
def test_what_megatron_does_not_record_is_not_lost(name, changes, words, fmt, tmp_path):
    write(tmp_path / "model", name, **changes)
    ok("tp-ckpt", "import", tmp_path / "model", "-o", tmp_path / "ckpt")
    r = run("tp-ckpt", "export", tmp_path / "ckpt", "--format", fmt, "-o", tmp_path / "out")
    assert r.rc == 2 and all(word in r.err for word in words) and not (tmp_path / "out").exists(), repr(r)


@pytest.mark.parametrize("name,key,value", [
    ("opt", "do_layer_norm_before", False), ("opt", "word_embed_proj_dim", 24), ("opt", "enable_bias", False),
    ("qwen3-moe", "mlp_only_layers", [0]), ("qwen3-moe", "decoder_sparse_step", 2),
    ("mistral", "num_key_value_heads", None), ("mixtral", "num_local_experts", 0),
    ("mixtral", "num_experts_per_tok", 5), ("qwen3-moe", "router_aux_loss_coef", -1),
    ("gpt2", "add_cross_attention", True), ("smollm3", "num_key_value_heads", None)])
def test_a_feature_that_changes_the_tensors_is_refused_by_name(name, key, value, tmp_path):
    write(tmp_path / "model", name, **{key: value})
    r = run("tp-ckpt", "import", tmp_path / "model", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and key in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "ckpt").exists()
