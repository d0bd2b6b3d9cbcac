"""Families of models that tp-train trains have the oracle's curve: biases, scaled rotary embedding, a sliding
window, norms of each head's queries and keys, and mixtures of experts.

needs: tp-train tp-train-deferred tp-reshard tp-ckpt
covers: trainer/model/rotary_table trainer/model/head_norms layout/rope_scaling trainer/model/experts trainer/tensor/expert_linear
"""
import json
import os
import re
import time

import pytest

import curves
import harness
from curves import oracle
from harness import LONG, ok, run

FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())
BYTES = dict(vocab_size=256, hidden_size=32)
MODELS = {name: dict(FAMILIES[name]["config"], **BYTES) for name in (
    "llama-biases", "llama-linear", "llama-dynamic", "llama-yarn", "llama-llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3",
    "smollm3", "phi3", "granite", "olmo2", "olmo3", "opt", "gpt-neox", "mixtral",
    "qwen3-moe")}
for _name in ("llama-biases", "mistral", "qwen2"):
    MODELS[_name].update(tie_word_embeddings=_name == "mistral", head_dim=8)
MODELS["qwen3-moe"]["norm_topk_prob"] = True
# A window in some layers, caps and a scale that matter in models as small as these.
MODELS["gemma2"].update(sliding_window=8, query_pre_attn_scalar=3, attn_logit_softcapping=0.15,
                        final_logit_softcapping=0.7, num_hidden_layers=3,
                        layer_types=["sliding_attention", "full_attention", "sliding_attention"])
MODELS["gemma2-biases"] = dict(MODELS["gemma2"], attention_bias=True, layer_types=None)
MODELS["gemma3"].update(sliding_window=5, query_pre_attn_scalar=13, final_logit_softcapping=0.9,
                        layer_types=["full_attention", "sliding_attention"], rope_parameters=dict(
                            full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e6),
                            sliding_attention=dict(rope_type="default", rope_theta=100.0)))
# Every pair of a rotary embedding or none, and a window or none; and the layers that follow from a period.
MODELS["smollm3"].update(head_dim=8, no_rope_layers=[0, 1, 1, 0, 1], sliding_window=7, rope_parameters=dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=8, rope_theta=100.0),
    layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"])
MODELS["smollm3-period"] = {**{k: v for k, v in MODELS["smollm3"].items() if k not in (
    "no_rope_layers", "layer_types", "tie_word_embeddings")}, "no_rope_layer_interval": 3, "use_sliding_window": True,
    "attention_bias": True, "num_hidden_layers": 3}
MODELS["phi3"].update(sliding_window=9, num_hidden_layers=3, head_dim=10, rope_parameters=dict(
    rope_type="linear", factor=2.0, rope_theta=100.0, partial_rotary_factor=0.65))
# Sequences of 32 tokens are long ones, or short ones, or as long as the shorter of both kinds may be.
LONGROPE = dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.4, short_factor=[1.5, 1.0],
                long_factor=[2.5, 7.0])
MODELS["phi3-long"] = dict(MODELS["phi3"], sliding_window=None, original_max_position_embeddings=16, rope_parameters=LONGROPE)
MODELS["phi3-short"] = dict(MODELS["phi3-long"], original_max_position_embeddings=32, rope_parameters=dict(LONGROPE, factor=3.0))
MODELS["phi3-factors"] = dict(MODELS["phi3-long"], rope_parameters=dict(LONGROPE, attention_factor=1.7))
# An eps that matters, because the trainer divides it by the square of residual_multiplier.
MODELS["granite"].update(rms_norm_eps=1e-3, embedding_multiplier=3.0, attention_multiplier=0.7, residual_multiplier=0.3,
                         logits_scaling=0.4, num_hidden_layers=3)
MODELS["granite-biases"] = dict(MODELS["granite"], attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
MODELS["olmo2"].update(num_hidden_layers=3, head_dim=6, rms_norm_eps=1e-3)
MODELS["olmo2-biases"] = dict(MODELS["olmo2"], attention_bias=True, tie_word_embeddings=True)
MODELS["olmo3"].update(rms_norm_eps=1e-3, sliding_window=7, layer_types=None, rope_parameters=dict(
    full_attention=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=8),
    sliding_attention=dict(rope_type="default", rope_theta=50.0)))
