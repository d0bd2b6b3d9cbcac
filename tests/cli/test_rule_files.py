"""The rules of examples/rules: models with the names, and the dimensions of heads, of the published ones.

needs: tp-ckpt tp-reshard
covers: reshard/ruled_tensors layout/cut_rules
"""
import json
import pathlib
import re
import sys

import numpy as np
import pytest

import harness
from harness import ok, run
from rank_parts import rank_parts, read_shard

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
sys.path.insert(0, str(harness.REPO / "python"))
import oracle_numpy  # noqa: E402
from tp_checkpoint.cuts import RuledCuts  # noqa: E402

RULES = harness.REPO / "examples/rules"
HIDDEN, HEADS, EXPERTS, VOCABULARY = 24, 4, 4, 37


def linear(name, *shape, bias=False):
    return {name + ".weight": shape, **({name + ".bias": shape[:1]} if bias else {})}


def mlp(name, width):
    return {**linear(name + ".gate_proj", width, HIDDEN), **linear(name + ".up_proj", width, HIDDEN),
            **linear(name + ".down_proj", HIDDEN, width)}


def norms(name):
    return {name + ".input_layernorm.weight": (HIDDEN,), name + ".post_attention_layernorm.weight": (HIDDEN,)}


def experts(name, shared, correction=False):
    found = {name + ".gate.weight": (EXPERTS, HIDDEN), **mlp("%s.%s" % (name, shared), 16)}
    for i in range(EXPERTS):
        found.update(mlp("%s.experts.%d" % (name, i), 8))
    return {**found, **({name + ".gate.e_score_correction_bias": (EXPERTS,)} if correction else {})}


def extra_layer(name):
    """Multi-token prediction of DeepSeek-V3 and GLM-4.5."""
    return {name + ".embed_tokens.weight": (VOCABULARY, HIDDEN), name + ".enorm.weight": (HIDDEN,), name + ".hnorm.weight": (HIDDEN,),
            name + ".eh_proj.weight": (HIDDEN, 2 * HIDDEN), name + ".shared_head.norm.weight": (HIDDEN,),
            name + ".shared_head.head.weight": (VOCABULARY, HIDDEN)}


def ends(shapes):
    return {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **shapes, "model.norm.weight": (HIDDEN,),
            "lm_head.weight": (VOCABULARY, HIDDEN)}


def deepseek(is_v2_lite=False):
    found = {}
    for i in range(3):
        at = "model.layers.%d" % i
        attention = at + ".self_attn"
        found.update(norms(at))
        if is_v2_lite:
            found.update(linear(attention + ".q_proj", HEADS * 192, HIDDEN))
        else:
            found.update({**linear(attention + ".q_a_proj", 12, HIDDEN), attention + ".q_a_layernorm.weight": (12,),
                          **linear(attention + ".q_b_proj", HEADS * 192, 12)})
        found.update({**linear(attention + ".kv_a_proj_with_mqa", 8 + 64, HIDDEN), attention + ".kv_a_layernorm.weight": (8,),
                      **linear(attention + ".kv_b_proj", HEADS * 256, 8), **linear(attention + ".o_proj", HIDDEN, HEADS * 128)})
        found.update(experts(at + ".mlp", "shared_experts", not is_v2_lite) if i else mlp(at + ".mlp", 40))
    return ends({**found, **({} if is_v2_lite else extra_layer("model.layers.2"))})


def glm(is_air=False):
    found = {}
    for i in range(3):
        at = "model.layers.%d" % i
        found.update(norms(at))
        for name, heads in (("q_proj", HEADS), ("k_proj", 2), ("v_proj", 2)):
            found.update(linear("%s.self_attn.%s" % (at, name), heads * 128, HIDDEN, bias=True))
        found.update(linear(at + ".self_attn.o_proj", HIDDEN, HEADS * 128))
        if not is_air:
            found.update({at + ".self_attn.q_norm.weight": (128,), at + ".self_attn.k_norm.weight": (128,)})
        found.update(experts(at + ".mlp", "shared_experts", True) if i else mlp(at + ".mlp", 40))
    return ends({**found, **extra_layer("model.layers.2")})


def gpt_oss():
    found = {}
    for i in range(2):
        at = "model.layers.%d" % i
        found.update(norms(at))
        for name, heads in (("q_proj", HEADS), ("k_proj", 2), ("v_proj", 2)):
            found.update(linear("%s.self_attn.%s" % (at, name), heads * 64, HIDDEN, bias=True))
        found.update({at + ".self_attn.o_proj.weight": (HIDDEN, HEADS * 64), at + ".self_attn.o_proj.bias": (HIDDEN,),
                      at + ".self_attn.sinks": (HEADS,), **linear(at + ".mlp.router", EXPERTS, HIDDEN, bias=True)})
        at += ".mlp.experts."
        found.update({at + "gate_up_proj": (EXPERTS, HIDDEN, 24), at + "gate_up_proj_bias": (EXPERTS, 24),
                      at + "down_proj": (EXPERTS, 12, HIDDEN), at + "down_proj_bias": (EXPERTS, HIDDEN)})
    return ends(found)


