"""tp-train --device cuda, on the fake CUDA device of tests/fakecuda: the losses are the CPU's.

The fake device ends a run with exit 86 when kernels, events or collectives are wrong. A failing test prints its
seed; TP_SEED=n repeats it.

needs: tp-train libtp-cuda.so
covers: cli/train/train_cuda kernels/null/null comm/cuda/exports comm/cuda/nccl_transport
covers: comm/cuda/nccl_lane comm/cuda/nccl_failure trainer/model/expert_exchange
"""
import json
import math
import os
import random
import re
import shutil
import sys
import time

import h5py
import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "check"))
import compare_builds  # noqa: E402

LIBRARY = harness.built("libtp-cuda.so")
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}  # of losses; gradient norms: ten times as much
MORE = [("llama", "tp2cp2pp2", []), ("llama", "pp4", ["--micro", "1"]), ("llama", "cp4", []), ("gpt2", "cp3", []),
        ("llama", "cp2pp2dp2zero3", []), ("llama", "pp2vpp2dp2zero3", ["--micro", "1"])]
# Families that attend in a window, have norms of each head or after blocks, biases, GeGLU, caps of scores and logits,
# or a scaled rotary embedding.
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
MODELS = {**compare_builds.MODELS, **{name: {**compare_builds.LLAMA, **more} for name, more in FAMILIES.items()}}
MORE += [(name, layout, []) for name in FAMILIES if name not in EXPERTS for layout in ("tp2sp", "dp2zero3")]
MORE += [("mistral", "cp2", []), ("gemma3", "cp2", [])]
MORE += [(name, layout, options) for name in EXPERTS for layout, options in EXPERT_LAYOUTS]
MATRIX = [run for run in compare_builds.RUNS if "--same-bits" not in run[2]] + MORE
SEED = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
# The sizes are as small as the layouts, and attention on tensor cores, allow; the models of compare_builds take minutes
# here. Only tp8 needs eight heads.
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "n_embd": 16, "n_inner": 32, "n_head": 4, "vocab_size": 128}
EVERY = [(*run, dtype) for run in MATRIX for dtype in compare_builds.DTYPES]
SHORT = [("llama", "tp2", [], "fp32"), ("gemma2", "tp2", [], "fp32"), ("llama", "cp4", [], "bf16"),
         ("mixtral", "cp2ep2", [], "fp32"), ("gpt2", "tp1", [], "bf16"),
         random.Random(SEED).choice([run for run in EVERY if run[1] != "tp8"])]
SEQ = {"cp3": 12}