MODELS["opt"].update(word_embed_proj_dim=32, num_hidden_layers=4, dropout=0.0, max_position_embeddings=32)
MODELS["opt-untied"] = dict(MODELS["opt"], tie_word_embeddings=False)
MODELS["gpt-neox"].update(hidden_size=48, num_hidden_layers=4, layer_norm_eps=1e-3, intermediate_size=40, rope_parameters=dict(
    rope_type="default", rope_theta=100.0, partial_rotary_factor=0.7))
MODELS["gpt-neox-sequential"] = dict(MODELS["gpt-neox"], use_parallel_residual=False, hidden_act="gelu_fast",
                                     tie_word_embeddings=True, attention_bias=False)
MODELS["mixtral-balanced"] = dict(MODELS["mixtral"], output_router_logits=True, router_aux_loss_coef=0.02,
                                  num_hidden_layers=4)
MODELS["qwen3-moe-balanced"] = dict(MODELS["qwen3-moe"], output_router_logits=True, router_aux_loss_coef=0.05,
                                    norm_topk_prob=False, num_local_experts=6, num_experts_per_tok=3)
OPTIONS = dict(batch=8, seq=32, lr=3e-3, steps=6)

# 8 heads and 4 key-value heads: at tp8 neighbours share them, but not those of a fused tensor. The number is --micro.
EVERYWHERE = [("tp1", 0), ("tp8", 4), ("tp2pp2dp2spzero1", 2), ("tp2dp2zero3", 2)]
LAYOUTS = {
    "llama-biases": EVERYWHERE + [("tp4sp", 0), ("pp2cp2", 4)],
    "qwen3": EVERYWHERE + [("tp4sp", 0), ("pp2cp2", 4)],
    "gemma": [("tp1", 0), ("tp4sp", 4), ("tp2pp2dp2zero3", 2)],
    "gemma2": [("tp1", 0), ("tp8", 4), ("tp2pp3dp2spzero1", 2), ("cp4", 0)],
    "gemma2-biases": [("tp4sp", 0), ("tp2dp2zero3", 2)],
    "gemma3": [("tp1", 0), ("tp4sp", 4), ("tp2pp2dp2zero3", 2), ("cp4", 4)],
    "smollm3": [("tp1", 0), ("tp4sp", 4), ("tp2pp2dp2zero3", 2), ("cp4", 4)],
    "smollm3-period": [("tp1", 0), ("tp2pp3dp2spzero1", 2)],
    "phi3": [("tp1", 0), ("tp4", 4), ("tp2pp3dp2spzero1", 2), ("tp2dp2zero3", 2), ("cp4", 2), ("pp3", 4), ("dp4zero1", 0)],
    "phi3-long": [("tp1", 0), ("tp2pp3dp2spzero1", 2), ("cp4", 2), ("tp2dp2zero3", 2)],
    "phi3-short": [("tp1", 0), ("cp2pp3", 2)],
    "phi3-factors": [("tp4", 0)],
    "granite": [("tp1", 0), ("tp8", 4), ("tp2pp3dp2spzero1", 2), ("cp4", 2), ("pp3", 4), ("tp2dp2zero3", 2)],
    "granite-biases": [("tp4sp", 0), ("pp3dp2zero3", 2), ("tp2dp2zero3", 2)],
    "olmo2": [("tp1", 0), ("tp4sp", 4), ("tp8", 4), ("tp2pp3dp2spzero1", 2), ("tp8dp2zero3", 2), ("cp4", 2), ("tp2cp2", 0),
              ("pp3", 4), ("dp4zero1", 0)],
    "olmo3": [("tp1", 0), ("tp4sp", 4), ("tp2pp2dp2spzero1", 2), ("tp2dp2zero3", 2), ("cp4", 4)],
    "olmo2-biases": [("tp1", 0), ("tp8sp", 4), ("tp2pp3", 2), ("dp2zero3", 2)],
    "opt": EVERYWHERE[:1] + [("tp8", 4), ("tp4sp", 4), ("tp2pp3dp2spzero1", 2), ("tp2dp2zero3", 2), ("cp4", 2), ("pp2vpp2dp2", 2), ("dp4zero1", 0)],
    "opt-untied": [("tp1", 0), ("tp2spcp2", 2), ("pp3dp2zero3", 2), ("tp2sppp3", 4)],
    "gpt-neox": [("tp1", 0), ("tp8sp", 4), ("tp2pp3dp2spzero1", 2), ("tp2dp2zero3", 2), ("cp4", 2), ("tp2cp2", 0),
                 ("pp2vpp2dp2", 2), ("dp4zero1", 0)],
    "gpt-neox-sequential": [("tp8", 4), ("tp2pp3", 2), ("dp2zero3", 2)],
    "mixtral": [("tp1", 0), ("tp2pp2dp2spzero1", 2), ("tp4", 0), ("pp2cp2", 4), ("ep2dp2", 4), ("tp2spep4dp4", 2),
                ("pp2ep2dp4zero1", 1), ("tp2pp2ep2dp4zero3", 2)],
    "mixtral-balanced": [("tp1", 0), ("pp2vpp2dp2", 2)],
    "qwen3-moe": [("tp1", 0), ("tp8", 4)],
    "qwen3-moe-balanced": [("tp1", 1), ("tp2spcp2", 2), ("tp2dp2zero3", 2), ("cp2ep2dp2zero1", 2), ("cp2ep2dp4zero3", 1),
                           ("ep2dp2zero3", 2)],
    "mistral": [("tp1", 0), ("tp4pp2", 4), ("cp4", 2), ("cp2pp2", 4)],
    "qwen2": [("tp2", 0), ("tp8dp2zero3", 2)],
    "llama-llama3": [("tp1", 0), ("tp2cp2", 0)],
    "llama-yarn": [("tp2pp2", 4)],
    "llama-linear": [("dp2", 0)],
    "llama-dynamic": [("tp2", 0)],
}
CASES = [(name, layout, micro, ()) for name, some in LAYOUTS.items() for layout, micro in some]
CASES += [(name, "tp2sp", 4, ("--recompute", how)) for name in ("llama-biases", "qwen3", "gemma2-biases", "gemma3", "smollm3", "phi3", "phi3-long", "granite",
                                                             "granite-biases", "olmo2", "olmo2-biases", "olmo3", "opt", "gpt-neox")
          for how in ("full", "selective")]
