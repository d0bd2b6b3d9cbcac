"""Checkpoints of Megatron-LM without a config.json beside them: one is made from the arguments in the checkpoint.

Which arguments become which config is in tests/unit/reshard_megatron_config.c.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/foreign_model reshard/formats/megatron/megatron_args_write
"""
import json
import pathlib

import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_import_formats import State, config_of, digests, groups_of

NOTE = "there is no config.json, so one is made from the arguments"
# Members of config.json that Megatron-LM's arguments say, by family; {} is a Llama.
FAMILIES = {
    "llama": {},
    "llama-scaled": {"rope_theta": 500000, "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "norm_topk_prob": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
}
KEYS = ("architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "sliding_window", "rope_theta", "rope_scaling", "num_local_experts",
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A vocabulary that must be padded, in bf16 with masters and moments."""
    folder = tmp_path_factory.mktemp("llama")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=4, vocab_size=259), dtype="bf16")


def args_of(config, **more):
    """The arguments of Megatron-LM for this Llama, as pretrain_gpt.py records them."""
    return {"num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"],
            "ffn_hidden_size": config["intermediate_size"], "num_attention_heads": config["num_attention_heads"],
            "num_query_groups": config["num_key_value_heads"], "group_query_attention": True,
            "kv_channels": config["head_dim"], "max_position_embeddings": config["max_position_embeddings"],
            "norm_epsilon": config["rms_norm_eps"], "rotary_base": int(config.get("rope_theta", 10000)),
            "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
            "untie_embeddings_and_output_weights": True, "vocab_size": None, "tokenizer_type": "HuggingFaceTokenizer",
            "num_experts": None, "rotary_percent": 1.0, **more}


def megatron(state, tp, **more):
    m = foreign_files.Megatron(config_of(state), tp)
    m.more_args.update(args_of(config_of(state), padded_vocab_size=m.vocab, make_vocab_size_divisible_by=8, **more))
    return m


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_comes_back_without_its_config(family, tmp_path):
    harness.train(harness.write_config(tmp_path / "model", **FAMILIES[family]), tmp_path / "ckpt", steps=1, layout="tp1",
                  dtype="bf16")
    fmt, layout = ("megatron", "tp2pp2") if family == "llama" else ("torch_dist", "tp2")
    ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "m", "--format", fmt, "--layout", layout)
    want = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").unlink()
    r = ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "again", "--layout", "tp2")
    assert NOTE in r.err and want["architectures"][0] in r.err and "--config" in r.err, repr(r)
    assert digests(tmp_path / "again") == digests(tmp_path / "ckpt")
    ok("tp-ckpt", "export", tmp_path / "again", "-o", tmp_path / "hf")
    found = json.loads((tmp_path / "hf/config.json").read_text())
    assert {k: found.get(k) for k in KEYS} == {k: want.get(k) for k in KEYS}
    assert bool(found.get("tie_word_embeddings")) == bool(want.get("tie_word_embeddings"))


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
def test_each_program_reads_a_checkpoint_without_a_config(kind, llama, tmp_path):
    m = megatron(llama, 2, vocab_size=259)
    (m.legacy if kind == "megatron" else m.torch_dist)(tmp_path / "m", groups_of(llama), 3)
    for verb, more in (("ls", ()), ("show", ()), ("show", ("model.norm.weight",)), ("digest", ()), ("verify", ()),
                       ("diff", (llama.root,))):
        r = ok("tp-ckpt", verb, tmp_path / "m", *more)
        assert NOTE in r.err and "vocabulary of 259, without the 13 rows of padding" in r.err, repr(r)
        named = ok("tp-ckpt", verb, tmp_path / "m", *more, "--config", llama.config)
        unproved = " that shapes are those of a config.json;"
        assert (unproved in r.out) == (verb == "verify"), repr(r)
        assert named.out == r.out.replace(unproved, "") and NOTE not in named.err, repr(named)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp4")
    assert NOTE in r.err and json.loads((tmp_path / "m-tp4/config.json").read_text())["vocab_size"] == 259, repr(r)
    assert digests(tmp_path / "m-tp4") == digests(llama.root)


def test_a_vocabulary_of_unknown_size_keeps_all_rows(llama, tmp_path):
    megatron(llama, 2).torch_dist(tmp_path / "m", groups_of(llama), 3)
    r = ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert "vocabulary of 272, padding included" in r.err, repr(r)
    r = ok("tp-ckpt", "show", tmp_path / "ckpt", "model.embed_tokens.weight")
    assert "272" in r.out, repr(r)
    other = run("tp-ckpt", "diff", tmp_path / "ckpt", llama.root)
    assert other.rc == 1 and "embed_tokens" in other.out, repr(other)


def test_arguments_that_no_family_has_are_an_error(llama, tmp_path):
    megatron(llama, 1, window_attn_skip_freq=2).torch_dist(tmp_path / "m", groups_of(llama), 3)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "common.pt: was saved with window_attn_skip_freq 2" in r.err and "--config" in r.err, repr(r)
    assert len(r.lines) == 1 and not (tmp_path / "ckpt").exists()
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--config", llama.config)


@pytest.mark.parametrize("form", ["megatron", "torch_dist"])
def test_a_head_that_config_json_says_is_tied_is_not_lost(form, llama, tmp_path):
    ok("tp-ckpt", "export", llama.root, "-o", tmp_path / "m", "--format", form)
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "untie_embeddings_and_output_weights" in r.err and "tie_word_embeddings" in r.err, repr(r)
    assert len(r.lines) == 1 and not (tmp_path / "ckpt").exists()


def test_norms_of_gemma_are_centred_at_zero(tmp_path):
    """Its weights are those of Megatron-LM with such norms; an export says so, and an import of them is not refused."""
    config = harness.write_config(tmp_path / "model", architectures=["GemmaForCausalLM"], model_type="gemma", tie_word_embeddings=True,
                                  hidden_act="gelu_pytorch_tanh")
    harness.train(config, tmp_path / "ckpt", steps=1, layout="tp1")
    ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "m", "--format", "megatron")
    args = vars(torch_files.load(next((tmp_path / "m").rglob("model_optim_rng.pt")).read_bytes())["args"])
    assert args["apply_layernorm_1p"] and args["layernorm_zero_centered_gamma"]
    assert args["norm_epsilon"] == args["layernorm_epsilon"] == json.loads(pathlib.Path(config).read_text())["rms_norm_eps"]
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "again", "--config", config)
    assert digests(tmp_path / "again") == digests(tmp_path / "ckpt")
