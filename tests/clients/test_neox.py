"""tp-ckpt import reads what DeepSpeed saves of programs with tensor and pipeline parallelism, with the names and orders of GPT-NeoX
and Megatron-DeepSpeed: weights, masters, moments and step are those of the live engines, joined here, bit for bit; and DeepSpeed's
own ds_to_universal joins the same."""
import json
import pathlib
import re
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from live_state import state_of  # noqa: E402

STEPS, VOCAB, PADDED = 2, 90, 96
SIZES = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}
NEOX = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", **SIZES, "use_parallel_residual": True, "tie_word_embeddings": False}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **SIZES, "n_embd": 16, "n_inner": 32, "n_layer": 4, "n_head": 4,
        "n_positions": 12, "tie_word_embeddings": True}
# What Megatron-DeepSpeed says, for ds_to_universal.
WHOLE = [r"\d+.(input|post_attention)_layernorm.(weight|bias)", r"\d+.(weight|bias)", r"\d+.self_attention.dense.bias", r"\d+.mlp.dense_4h_to_h.bias",
         r"tied_modules.embed.position_embeddings.weight"]
UNIVERSAL = {"vocabulary_parameter_patterns": ["tied_modules.embed.word_embeddings.weight"], "original_vocab_size": VOCAB,
             "pipeline_replicated_parameter_patterns": [r"tied_modules.embed.\w+_embeddings.weight"], "parameter_to_average_patterns": WHOLE,
             "parameter_with_row_parallelism_patterns": [r"\d+.self_attention.dense.weight", r"\d+.mlp.dense_4h_to_h.weight"]}
JOBS = {"neox": dict(names="neox", tp=2, pp=2, dp=2, bf16=True, gated=False, tied=False, config=NEOX),
        "neox-llama": dict(names="neox", tp=2, pp=1, dp=1, bf16=True, gated=True, tied=False, new_names=True, config=LLAMA),
        "megatron-gpt2": dict(names="megatron", tp=2, pp=2, dp=1, bf16=False, gated=False, tied=True, config=GPT2, universal=UNIVERSAL),
        "megatron-llama": dict(names="megatron", tp=2, pp=1, dp=1, bf16=True, gated=True, tied=True, config={**LLAMA, "tie_word_embeddings": True},
                               pipeline=False)}