CASES += [("mixtral-balanced", "ep2dp2zero1", 2, ("--recompute", how)) for how in ("full", "selective")]
CASES += [(name, layout, micro, ()) for name in MODELS for layout, micro in EVERYWHERE
          if LONG and (layout, micro) not in LAYOUTS[name] and not (name.startswith("phi3") and layout == "tp8")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return curves.Reference(tmp_path_factory.mktemp("families"), MODELS, OPTIONS, 11)


@pytest.mark.parametrize("name,layout,micro,more", CASES)
def test_the_curve_is_the_oracles_at_every_layout(name, layout, micro, more, reference, tmp_path):
    more = [*more, "--micro", micro] if micro else list(more)
    _, log, trace = reference.train(name, layout, tmp_path / "log", *more)
    curves.assert_same(log, trace, "%s at %s" % (name, layout))


@pytest.mark.parametrize("name", ["llama-biases", "mistral", "qwen3", "gemma", "gemma2-biases", "gemma3",
                                  "smollm3", "phi3", "granite", "olmo2", "opt", "gpt-neox", "qwen3-moe-balanced"])
def test_bf16_is_near_the_oracle(name, reference, tmp_path):
    _, log, trace = reference.train(name, "tp2", tmp_path / "log", "--dtype", "bf16")
    assert oracle.deviation(log, trace)[0] <= 2e-2


@pytest.mark.parametrize("name,layouts", [("llama-biases", ("tp1", "tp8", "tp2pp2dp2")), ("gemma", ("tp1", "tp8sp")),
                                          ("gemma2-biases", ("tp2pp3", "tp8sp")), ("gemma3", ("tp1", "tp2sp")),
                                          ("smollm3", ("tp1", "tp4pp2sp")),
                                          ("phi3", ("tp1", "tp2sp", "tp4pp3", "tp2dp2zero3")),
                                          ("phi3-long", ("tp1", "tp2pp3sp")),
                                          ("granite", ("tp1", "tp4pp3", "tp8sp")),
                                          ("olmo2", ("tp1", "tp2pp3", "tp8sp", "tp4spdp2zero3")),
                                          ("olmo3", ("tp1", "tp4pp2sp")),
                                          ("gpt-neox", ("tp1", "tp2pp3", "tp8sp", "tp4spdp2zero3")),
                                          ("olmo2-biases", ("tp4", "tp2spdp2zero1")),
                                          ("opt", ("tp1", "tp2sp", "tp4pp3", "tp8dp2zero3", "tp2spdp2zero1")),
                                          ("granite-biases", ("tp2pp3", "tp4spdp2zero3")),
                                          ("qwen3", ("tp8", "tp1", "tp4spdp2", "tp2pp2dp2zero3"))])
def test_same_bits_at_every_layout(name, layouts, reference, tmp_path):
    logs, shards = [], 4 if name.startswith("phi3") else 8  # key-value heads of a fused tensor are not shared
    for i, layout in enumerate(layouts):
        _, log, trace = reference.train(name, layout, tmp_path / str(i), "--same-bits", shards, "--micro", 4)
        # Rounding in f32 depends on the processor's vector units: with AVX2 alone a norm of Gemma 3 is off by 2.01e-6.
        curves.assert_same(log, trace, layout, 4e-6 if name == "gemma3" else curves.NORM_WITHIN)
        logs.append([(x["loss"], x["grad_norm"]) for x in log])
    assert all(log == logs[0] for log in logs)


@pytest.mark.parametrize("name,first,then", [("mixtral", "tp4sp", "dp2zero3"), ("qwen3-moe-balanced", "tp2pp2zero1", "tp1pp1cp2ep2zero0"),
                                             ("phi3", "tp4dp2zero1", "pp3dp2zero3"), ("phi3-long", "tp2cp2", "pp3dp2zero3"),
                                             ("granite", "tp2cp2", "pp3dp2zero1"), ("opt", "tp4dp2spzero1", "cp2dp2zero3"), ("olmo2", "tp8", "tp2pp3spzero1"),
                                             ("gpt-neox", "tp8zero1", "tp2pp3dp2zero3"), ("mixtral", "ep2dp4zero1", "tp2ep2dp2"), ("mixtral", "pp2ep2dp2", "tp4pp1ep1dp1"),
                                             ("mixtral", "tp2ep2dp4zero3", "pp2ep4dp4zero1"), ("mixtral", "tp2", "tp1cp2ep4dp4zero3")])
def test_a_run_continues_at_another_layout(name, first, then, reference, tmp_path):
    """Once after tp-reshard, once directly."""
    options = ["--ckpt", tmp_path / "ckpt", "--micro", 2]
    r = run(*reference.argv(name, first, tmp_path / "log", *options, "--exit-step", 3))
    assert r.rc == 75, repr(r)
    ok("tp-reshard", tmp_path / "ckpt", "--to", then, "-o", tmp_path / "resharded")
    for root in ("ckpt", "resharded"):
        log = tmp_path / (root + ".log")
        log.write_bytes((tmp_path / "log").read_bytes())
        ok(*reference.argv(name, then, log, "--ckpt", tmp_path / root, "--micro", 2, "--resume=must"))
        curves.assert_same(harness.read_log(log), reference.trace(name), root)


def test_factors_that_change_are_reported(reference, tmp_path):
    ok(*reference.argv("granite", "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 1))
    (tmp_path / "other").mkdir()
    changes = dict(embedding_multiplier=4.0, attention_multiplier=0.5, residual_multiplier=1.0, logits_scaling=2.0)
    (tmp_path / "other/config.json").write_text(json.dumps(dict(MODELS["granite"], **changes)))
    argv = reference.argv("granite", "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 2, "--resume=must",
                          model=tmp_path / "other")
    err = ok(*argv).err
    for key, now in changes.items():
        assert "%s was %g, now %g" % (key, MODELS["granite"][key], now) in err


@pytest.mark.parametrize("name,key", [("granite", "attention_dropout"), ("opt", "dropout")])
def test_a_dropout_that_is_not_computed_is_announced(name, key, reference, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({**MODELS[name], key: 0.1}))
    err = ok(*reference.argv(name, "tp1", tmp_path / "log", "--steps", 1, model=tmp_path / "model/config.json")).err
    assert "dropout 0.1, but tp-train has no dropout" in err


def test_layers_that_change_are_reported(reference, tmp_path):
    ok(*reference.argv("smollm3", "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(dict(
        MODELS["smollm3"], no_rope_layers=[0, 1, 0, 0], layer_types=4 * ["full_attention"])))
    argv = reference.argv("smollm3", "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 2, "--resume=must",
                          model=tmp_path / "other")
    err = ok(*argv).err
    assert "the rotary embedding of layer 2 was on, now off" in err and "the sliding window of layer 1 was on, now off" in err


ROPE_CHANGES = [
    ("phi3-long", dict(original_max_position_embeddings=8), dict(long_factor=[2.5, 4.0]),
     ["original_max_position_embeddings was 16, now 8", "number 1 of long_factor was 7, now 4"], "short_factor"),
    ("llama-llama3", {}, dict(high_freq_factor=3.0), ["high_freq_factor was 4, now 3"], "low_freq_factor"),
    ("llama-yarn", {}, dict(beta_fast=16, mscale=2.0, mscale_all_dim=1.0),
     ["beta_fast was 32, now 16", "the factor of cos and sin was 1.13862944, now 1.12175114"], "beta_slow"),
]


@pytest.mark.parametrize("name,changes,rope,words,same", ROPE_CHANGES, ids=[c[0] for c in ROPE_CHANGES])
def test_a_scaled_rotary_embedding_that_changes_is_reported(name, changes, rope, words, same, reference, tmp_path):
    ok(*reference.argv(name, "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(dict(
        MODELS[name], **changes, rope_parameters=dict(MODELS[name]["rope_parameters"], **rope))))
    argv = reference.argv(name, "tp1", tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--steps", 2, "--resume=must",
                          model=tmp_path / "other")
    err = ok(*argv).err
    assert all(w in err for w in words) and same not in err, err


def test_the_rotary_embedding_of_early_files_of_phi_3_is_longrope(reference, tmp_path):
    old = {k: v for k, v in MODELS["phi3-long"].items() if k != "rope_parameters"}
    rope = MODELS["phi3-long"]["rope_parameters"]
    old.update({k: rope[k] for k in ("rope_theta", "partial_rotary_factor")},
               rope_scaling=dict(type="su", short_factor=rope["short_factor"], long_factor=rope["long_factor"]))
    oracle.save_model(tmp_path / "old", old, reference.weights("phi3-long"))
    ok(*reference.argv("phi3-long", "tp1", tmp_path / "log", model=tmp_path / "old"))
    curves.assert_same(harness.read_log(tmp_path / "log"), reference.trace("phi3-long"), "su")


def test_old_files_of_olmo_3_scale_the_layers_without_a_window_alone(reference, tmp_path):
    """They have one theta, and scaling that the layers with a window do not have."""
    rope = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)
    old = {k: v for k, v in MODELS["olmo3"].items() if k != "rope_parameters"}
    new = dict(old, rope_parameters=dict(full_attention=dict(rope, rope_theta=100.0),
                                         sliding_attention=dict(rope_type="default", rope_theta=100.0)))
    logs = []
    for i, config in enumerate((dict(old, rope_theta=100.0, rope_scaling=rope), new)):
        oracle.save_model(tmp_path / str(i), config, reference.weights("olmo3"))
        ok(*reference.argv("olmo3", "tp1", tmp_path / ("log%d" % i), "--steps", 2, model=tmp_path / str(i)))
        logs.append([(x["loss"], x["grad_norm"]) for x in harness.read_log(tmp_path / ("log%d" % i))])
    assert logs[0] == logs[1]


