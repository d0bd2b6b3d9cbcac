"""Runs of tp-train on the fake CUDA device of tests/fakecuda and on the CPU: the models, the layouts, and how to compare."""
import json
import math
import os
import sys
import time

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "check"))
import compare_builds  # noqa: E402
from compare_builds import LLAMA  # noqa: E402

LIBRARY = harness.built("libtp-cuda.so")
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}  # of losses; gradient norms: ten times as much
MORE = [("llama", "tp2cp2pp2", []), ("llama", "pp4", ["--micro", "1"]), ("llama", "cp4", []), ("gpt2", "cp3", []),
        ("llama", "cp2pp2dp2zero3", []), ("llama", "pp2vpp2dp2zero3", ["--micro", "1"])]
# Families that attend in a window, have norms of each head or after blocks, biases, GeGLU, caps of scores and logits,
# a scaled rotary embedding, one of a part of a head, layers without one, fused tensors, factors, no norms before blocks, ReLU,
# or parallel blocks.
FAMILIES = {
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 6},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "gemma": {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh",
              "tie_word_embeddings": True},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 6, "query_pre_attn_scalar": 3,
               "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.5},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 6,
               "query_pre_attn_scalar": 3, "sliding_window_pattern": 2},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layer_interval": 2},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 6, "partial_rotary_factor": 0.5},
    "phi3-longrope": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "original_max_position_embeddings": 4,
                      "rope_scaling": {"type": "longrope", "short_factor": 4 * [1.5], "long_factor": [1.5, 2.0, 4.0, 5.0]}},
    "granite": {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "embedding_multiplier": 3.0,
                "attention_multiplier": 0.7, "residual_multiplier": 0.3, "logits_scaling": 0.4, "tie_word_embeddings": True,
                "attention_bias": True},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rms_norm_eps": 1e-3},
    "olmo3": {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 6, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "gpt-neox": {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.5,
                 "rotary_emb_base": 100},
    "opt": {"architectures": ["OPTForCausalLM"], "model_type": "opt", "ffn_dim": 160, "dropout": 0.0},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 32}},
}
# Mixtures of experts, also with the loss that balances them.
EXPERTS = {
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
                "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.05},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 6,
                  "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
}
EXPERT_LAYOUTS = [("tp2", []), ("ep2dp2", []), ("tp2spep2dp4", ["--micro", "1"]), ("pp2", ["--micro", "1"]),
                  ("pp2ep2dp2zero1", ["--micro", "1"]), ("cp2ep2", []), ("dp2zero3", []), ("cp2ep2dp2zero3", []),
                  ("ep2dp2", ["--recompute", "full"]), ("tp1", ["--recompute", "selective"])]
FAMILIES.update(EXPERTS)
MODELS = {**compare_builds.MODELS, **{name: {**LLAMA, **more} for name, more in FAMILIES.items()}}
MORE += [(name, layout, []) for name in FAMILIES if name not in EXPERTS for layout in ("tp2sp", "dp2zero3")]
MORE += [("mistral", "cp2", []), ("gemma3", "cp2", []), ("olmo2", "tp4", []), ("olmo2", "pp2", ["--recompute", "full"]), ("opt", "tp2", ["--recompute", "full"]),
         ("gpt-neox", "cp2pp2", ["--recompute", "selective"])]
MORE += [(name, layout, options) for name in EXPERTS for layout, options in EXPERT_LAYOUTS]
MATRIX = [run for run in compare_builds.RUNS if "--same-bits" not in run[2]] + MORE
SEED = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
# The sizes are as small as the layouts, and attention on tensor cores, allow; the models of compare_builds take minutes
# here. Only tp8 needs eight heads.
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "ffn_dim": 24, "n_embd": 16, "n_inner": 32, "n_head": 4, "vocab_size": 128}
EVERY = [(*run, dtype) for run in MATRIX for dtype in compare_builds.DTYPES]
SEQ = {"cp3": 12}


def on_fake(seed=SEED, **more):
    """The environment of 8 GPUs. An unset variable of the fake device is given as GPUS=n, ..."""
    env = {"TP_CUDA_LIBRARY": str(LIBRARY), "FAKECUDA_SEED": str(seed), "FAKECUDA_GPUS": "8"}
    return {**env, **{"FAKECUDA_" + name: str(value) for name, value in more.items()}}


def write_inputs(folder):
    """Write the text, and the configuration of each model at its small sizes."""
    compare_builds.write_inputs(folder)
    for name, config in MODELS.items():
        small = {key: value for key, value in SMALL.items() if key in config}
        if name == "one-kv":
            small["num_key_value_heads"] = 1
        if name == "wide" and harness.LONG:  # its gradients are in several buckets
            del small["intermediate_size"]
        (folder / (name + ".json")).write_text(json.dumps({**config, **small}))
        (folder / (name + "-tp8.json")).write_text(json.dumps(config))


def arguments(inputs, out, model, layout, *options, steps=3 if harness.LONG else 2):
    """The command line of a run of a few steps."""
    config = inputs / (model + ("-tp8.json" if layout == "tp8" else ".json"))
    return ["tp-train", "--model", config, "--data", inputs / "text", "--quiet", "--layout", layout, "--steps", steps,
            "--warmup", "1", "--seq", SEQ.get(layout, 8), "--batch", 4, "--log", out / "log", *options]


def train(inputs, out, model, layout, *options, env=None, launcher=(), **more):
    """The losses and gradient norms of a run. launcher: mpirun or srun with its options; without it tp-train starts the ranks."""
    out.mkdir(exist_ok=True)
    r = harness.run(*launcher, *arguments(inputs, out, model, layout, *options, **more), env=env)
    assert r.rc == 0, "seed %d: %r" % (SEED, r)
    return [(x["loss"], x["grad_norm"]) for x in harness.read_log(out / "log")]


def assert_close(got, want, dtype, seed=SEED):
    assert len(got) == len(want)
    for (loss, norm), (loss0, norm0) in zip(got, want):
        assert math.isclose(loss, loss0, rel_tol=TOLERANCE[dtype]), (seed, got, want)
        assert math.isclose(norm, norm0, rel_tol=10 * TOLERANCE[dtype]), (seed, got, want)