GROUPS = {"weight": "param", "master": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{job: its folder, with config.json} after all ranks have run."""
    folder, jobs = tmp_path_factory.mktemp("neox"), {}
    for name, job in JOBS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(job["config"]))
        jobs[name] = dict(job, vocab=PADDED, save=str(folder / name), out=str(folder / name / "live"))
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("neox_ranks.py", folder / "jobs")
    return {name: folder / name for name in jobs}


# ---- what the engines have, as one model ----

def mean(parts):
    return sum(x.double() for x in parts).div(len(parts)).to(parts[0].dtype)


def total(parts):
    return sum(x.double() for x in parts).to(parts[0].dtype)


def rows(parts):
    return torch.cat(parts)


def columns(parts):
    return torch.cat(parts, 1)


def layer_neox(head, rest, parts, group):
    """Its names and orders are those of transformers."""
    if rest.endswith(("dense.bias", "dense_4h_to_h.bias")):
        join = mean if group in ("exp_avg", "exp_avg_sq") else total
    else:
        join = mean if "layernorm" in rest else columns if rest in ("attention.dense.weight", "mlp.dense_4h_to_h.weight") else rows
    return {"gpt_neox.layers.%d.%s" % (head, rest): join(parts)}


def layer_llama(head, rest, parts, group):
    head, kind = "model.layers.%d." % head, rest.rsplit(".", 1)[0]
    if "layernorm" in rest:
        return {head + kind + ".weight": mean(parts)}
    if rest.endswith(("dense.weight", "linear2.weight", "dense_4h_to_h.weight")):
        return {head + ("self_attn.o_proj.weight" if "attention" in rest else "mlp.down_proj.weight"): columns(parts)}
    if "query_key_value" not in rest:
        names = ("up_proj", "gate_proj") if rest == "mlp.linear1.weight" else ("gate_proj", "up_proj")
        return {"%smlp.%s.weight" % (head, name): rows([p.chunk(2)[i] for p in parts]) for i, name in enumerate(names)}
    # GPT-NeoX: a rank's queries, keys, values; Megatron: by groups of heads. A rank has one group here.
    return {"%sself_attn.%s_proj.weight" % (head, x): rows([p.split([8, 4, 4])[i] for p in parts]) for i, x in enumerate("qkv")}


def layer_gpt2(head, rest, parts, group):
    name = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attention.query_key_value": "attn.c_attn", "self_attention.dense": "attn.c_proj",
            "mlp.dense_h_to_4h": "mlp.c_fc", "mlp.dense_4h_to_h": "mlp.c_proj"}[rest.rsplit(".", 1)[0]]
    kind = rest.rsplit(".", 1)[1]
    if "layernorm" in rest or (kind == "bias" and "c_proj" in name):
        x = mean(parts)
    elif "c_proj" in name:
        x = columns(parts).t()
    else:
        x = rows(parts)
        if "c_attn" in name:  # [heads, 3, rows of a head] becomes [3, heads, ...]
            x = x.unflatten(0, (4, 3, 4)).transpose(0, 1).flatten(0, 2)
        x = x.t() if kind == "weight" else x
    return {"transformer.h.%d.%s.%s" % (head, name, kind): x.contiguous()}


# layers, embedding, positions, final norm, head
NAMES = {"gpt_neox": (layer_neox, "gpt_neox.embed_in.weight", None, "gpt_neox.final_layer_norm", "embed_out.weight"),
         "llama": (layer_llama, "model.embed_tokens.weight", None, "model.norm", "lm_head.weight"),
         "gpt2": (layer_gpt2, "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f", None)}


def whole(config, name, parts, group):
    """{Hugging Face's name: tensor} of a parameter; parts: of each tensor-parallel rank."""
    layer, embedding, positions, norm, head = NAMES[config["model_type"]]
    name = name.replace("language_model.encoder.layers.", "").replace("language_model.", "").replace("tied_modules.embed.", "")
    numbered = re.fullmatch(r"(\d+)\.(.*\..*)", name)
    if numbered and re.match(r"(\w*attention|mlp|\w+_layernorm)\.", numbered[2]):
        return layer(int(numbered[1]), numbered[2], parts, group)
    if name.endswith("word_embeddings.weight"):
        return {embedding: rows(parts)[:VOCAB]}
    if name.endswith("position_embeddings.weight"):
        return {positions: mean(parts)}
    if name.endswith(("final_linear.weight", "lm_head.weight")):
        return {head: rows(parts)[:VOCAB]}
    return {norm + (".bias" if name.endswith("bias") else ".weight"): mean(parts)}


def live(job, folder):
    """{"group/name": tensor} as the import should have it. Layers are numbered from 0."""
    found, first = {}, 0 if job.get("pipeline") is False else 2
    for stage in range(job["pp"]):
        ranks = [torch.load(folder / ("live-%d-%d" % (stage, rank))) for rank in range(job["tp"])]
        for name, mine in ranks[0].items():
            assert mine["step"] == STEPS
            if stage > 0 and name.startswith("tied_modules"):
                continue
            number = re.match(r"(\d+)\.", name)
            plain = "%d.%s" % (int(number[1]) - first, name[number.end():]) if number else name
            for key, group in GROUPS.items():
                for hf, x in whole(job["config"], plain, [r[name][key] for r in ranks], group).items():
                    assert "%s/%s" % (group, hf) not in found
                    found["%s/%s" % (group, hf)] = x
    return found


def assert_same(got, want):
    assert sorted(got) == sorted(want)
    for name, x in want.items():
        is_half = x.dtype == torch.bfloat16
        assert torch.equal(got[name].view(torch.int16) if is_half else got[name], x.view(torch.int16) if is_half else x), name


def imported(source, config, tmp_path):
    """The state of the checkpoint that is made of it."""
    r = harness.ok("tp-ckpt", "import", source, "--config", config, "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert "every checksum of the source" in r.out, repr(r)
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % STEPS
    return state_of(tmp_path / "ckpt", tmp_path)


@pytest.mark.parametrize("name", JOBS)
def test_what_the_engines_have_is_imported(name, saved, tmp_path):
    job, folder = JOBS[name], saved[name]
    want = live(job, folder)
    if not job["bf16"]:  # weights are their own masters
        want = {k: x for k, x in want.items() if not k.startswith("master/")}
    assert_same(imported(folder / ("global_step%d" % STEPS), folder / "config.json", tmp_path), want)


@pytest.mark.parametrize("name", JOBS)
def test_ranks_have_other_copies(name, saved):
    """Without that, it would not matter which is taken."""
    ranks = [torch.load(saved[name] / ("live-0-%d" % rank)) for rank in range(2)]
    assert any(not torch.equal(ranks[0][n]["master"], ranks[1][n]["master"]) for n in ranks[0] if "layernorm" in n or n.endswith("dense.bias"))


@pytest.mark.parametrize("name", [n for n, job in JOBS.items() if "universal" in job])
def test_what_deepspeeds_own_converter_makes_of_it_is_the_same(name, saved, tmp_path):
    folder = saved[name]
    want = {k: x for k, x in live(JOBS[name], folder).items() if not k.startswith("master/")}
    assert_same(imported(folder / ("global_step%d_universal" % STEPS), folder / "config.json", tmp_path), want)