def gated_attention(name):
    found = {name + ".q_norm.weight": (256,), name + ".k_norm.weight": (256,), **linear(name + ".o_proj", HIDDEN, HEADS * 256)}
    for part, heads in (("q_proj", 2 * HEADS), ("k_proj", 2), ("v_proj", 2)):
        found.update(linear("%s.%s" % (name, part), heads * 256, HIDDEN))
    return found


def qwen3_next():
    """A delta net of 4 key heads and 8 value heads, gated attention, and multi-token prediction."""
    found, at = {}, "model.layers.0.linear_attn"
    found.update({**linear(at + ".in_proj_qkvz", 4 * 768, HIDDEN), **linear(at + ".in_proj_ba", 4 * 4, HIDDEN), at + ".A_log": (8,),
                  at + ".dt_bias": (8,), at + ".norm.weight": (128,), **linear(at + ".out_proj", HIDDEN, 8 * 128),
                  at + ".conv1d.weight": (2048, 1, 4), **gated_attention("model.layers.1.self_attn")})
    for at in ("model.layers.0", "model.layers.1", "mtp.layers.0"):
        found.update({**norms(at), **experts(at + ".mlp", "shared_expert"), at + ".mlp.shared_expert_gate.weight": (1, HIDDEN)})
    return {**ends(found), **gated_attention("mtp.layers.0.self_attn"), "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
            "mtp.norm.weight": (HIDDEN,), "mtp.pre_fc_norm_embedding.weight": (HIDDEN,), "mtp.pre_fc_norm_hidden.weight": (HIDDEN,)}


# Name: the file of rules, the architecture, the shapes, and the lines that are of other models of this file.
MODELS = {
    "deepseek_v3": ("deepseek_v3", "DeepseekV3ForCausalLM", deepseek(), r"self_attn\.q_proj|\.bias$|inv_freq"),
    "deepseek_v2_lite": ("deepseek_v3", "DeepseekV2ForCausalLM", deepseek(True), r"q_[ab]_|\.bias$|inv_freq|correction|enorm|hnorm"
                         r"|eh_proj|shared_head|layers\.\*\.embed"),
    "glm4_moe": ("glm4_moe", "Glm4MoeForCausalLM", glm(), "$^"),
    "glm4_moe_air": ("glm4_moe", "Glm4MoeForCausalLM", glm(True), "[qk]_norm"),
    "gpt_oss": ("gpt_oss", "GptOssForCausalLM", gpt_oss(), "$^"),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM", qwen3_next(), r"mlp\.(gate|up|down)_proj"),
}


