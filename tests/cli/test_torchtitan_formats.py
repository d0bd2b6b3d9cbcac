"""torchtitan's checkpoints of Llama, Qwen3 and Qwen3-MoE: written, read, and resharded with what is not part of the model.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/torch/torchtitan_map reshard/formats/torch/torchtitan_piece reshard/formats/torch/torchtitan_bias
"""
import json
import re

import numpy as np
import pytest

import harness
import torch_files
from harness import ok, run
from state import State, digests
from test_export_formats import export, imported, same
from test_import_formats import config_of

QWEN = dict(head_dim=16, attention_bias=None, mlp_bias=None, rms_norm_eps=1e-6)
MODELS = {"llama": {}, "tied": dict(tie_word_embeddings=True, vocab_size=261),
          "qwen3": dict(QWEN, architectures=["Qwen3ForCausalLM"], model_type="qwen3"),
          "qwen3_moe": dict(QWEN, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=24)}
GROUPS = ("param", "exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """{model: its State}"""
    folder = tmp_path_factory.mktemp("states")
    return {k: State(folder / k, harness.write_config(folder / k / "model", **changes)) for k, changes in MODELS.items()}


# ---- torchtitan's names, as its state_dict_adapter.py has them ----

ENDS = {"model.embed_tokens": ["tok_embeddings"], "model.norm": ["norm"], "lm_head": ["output", "lm_head"]}
LAYER = {"input_layernorm": ["attention_norm.weight"], "post_attention_layernorm": ["ffn_norm.weight"],
         "self_attn.o_proj": ["attention.wo.weight"], "self_attn.q_norm": ["attention.q_norm.weight"],
         "self_attn.k_norm": ["attention.k_norm.weight"], "mlp.gate": ["moe.router.gate.weight"],
         **{"self_attn.%s_proj" % x: ["attention.w%s.weight" % x, "attention.qkv_linear.w%s.weight" % x] for x in "qkv"},
         **{"mlp.%s_proj" % k: ["feed_forward.w%d.weight" % n] for k, n in (("gate", 1), ("down", 2), ("up", 3))},
         **{"mlp.experts.%s_proj" % k: ["moe.experts.w%d" % n, "moe.routed_experts.inner_experts.w%d_%s" % (n, axes),
                                        "moe.experts.w%d_%s" % (n, axes)]
            for k, n, axes in (("gate", 1, "EFD"), ("down", 2, "EDF"), ("up", 3, "EFD"))}}
FUSED = "layers.%s.attention.qkv_linear.wqkv.weight"


def names_of(ours):
    """All names that torchtitan has or had for a tensor, those of released versions first."""
    name = re.sub(r"experts\.\d+\.", "experts.", ours.removesuffix(".weight"))
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return ["layers.%s.%s" % (layer[1], x) for x in LAYER[layer[2]]] if layer else [x + ".weight" for x in ENDS[name]]


def theirs(state, group):
    """{torchtitan's first name: array} of a group: rows of a Llama's Q and K as (pair, half), experts stacked."""
    config, out = config_of(state), {}
    for ours, x in state.group(group).items():
        if config["model_type"] == "llama" and ours.endswith(("q_proj.weight", "k_proj.weight")):
            x = x.reshape(-1, 2, config["head_dim"] // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        out.setdefault(ours if ".experts." not in ours else re.sub(r"experts\.\d+", "experts.0", ours), []).append((ours, x))
    return {k: v[0][1] if ".experts." not in k else np.stack([x for _, x in sorted(v)]) for k, v in out.items()}


def fused(config, tensors, layer):
    """One parameter of Q, K and V: of each key-value head its queries, the key, the value."""
    heads = config["num_key_value_heads"]
    parts = [tensors["model.layers.%s.self_attn.%s_proj.weight" % (layer, x)] for x in "qkv"]
    return np.concatenate([x.reshape(heads, -1, x.shape[1]) for x in parts], 1).reshape(-1, parts[0].shape[1])


def in_parts(array, rng):
    """Boxes that cut every axis, at any place."""
    cuts = [sorted({0, n, *(int(x) for x in rng.integers(0, n + 1, 2))}) for n in array.shape]
    boxes = [((), ())]
    for c in cuts:
        boxes = [(lo + (a,), size + (b - a,)) for lo, size in boxes for a, b in zip(c, c[1:])]
    return boxes


def write(folder, state, which, fuses, seed, change=None):
    """Write what torchtitan saves, with the names of a version; fuses: the groups whose Q, K and V are one parameter."""
    rng, config, tensors, objects = np.random.default_rng(seed), config_of(state), {}, {}
    print("seed", seed)
    for group in GROUPS:
        found = theirs(state, group)
        named = {(names_of(k) * 3)[which if len(names_of(k)) > 2 else min(which, 1) % len(names_of(k))]: x for k, x in found.items()}
        for layer in range(config["num_hidden_layers"] * (group in fuses)):
            named[FUSED % layer] = fused(config, found, layer)
            named = {k: x for k, x in named.items() if not re.fullmatch(r"layers\.%d\.attention\.(qkv_linear\.)?w[qkv]\.weight" % layer, k)}
        if config["tie_word_embeddings"] and group == "param":
            named["lm_head.weight" if which else "output.weight"] = named["tok_embeddings.weight"]
        for k, x in named.items():
            tensors[k if group == "param" else "optimizer.state.%s.%s" % (k, group)] = (x, in_parts(x, rng))
            if group == "exp_avg":
                tensors["optimizer.state.%s.step" % k] = (np.array(3, np.float32), [((), ())])
                objects.update({"optimizer.param_groups.%s.lr" % k: 0.25, "optimizer.param_groups.%s.betas" % k: (0.9, 0.95)})
    if change:
        change(tensors)
    torch_files.dcp(folder, tensors, objects)
    (folder / "config.json").write_text(state.config.read_text())


# ---- written ----

@pytest.mark.parametrize("model,layout", [(m, x) for m in MODELS if m != "tied" for x in ("tp4pp2", "dp5zero3")]  # between rows of a pair
                         + [("qwen3_moe", "tp2dp4ep2zero1")])
def test_torchtitan_has_its_names_and_its_order_of_rows(model, layout, states, tmp_path):
    """Those of 0.2 and of 0.3, which has one parameter for query, key and value in its optimizer."""
    state = states[model]
    export(state, tmp_path / "t", "torchtitan", "--layout", layout)
    found, planner = torch_files.load_dcp(tmp_path / "t")
    config, count = config_of(state), 0
    want = {group: theirs(state, group) for group in GROUPS}
    for group in GROUPS[1:]:
        for layer in range(config["num_hidden_layers"]):
            want[group][FUSED % layer] = fused(config, want[group], layer)
    for ours in want["exp_avg"]:
        for name in [ours] if "wqkv" in ours else names_of(ours)[:2]:
            at = "optimizer.state.%s." % name
            assert ours not in want["param"] or same(found[name], want["param"][ours]) and planner[name] == (name,), name
            for group in GROUPS[1:]:
                assert same(found[at + group], want[group][ours]), (name, group)
            assert found[at + "step"] == 3 and found[at + "step"].dtype == "f4"
            assert planner[at + "step"] == ("optimizer", at[10:] + "step")
            options = {k.rsplit(".", 1)[1]: v for k, v in found.items() if "param_groups.%s." % name in k}
            assert options["betas"] == (0.9, 0.95) and options["lr"] == options["initial_lr"] and len(options) == 12
            count += 15 + (ours in want["param"])
    for layer in range(config["num_hidden_layers"] * ("moe" in model)):  # zeros, as torchtitan begins
        for name in ("layers.%d.moe.expert_bias" % layer, "layers.%d.moe.expert_bias_E" % layer):
            assert found[name].dtype == "f4" and found[name].shape == (4,) and not found[name].any() and planner[name] == (name,)
            count += 1
    assert len(found) == count


@pytest.mark.parametrize("model", MODELS)
def test_torchtitan_comes_back_as_the_same_checkpoint(model, states, tmp_path):
    state = states[model]
    export(state, tmp_path / "first", "torchtitan", "--layout", "tp2dp3zero1")
    r = ok("tp-reshard", tmp_path / "first", "--to", "dp5zero3", "-o", tmp_path / "second")
    assert "torchtitan -> torchtitan" in r.out
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "second").out
    imported(tmp_path / "second", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(state.root) and harness.steps(tmp_path / "again")[-1].name == state.step.name


def test_weights_in_bf16_come_back(bf16, tmp_path):
    export(bf16, tmp_path / "t", "torchtitan", "--layout", "tp2dp3zero1")
    imported(tmp_path / "t", tmp_path / "again", "--dtype", "bf16")
    assert digests(tmp_path / "again") == digests(bf16.root)


def test_options_of_parameters_are_taken_over(f32, tmp_path):
    """They are not those of PyTorch's AdamW, which would train on otherwise."""
    export(f32, tmp_path / "one", "torchtitan")
    ok("tp-reshard", tmp_path / "one", "--to", "tp2", "--config", f32.config, "-o", tmp_path / "two")
    before, after = (torch_files.load_dcp(tmp_path / f)[0] for f in ("one", "two"))
    options = {k for k in before if k.startswith("optimizer.param_groups.")}
    assert options and {k: before[k] for k in options} == {k: after[k] for k in options}
    assert {v for k, v in after.items() if k.endswith(".betas")} == {(0.9, 0.95)}
    ok("tp-reshard", tmp_path / "one", "--to", "tp1", "--format", "deepspeed", "--config", f32.config, "-o", tmp_path / "ds")
    group = torch_files.load((tmp_path / "ds/global_step3_universal/zero/optimizer_state.pt").read_bytes())["param_groups"][0]
    one = {k.rsplit(".", 1)[1]: v for k, v in before.items() if k.startswith("optimizer.param_groups.norm.weight.")}
    assert all(group[k] == one[k] for k in ("lr", "betas", "eps", "weight_decay")) and group["betas"] == (0.9, 0.95)


# ---- read ----

@pytest.mark.parametrize("which,fuses", [(0, ()), (1, GROUPS[1:]), (2, GROUPS)], ids=["0.2", "0.3", "between"])
@pytest.mark.parametrize("model", MODELS)
def test_what_torchtitan_saves_is_read_however_it_is_cut(model, which, fuses, states, tmp_path):
    """Between 0.2 and 0.3 weights of query, key and value were one tensor too, where a model was configured so."""
    write(tmp_path / "t", states[model], which, fuses, seed=7 + which)
    imported(tmp_path / "t", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(states[model].root)
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "t").out


@pytest.mark.parametrize("which", [0, 1], ids=["0.2", "0.3"])
def test_what_is_not_part_of_the_model_comes_along(which, states, tmp_path):
    """What balances the experts, by the names of both versions; counters, which are tensors in 0.2 and numbers in 0.3; the schedule."""
    bias = np.array([[.5, -1, 2, 0], [1, 2, 3, 4]], np.float32)
    names = ["layers.%d.moe.expert_bias", "layers.%d.moe.expert_bias_E"]

    def add(tensors):
        for layer in range(2):
            tensors[names[which] % layer] = (bias[layer], [((0,), (3,)), ((3,), (1,))] if layer else [((0,), (4,))])
        tensors["train_state.ntokens_seen"] = (np.array(1 << 40, np.int64), [((), ())])

    write(tmp_path / "t", states["qwen3_moe"], which, GROUPS[1:] if which else (), 3, add)
    r = ok("tp-reshard", tmp_path / "t", "--to", "tp2pp2", "-o", tmp_path / "out")
    found, paths = torch_files.load_dcp(tmp_path / "out")
    for layer in range(2):
        assert all(same(found[name % layer], bias[layer]) and paths[name % layer] == (name % layer,) for name in names)
    assert found["train_state.ntokens_seen"] == 1 << 40 and paths["train_state.ntokens_seen"] == ("train_state", "ntokens_seen")
    assert "expert_bias" not in r.out and "train_state" not in r.out, repr(r)
    r = imported(tmp_path / "t", tmp_path / "ckpt")
    assert re.search(r"left out \d+: layers\.\*\.moe\.expert_bias(_E)? \(\d\), train_state\.ntokens_seen", r.out), repr(r)
    assert digests(tmp_path / "ckpt") == digests(states["qwen3_moe"].root)
    ok("tp-reshard", tmp_path / "out", "--to", "dp3zero3", "-o", tmp_path / "again")
    again, _ = torch_files.load_dcp(tmp_path / "again")
    assert all(np.array_equal(again[k], x) for k, x in found.items()) and len(again) == len(found)


W1 = "layers.1.moe.routed_experts.inner_experts.w1_EFD"


def with_rows(name, n):
    def change(tensors):
        x = tensors[name][0]
        y = np.zeros((n,) + x.shape[1:], x.dtype)
        tensors[name] = (y, [((0,) * y.ndim, y.shape)])
    return change


def with_more(name):
    return lambda tensors: tensors.update({name: tensors["norm.weight"]})


@pytest.mark.parametrize("model,change,words", [
    ("qwen3_moe", with_rows(W1, 3), "tensor %s is [3, 24, 64], but config.json's model has [4, 24, 64]" % W1),
    ("qwen3_moe", lambda tensors: tensors.pop(W1), "model.layers.1.mlp.experts.0.gate_proj.weight"),
    ("qwen3", with_rows("optimizer.state.%s.exp_avg" % FUSED % 0, 64), "query, key and value of config.json's model have 256 rows"),
    ("qwen3", with_more("layers.0.attention.wz.weight"), "no part of a Qwen3ForCausalLM: layers.*.attention.wz.weight"),
    ("qwen3", with_more("layers.0.moe.expert_bias"), "no part of a Qwen3ForCausalLM: layers.*.moe.expert_bias"),
    ("qwen3", with_more("layers.2.ffn_norm.weight"), "no part of a Qwen3ForCausalLM: layers.*.ffn_norm.weight"),
    ("llama", with_more("layers.0.attention.q_norm.weight"), "no part of a LlamaForCausalLM: model.layers.*.self_attn.q_norm.weight"),
], ids=["experts", "missing", "fused", "unknown", "bias of a dense model", "layer", "norm"])
def test_what_is_not_the_models_is_refused_by_name(model, change, words, states, tmp_path):
    write(tmp_path / "t", states[model], 1, GROUPS[1:], 5, change)
    r = run("tp-ckpt", "import", tmp_path / "t", "-o", tmp_path / "bad")
    assert r.rc in (2, 3) and words in r.err and not (tmp_path / "bad").exists(), repr(r)


def test_torchtitan_needs_a_model_that_it_has(f32, tmp_path):
    export(f32, tmp_path / "t", "torchtitan", "--no-optim")
    config = tmp_path / "t/config.json"
    text = json.loads(config.read_text())
    for changes, code, words in (({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}, 2, "only Llama and Qwen3"),
                                 ({"head_dim": 48}, 3, "not a multiple of config.json's head_dim 48")):
        config.write_text(json.dumps({**text, **changes}))
        r = run("tp-ckpt", "import", tmp_path / "t", "-o", tmp_path / "bad")
        assert r.rc == code and words in r.err, repr(r)
    config.unlink()
    r = run("tp-ckpt", "verify", tmp_path / "t")
    assert r.rc == 2 and "has no config.json" in r.err and "--config" in r.err, repr(r)
    assert not (tmp_path / "bad").exists()