@pytest.mark.parametrize("layout", ["ep2dp2", "cp2ep2dp2zero3"])
def test_experts_on_several_ranks_become_a_dcp_checkpoint(layout, reference, tmp_path):
    ok(*reference.argv("mixtral", layout, tmp_path / "log", "--ckpt", tmp_path / "ckpt", "--micro", 2, "--steps", 1))
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "dcp", "-o", tmp_path / "dcp")
    ok("tp-ckpt", "import", tmp_path / "dcp", "--layout", "tp2", "-o", tmp_path / "back")
    ok("tp-ckpt", "diff", tmp_path / "ckpt", tmp_path / "back")


@pytest.mark.parametrize("name,layout", [("llama-biases", "tp2sp"), ("qwen3", "tp2dp2zero3"), ("llama-yarn", "cp2"),
                                         ("gemma", "tp2pp2"), ("gemma2-biases", "tp2sp"), ("gemma3", "tp2pp2"), ("mistral", "cp4"), ("phi3", "tp2dp2zero3"), ("granite-biases", "tp2pp3"), ("olmo2", "tp2sp"), ("opt", "tp2pp3sp"), ("gpt-neox", "tp2pp3"),
                                         ("mixtral-balanced", "tp2pp2"),
                                         ("qwen3-moe-balanced", "dp2zero3"), ("mixtral", "tp2ep2dp2"),
                                         ("mixtral", "cp2ep2dp4zero3")])