def units(axis, size, share=False):
    """The part of a rank when units of `size` elements stay together, by the numbers of units alone."""
    def part(whole, rank, tp):
        n = whole.shape[axis] // size
        mine = [rank * n // tp] if share and n < tp else range(rank * n // tp, (rank + 1) * n // tp)
        return np.concatenate([np.take(whole, range(u * size, (u + 1) * size), axis) for u in mine], axis)
    return part


def alternating(axis):
    """Gate and up alternate: a rank has its gates, and the ups beside them."""
    def part(whole, rank, tp):
        gate, up = (units(axis, 1)(np.take(whole, range(i, whole.shape[axis], 2), axis), rank, tp) for i in (0, 1))
        return np.stack([gate, up], axis + 1).reshape(*gate.shape[:axis], -1, *gate.shape[axis + 1:])
    return part


def rows_of_ranks(whole, rank, tp):
    each = -(-len(whole) // tp)
    return whole[rank * each:(rank + 1) * each]


# What a rank has of tensors, by the ends of names; of all others it has everything.
CUT = [(r"(embed_tokens|lm_head|shared_head\.head)\.weight", rows_of_ranks),
       (r"(gate|up)_proj\.weight", units(0, 1)), (r"mlp.*down_proj\.weight", units(1, 1))]
CUTS = {
    "deepseek_v3": CUT + [(r"q_(b_)?proj\.weight", units(0, 192)), (r"kv_b_proj\.weight", units(0, 256)), (r"o_proj\.weight", units(1, 128))],
    "glm4_moe": CUT + [(r"q_proj\.(weight|bias)", units(0, 128)), (r"[kv]_proj\.(weight|bias)", units(0, 128, share=True)),
                       (r"o_proj\.weight", units(1, 128))],
    "gpt_oss": CUT + [(r"q_proj\.(weight|bias)", units(0, 64)), (r"[kv]_proj\.(weight|bias)", units(0, 64, share=True)),
                      (r"o_proj\.weight", units(1, 64)), (r"sinks", units(0, 1)), (r"gate_up_proj", alternating(2)),
                      (r"gate_up_proj_bias", alternating(1)), (r"experts\.down_proj", units(1, 1))],
    "qwen3_next": CUT + [(r"q_proj\.weight", units(0, 2 * 256)), (r"[kv]_proj\.weight", units(0, 256, share=True)),
                         (r"o_proj\.weight", units(1, 256)), (r"in_proj_qkvz\.weight", units(0, 128 + 128 + 256 + 256)),
                         (r"in_proj_ba\.weight", units(0, 2 + 2)), (r"A_log|dt_bias", units(0, 2)), (r"out_proj\.weight", units(1, 2 * 128))],
}


class Model:
    """A model in a folder, and its rules."""

    def __init__(self, name, folder):
        self.kind, architecture, shapes, self.without = MODELS[name]
        self.rules, self.config = RULES / (self.kind + ".rules"), {"architectures": [architecture], "model_type": name}
        rng = np.random.Generator(np.random.Philox(7))
        self.weights = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes.items()}
        self.folder = oracle_numpy.save_model(folder, self.config, self.weights)


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    return Model(request.param, tmp_path / "model")


def import_(model, layout, out):
    ok("tp-ckpt", "import", model.folder, "--rules", model.rules, "--layout", layout, "-o", out)
    return harness.steps(out)[-1]


@pytest.mark.parametrize("tp", [2, 4])
def test_each_rank_has_its_heads_and_features(tp, model, tmp_path):
    """Of all tensors, also those that are cut at 4 ranks although there are two key-value heads."""
    cuts = CUTS[model.kind]
    for rank, parts in enumerate(rank_parts(import_(model, "tp%d" % tp, tmp_path / "ckpt"), tp)):
        assert sorted(parts) == sorted(model.weights)
        for name, whole in model.weights.items():
            found = [part for end, part in cuts if re.search(r"(^|\.)(%s)$" % end, name)]
            assert len(found) <= 1, name
            want = found[0](whole, rank, tp) if found else whole
            assert np.array_equal(parts[name], want), (rank, name, parts[name].shape, want.shape)


def test_what_is_resharded_and_exported_is_the_model(model, tmp_path):
    import_(model, "tp2pp2", tmp_path / "ckpt")
    to = "tp4pp1dp2" if model.kind == "gpt_oss" else "tp1pp2dp2ep2"
    ok("tp-reshard", tmp_path / "ckpt", "--to", to, "-o", tmp_path / "new")
    ok("tp-ckpt", "verify", tmp_path / "new")
    ok("tp-ckpt", "export", tmp_path / "new", "--format", "safetensors", "-o", tmp_path / "hf")
    got = oracle_numpy.load_safetensors(tmp_path / "hf/model.safetensors")
    assert sorted(got) == sorted(model.weights) and all(np.array_equal(got[k], model.weights[k]) for k in got)
    assert json.loads((tmp_path / "hf/config.json").read_text()).items() >= model.config.items()


def test_each_line_is_of_some_tensor(model, tmp_path):
    """But those of other models of the same architecture, which are optional."""
    for words in filter(None, (line.split("#")[0].split() for line in model.rules.read_text().splitlines())):
        pattern = re.compile("[0-9]+".join(map(re.escape, words[0].split("*"))) + "$")
        used = any(pattern.match(name) for name in model.weights)
        assert used != bool(re.search(model.without, words[0])), words
        assert used or "optional" in words, words


def test_experts_are_dealt_and_the_end_is_on_the_last_stage(model, tmp_path):
    if model.kind == "gpt_oss":
        r = run("tp-ckpt", "import", model.folder, "--rules", model.rules, "--layout", "dp2ep2", "-o", tmp_path / "ckpt")
        assert r.rc == 2 and "ep needs a mixture of experts with a tensor for each expert" in r.err, repr(r)
        return
    step = import_(model, "tp2pp2dp2ep2", tmp_path / "ckpt")
    halves, stages = set(), {}
    for path in sorted(step.glob("rank-*.h5")):
        names = list(read_shard(path))
        half = {int(e) * 2 // EXPERTS for name in names for e in re.findall(r"experts\.(\d+)\.", name)}
        assert len(half) <= 1, path
        halves |= half
        for name in names:
            stages.setdefault(name, set()).add(int(path.stem[5:]) // 4)
    assert halves == {0, 1}
    assert stages["model.embed_tokens.weight"] == {0} and stages["lm_head.weight"] == {1}
    for name, found in stages.items():
        assert not name.startswith(("mtp", "model.layers.2")) or found == {1}, name


def test_the_python_package_reads_the_same_rules(model, tmp_path):
    manifest = json.loads((import_(model, "tp2", tmp_path / "ckpt") / "manifest.json").read_text())
    cuts = RuledCuts(model.rules.read_text(), list(model.weights))
    for t in manifest["tensors"]:
        assert (cuts.rule(t["name"]), cuts.layer(t["name"])) == (t["rule"], t["layer"]), t["name"]


def test_every_file_is_tested_and_is_in_the_documentation():
    files = {path.stem for path in RULES.iterdir()}
    assert files == set(CUTS) == {rules for rules, _, _, _ in MODELS.values()}
    text = pathlib.Path(harness.REPO / "docs/MODELS.md").read_text()
    assert all("examples/rules/%s.rules" % name in text for name in files)