def on_fake(seed=SEED, **more):
    """The environment of 8 GPUs. An unset variable of the fake device is given as GPUS=n, ..."""
    env = {"TP_CUDA_LIBRARY": str(LIBRARY), "FAKECUDA_SEED": str(seed), "FAKECUDA_GPUS": "8"}
    return {**env, **{"FAKECUDA_" + name: str(value) for name, value in more.items()}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    compare_builds.write_inputs(folder)
    for name, config in MODELS.items():
        small = {key: value for key, value in SMALL.items() if key in config}
        if name == "one-kv":
            small["num_key_value_heads"] = 1
        if name == "wide" and harness.LONG:  # its gradients are in several buckets
            del small["intermediate_size"]
        (folder / (name + ".json")).write_text(json.dumps({**config, **small}))
        (folder / (name + "-tp8.json")).write_text(json.dumps(config))
    return folder


def arguments(inputs, out, model, layout, *options, steps=3 if harness.LONG else 2):
    config = inputs / (model + ("-tp8.json" if layout == "tp8" else ".json"))
    return ["tp-train", "--model", config, "--data", inputs / "text", "--quiet", "--layout", layout, "--steps", steps,
            "--warmup", "1", "--seq", SEQ.get(layout, 8), "--batch", 4, "--log", out / "log", *options]


def train(inputs, out, model, layout, *options, env=None, **more):
    """The losses and gradient norms of a run."""
    out.mkdir(exist_ok=True)
    r = harness.run(*arguments(inputs, out, model, layout, *options, **more), env=env)
    assert r.rc == 0, "seed %d: %r" % (SEED, r)
    return [(x["loss"], x["grad_norm"]) for x in harness.read_log(out / "log")]


def assert_close(got, want, dtype):
    assert len(got) == len(want)
    for (loss, norm), (loss0, norm0) in zip(got, want):
        assert math.isclose(loss, loss0, rel_tol=TOLERANCE[dtype]), (SEED, got, want)
        assert math.isclose(norm, norm0, rel_tol=10 * TOLERANCE[dtype]), (SEED, got, want)


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("number", range(len(EVERY if harness.LONG else SHORT)))
def test_losses_are_the_cpus(tmp_path, inputs, number):
    """Each case has a seed of its own, so that all of them together try many orders of the device's work."""
    model, layout, options, dtype = (EVERY if harness.LONG else SHORT)[number]
    run = model, layout, "--dtype", dtype, *options
    print(*run, "seed", SEED)
    want = train(inputs, tmp_path / "cpu", *run)
    got = train(inputs, tmp_path / "cuda", *run, "--device", "cuda", env=on_fake(SEED + number))
    assert_close(got, want, dtype)


@pytest.mark.parametrize("first,second", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_checkpoint_resumes_on_the_other_device(tmp_path, inputs, first, second):
    want = train(inputs, tmp_path / "whole", "llama", "tp2")
    save = ["--ckpt", tmp_path / "ckpt", *(["--ckpt-zstd=1"] if first == "cpu" else [])]
    r = harness.run(*arguments(inputs, tmp_path, "llama", "tp2"), "--exit-step", "1", "--device", first, *save,
                    env=on_fake())
    assert r.rc == 75, r
    train(inputs, tmp_path, "llama", "dp2zero1", "--device", second, "--resume=must", *save, env=on_fake(), steps=2)
    got = [(x["loss"], x["grad_norm"]) for x in harness.read_log(tmp_path / "log")]
    assert_close(got, want[:2], "fp32")


def test_damage_is_found_before_the_first_step(tmp_path, inputs):
    """A GPU sums what is read. The run begins from the step before, and continues as one on the CPU does."""
    root, logs = tmp_path / "ckpt", {}
    train(inputs, tmp_path / "first", "llama", "tp2", "--save-every", "1", "--ckpt", root, steps=2)
    shard = root / "step-00000002" / "rank-00001.h5"
    with h5py.File(shard) as f:
        offsets = []
        f["exp_avg"].visititems(lambda name, x: offsets.append(x.id.get_offset()) if isinstance(x, h5py.Dataset) else None)
    data = bytearray(shard.read_bytes())
    data[offsets[0]] ^= 1
    shard.write_bytes(data)
    for device in "cpu", "cuda":
        r = harness.run(*arguments(inputs, tmp_path, "llama", "dp2zero1", steps=3), "--device", device, "--resume", "--log",
                        tmp_path / device, "--ckpt", harness.copy(root, tmp_path / ("ckpt-" + device)), env=on_fake())
        assert r.rc == 0 and "CRC32C" in r.err and "step-00000001" in r.err, (SEED, r)
        logs[device] = [(x["step"], x["loss"], x["grad_norm"]) for x in harness.read_log(tmp_path / device)]
    assert [x[0] for x in logs["cuda"]] == [1, 2], (SEED, logs)
    assert_close([x[1:] for x in logs["cuda"]], [x[1:] for x in logs["cpu"]], "fp32")


# ---- what NCCL is asked to do ----

COUNTED = {**compare_builds.LLAMA, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "head_dim": 4,
           "num_key_value_heads": 2, "vocab_size": 256, "num_hidden_layers": 2}
H, F, L, KV, V = (COUNTED[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads",
                                           "vocab_size"))
P = L * (2 * H * H + 2 * KV * 4 * H + 3 * H * F + 2 * H) + H + 2 * V * H  # parameters
B, S, M = 1, 8, 2  # sequences of a microbatch, their tokens, microbatches
LAYER = (P - H - 2 * V * H) // L
# What all ranks together give to NCCL in a step: {call: (calls, elements)}, by the formulas of tests/unit/trainer_formulas.c. The
# f64 are the gradient norm (and dp's sums of the loss). DDP sums P in one bucket; ZeRO scatters P and gathers a rank's part of P. zero3
# gathers each FSDP unit (layers, embedding, head) in the forward pass, and the layers again in the backward pass. cp passes on
# keys and values twice, and their gradients once.
FORMULAS = {
    "tp2": {"ncclAllReduce f32": (2 * M * (4 * L + 4), 2 * M * ((4 * L + 2) * B * S * H + 3 * B * S))},
    "tp2sp": {"ncclAllReduce f32": (2 * (M * 2 + 1), 2 * (M * 3 * B * S + (2 * L + 1) * H)),
              "ncclAllGather f32": (2 * M * (6 * L + 3), M * (6 * L + 3) * B * S * H),
              "ncclReduceScatter f32": (2 * M * (4 * L + 2), M * (4 * L + 2) * B * S * H)},
    "dp2": {"ncclAllReduce f32": (2, 2 * P)},
    "dp2zero1": {"ncclReduceScatter f32": (2, P), "ncclAllGather bytes": (2, 4 * P)},
    "dp2zero3": {"ncclReduceScatter f32": (2 * M * (L + 2), M * P),
                 "ncclAllGather bytes": (2 * M * (2 * L + 2), 4 * M * (P + L * LAYER))},
    "cp2": {call: (2 * M * L * 3, 2 * M * L * 3 * B * (S // 2) * 2 * KV * 4) for call in ("ncclSend f32", "ncclRecv f32")},
    "pp2": {call: (2 * M, 2 * M * B * S * H) for call in ("ncclSend f32", "ncclRecv f32")},
}
FORMULAS["cp2"]["ncclAllReduce f32"] = (2, 2 * P)


def calls(path):
    """{"ncclAllReduce f32": (calls, elements)} of a file that the fake device has written."""
    sums = {}
    for line in path.read_text().splitlines():
        name, kind, elements, _ = line.split()
        n, total = sums.get(name + " " + kind, (0, 0))
        sums[name + " " + kind] = n + 1, total + int(elements)
    return sums


@pytest.mark.parametrize("layout", FORMULAS if harness.LONG else ["tp2sp", "dp2zero3"])
def test_nccl_is_given_what_the_formulas_say(tmp_path, inputs, layout):
    (inputs / "counted.json").write_text(json.dumps(COUNTED))
    seen = []
    for steps in (1, 2):
        path = tmp_path / str(steps)
        ranks = 2 if layout.startswith("dp") else 1
        train(inputs, tmp_path / "out", "counted", layout, "--dtype", "fp32", "--device", "cuda", "--micro", B, "--batch",
              B * M * ranks, steps=steps, env=on_fake(CALLS=path))
        seen.append(calls(path))
    step = {call: tuple(a - b for a, b in zip(both, seen[0].get(call, (0, 0))))
            for call, both in seen[1].items() if not call.endswith("f64")}
    assert {call: both for call, both in step.items() if any(both)} == FORMULAS[layout], (SEED, seen)


# ---- what a step costs the host ----

WAITS = [("llama", "tp2sp", []), ("llama", "pp2vpp2dp2zero1", ["--micro", "1"]), ("llama", "cp2dp2zero3", []),
         ("gpt2", "tp2", ["--recompute", "full"]), ("mixtral", "tp1", ["--micro", "2"])]


@pytest.mark.parametrize("number", range(len(WAITS)) if harness.LONG else [1, 4])
def test_a_step_allocates_nothing_and_the_host_waits_once(tmp_path, inputs, number):
    """What one step more adds to the calls of all ranks. Experts: once more for each layer and microbatch."""
    model, layout, options = WAITS[number]
    seen = []
    for steps in (2, 3):
        path = tmp_path / str(steps)
        train(inputs, tmp_path / "out", model, layout, *options, "--device", "cuda", steps=steps, env=on_fake(HOST_CALLS=path))
        ranks = [line.split()[:2] for line in path.read_text().splitlines()]
        seen.append(([call for _, call in ranks], len({process for process, _ in ranks})))
    (few, n_ranks), (more, _) = seen
    added = {call: more.count(call) - few.count(call) for call in more}
    layers = MODELS[model].get("num_hidden_layers", 0) if model in EXPERTS else 0
    microbatches = 4 // 2
    assert "cudaMalloc" in added and "cudaHostAlloc" in added, seen
    assert {call: n for call, n in added.items() if n} == {"cudaEventSynchronize": n_ranks + layers * microbatches}, (SEED, added)


# ---- what is refused ----

REFUSED = {
    "no library": (["--device", "cuda"], {"TP_CUDA_LIBRARY": "/nowhere/libtp-cuda.so"}, 2, "/nowhere/libtp-cuda.so"),
    "no driver": (["--device", "cuda"], on_fake(DRIVER=0), 2, "no NVIDIA driver"),
    "old driver": (["--device", "cuda"], on_fake(DRIVER=12040), 2, "supports CUDA 12.4, and 13.0 is needed"),
    "no GPU": (["--device", "cuda"], on_fake(GPUS=0), 2, "no GPU that this process may use"),
    "few GPUs": (["--device", "cuda", "--layout", "tp4"], on_fake(GPUS=3), 2,
                 "4 ranks are on this machine, which has 3 usable GPUs"),
    "little memory": (["--device", "cuda"], on_fake(MEMORY=100000), 3, "GPU 0 is out of memory"),
    "same bits": (["--device", "cuda", "--same-bits", "2"], on_fake(), 2, "--same-bits needs collectives"),
    "no such device": (["--device", "tpu"], {}, 2, "--device is cpu, cuda or auto, not 'tpu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_device_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, inputs, name):
    options, env, code, message = REFUSED[name]
    r = harness.run(*arguments(inputs, tmp_path, "llama", "tp2"), *options, "--ckpt", tmp_path / "ckpt", env=env)
    errors = [line for line in r.lines if line.startswith("tp-train: ") and message in line]
    assert (r.rc, len(errors)) == (code, 1), r
    assert not (tmp_path / "ckpt").exists()


def test_the_library_is_looked_for_beside_the_program_and_in_lib(tmp_path, inputs):
    """The program is copied, because `make cuda` puts the library into lib/."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    program = tmp_path / "bin" / "tp-train"
    shutil.copy(harness.BIN / "tp-train", program)
    argv = [program, *arguments(inputs, tmp_path, "llama", "tp1", steps=1)[1:], "--device", "cuda"]
    env = {**on_fake(DRIVER=0), "TP_CUDA_LIBRARY": ""}
    r = harness.run(*argv, env=env)
    assert r.rc == 2 and "there is no libtp-cuda.so beside this program, in ../lib or ../lib/tp from there" in r.err, r
    (tmp_path / "lib" / "tp").mkdir()
    for place in ("lib", "bin", "lib/tp"):
        library = tmp_path / place / "libtp-cuda.so"
        library.symlink_to(LIBRARY)
        r = harness.run(*argv, env=env)
        assert r.rc == 2 and "no NVIDIA driver" in r.err, r
        library.unlink()


@pytest.mark.parametrize("env,chosen", [(on_fake(), "device: cuda, because each rank has a GPU"),
                                        (on_fake(GPUS=1), "device: cpu, because of: .* has 1 usable GPU;"),
                                        (on_fake(DRIVER=0), "device: cpu, because of: .* no NVIDIA driver")])
def test_auto_says_what_it_chose_and_why(tmp_path, inputs, env, chosen):
    r = harness.ok(*arguments(inputs, tmp_path, "llama", "tp2", steps=1), "--device", "auto", env=env)
    assert sum(bool(re.search("tp-train: " + chosen, line)) for line in r.lines) == 1, r