def test_a_late_device_has_the_same_bits(name, layout, reference, tmp_path):
    """As in test_deferred.py: queued work runs late and in a random order."""
    argv = reference.argv(name, layout, tmp_path / "log", "--micro", 2, "--logits", tmp_path / "logits")
    harness.ok(*argv)
    seed = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
    argv = reference.argv(name, layout, tmp_path / "late.log", "--micro", 2, "--logits", tmp_path / "late")
    r = run(harness.built("tp-train-deferred"), *argv[1:], env={"TP_DEFERRED_SEED": str(seed)})
    assert r.rc == 0, "TP_SEED=%d: %r" % (seed, r)
    logs = [[(x["loss"], x["grad_norm"]) for x in harness.read_log(tmp_path / log)]
            for log in ("log", "late.log")]
    assert logs[0] == logs[1], "TP_SEED=%d" % seed
    assert (tmp_path / "logits").read_bytes() == (tmp_path / "late").read_bytes(), "TP_SEED=%d" % seed


@pytest.mark.parametrize("name", ["llama-biases", "llama-yarn", "llama-llama3", "mistral", "qwen3", "gemma", "gemma2", "gemma3",
                                  "smollm3", "phi3", "phi3-factors", "granite-biases", "olmo2-biases", "opt", "opt-untied", "gpt-neox", "gpt-neox-sequential", "mixtral-balanced",
                                  "qwen3-moe", "qwen3-moe-balanced"])
def test_the_oracles_gradients_are_slopes(name):
    config = dict(MODELS[name], num_hidden_layers=1, sliding_window=3)
    if "layer_types" in config:
        config["layer_types"] = ["sliding_attention"]
    curves.assert_gradient_is_slope(oracle.model_class(config), config, 3)


def replicated(plan, what):
    """The text of a plan with each linear layer whose role begins with `what` whole on every rank."""
    return re.sub(r"((?:%s)\.\w+(?:\.bias)? .*?) (column|row)\b.*" % what, r"\1 replicated", plan)


@pytest.mark.parametrize("name,n", [("phi3", 4), ("gpt-neox", 6)])
def test_a_plan_that_cuts_no_fused_tensor_has_the_oracles_curve(name, n, reference, tmp_path):
    plan = harness.ok("tp-train", "--model", reference.model(name), "--print-plan").out
    (tmp_path / "plan").write_text(replicated(plan, "attention|mlp"))
    assert (tmp_path / "plan").read_text().count("replicated") == n
    _, log, trace = reference.train(name, "tp2dp2zero3", tmp_path / "log", "--plan", tmp_path / "plan")
    curves.assert_same(log, trace, "a plan of its own")


@pytest.mark.parametrize("name,layout,more,words", [
    ("mixtral", "tp2", ["--same-bits", 2], "products"),
    ("phi3", "tp1", ["--same-bits", 8], "4 key-value heads do not divide among them; --same-bits 4 would work"),
    ("phi3", "tp8", [], "are not divisible by tp 8"),
    ("qwen3", "tp2", ["--plan", "attention"], "plan that cuts attention"),
    ("olmo2", "tp2", ["--plan", "attention"], "plan that cuts them and attention"),
    ("mixtral", "tp2", ["--plan", "expert"], "plan that cuts the experts"),
    ("mixtral", "ep3dp3", [], "4 experts are not divisible by ep 3"),
    ("mixtral", "ep4dp2", [], "ep 4 does not divide the 2 ranks"), ("mistral", "ep2dp2", [], "ep needs a mixture of experts")])
def test_what_does_not_fit_is_refused(name, layout, more, words, reference, tmp_path):
    if more[0:1] == ["--plan"]:
        plan = harness.ok("tp-train", "--model", reference.model(name), "--print-plan").out
        (tmp_path / "plan").write_text(replicated(plan, more[1]))
        more = ["--plan", tmp_path / "plan"]
    r = run(*reference.argv(name, layout, tmp_path / "log", *more))
    assert r.rc == 2 and words in r.err and len(r.lines) == 1, repr(r)
