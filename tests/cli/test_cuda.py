"""tp-train --device cuda, on the fake CUDA device of tests/fakecuda: the losses are the CPU's.

The fake device ends a run with exit 86 when kernels, events or collectives are wrong. A failing test prints its
seed; TP_SEED=n repeats it.

needs: tp-train libtp-cuda.so
covers: cli/train/train_cuda kernels/null/null comm/cuda/exports comm/cuda/nccl_transport
covers: comm/cuda/nccl_lane comm/cuda/nccl_exchange comm/cuda/nccl_failure trainer/model/expert_exchange
"""
import json
import math
import random
import re
import shutil

import h5py
import pytest

import cuda_runs
import harness
from curves import oracle
from cuda_runs import EVERY, EXPERTS, LIBRARY, LLAMA, MODELS, SEED, arguments, assert_close, on_fake, train

# Some of the matrix of test_cuda_matrix.py.
SHORT = [("llama", "tp2", [], "fp32"), ("gemma2", "tp2", [], "fp32"), ("llama", "cp4", [], "bf16"),
         ("mixtral", "cp2ep2", [], "fp32"), ("gpt2", "tp1", [], "bf16"),
         random.Random(SEED).choice([run for run in EVERY if run[1] != "tp8"])]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    cuda_runs.write_inputs(folder)
    return folder


@pytest.mark.sanitized(3)
@pytest.mark.parametrize("number", range(len(SHORT)))
def test_losses_are_the_cpus(tmp_path, inputs, number):
    """Each case has a seed of its own, so that all of them together try many orders of the device's work."""
    model, layout, options, dtype = SHORT[number]
    run = model, layout, "--dtype", dtype, *options
    print(*run, "seed", SEED)
    want = train(inputs, tmp_path / "cpu", *run)
    got = train(inputs, tmp_path / "cuda", *run, "--device", "cuda", env=on_fake(SEED + number))
    assert_close(got, want, dtype)


def test_a_save_whose_copies_fail_is_not_committed(tmp_path, inputs):
    """The GPU fails in one of the last operations, which copy what the last step saves. The host may notice it when it asks
    whether they have ended, or when it waits for them."""
    operations = tmp_path / "operations"
    save = "--device", "cuda", "--ckpt", tmp_path / "ckpt", "--save-every", "1"
    train(inputs, tmp_path, "llama", "tp1", *save, env=on_fake(OPERATIONS=operations), steps=1)
    kinds = [line.split(maxsplit=4)[4] for line in operations.read_text().splitlines()]
    assert kinds[-1] == "copy"
    for i in range(8):
        shutil.rmtree(tmp_path / "ckpt")
        r = harness.run(*arguments(inputs, tmp_path, "llama", "tp1", *save, steps=1),
                        env=on_fake(SEED + i, FAIL="0 719 %d" % (len(kinds) - 1 - i % 3)))
        assert r.rc == 3 and "GPU 0: " in r.lines[-1] and "unspecified launch failure" in r.lines[-1], (SEED + i, r)
        assert not list((tmp_path / "ckpt").glob("step-*")), (SEED + i, r)


def operations_of(tmp_path, inputs, model, dtype):
    """The kinds of all operations of a run of one rank, and its number of steps."""
    operations = tmp_path / "operations"
    train(inputs, tmp_path / "cuda", model, "tp1", "--dtype", dtype, "--device", "cuda", env=on_fake(OPERATIONS=operations))
    kinds = [line.split(maxsplit=4)[4] for line in operations.read_text().splitlines()]
    return kinds, len(harness.read_log(tmp_path / "cuda" / "log"))


@pytest.mark.parametrize("dtype,grouped", [("fp32", 9), ("bf16", 6)])
def test_products_of_experts_are_few_calls(tmp_path, inputs, dtype, grouped):
    """Of a layer in a step. In bf16 the gradients of weights, which are f32, are not together."""
    kinds, steps = operations_of(tmp_path, inputs, "mixtral", dtype)
    assert kinds.count("grouped product") == grouped * MODELS["mixtral"]["num_hidden_layers"] * steps


@pytest.mark.parametrize("dtype,epilogues", [("fp32", 1), ("bf16", 2)])
def test_biases_and_gelu_are_parts_of_products(tmp_path, inputs, dtype, epilogues):
    """Of a layer in a step: the bias of up, in bf16 GELU's gradient, too; and those of query, key and value in one call. So are
    the gradients of their weights. Beside these: the products of attention's output and down, their gradients and those of up,
    and three for the gradient of what query, key and value read."""
    kinds, steps = operations_of(tmp_path, inputs, "gpt2", dtype)
    layers = MODELS["gpt2"]["n_layer"] * steps
    assert kinds.count("product with an epilogue") == epilogues * layers
    assert kinds.count("products of a batch with an epilogue") == layers
    assert kinds.count("products of a batch") == layers
    assert kinds.count("product") == (12 - epilogues) * layers + 3 * steps


@pytest.mark.sanitized(4)
@pytest.mark.parametrize("layout,options,passes,apart",
                         [("tp1", ["--recompute", "full"], 1, 0), ("pp2", ["--micro", "2"], 2, 2),
                          ("pp2vpp2", ["--micro", "2"], 2, 6), ("tp2sp", [], 2, 0), ("dp2zero3", [], 2, 8)])
def test_norms_sum_the_gradients_of_biases_below(tmp_path, inputs, layout, options, passes, apart):
    """But of the last layer of a virtual stage that another one follows; and with zero3 of the last product of each layer. apart:
    how many of these the ranks sum alone in a step, beside two of column layers in each of a layer's passes."""
    traffic = tmp_path / "traffic"
    train(inputs, tmp_path / "cuda", "gpt2", layout, *options, "--device", "cuda", env=on_fake(TRAFFIC=traffic))
    kernels = [line.split()[0] for line in traffic.read_text().splitlines()]
    steps = len(harness.read_log(tmp_path / "cuda" / "log"))
    apart += 2 * passes * MODELS["gpt2"]["n_layer"]
    assert sum("bias_gradient_kernel" in name for name in kernels) == apart * steps, SEED
    assert "layer_norm_backward_warp_kernel" in " ".join(kernels)


def test_losses_are_the_cpus_below_mpirun(tmp_path, inputs):
    """tests/slurm has the same with srun."""
    want = train(inputs, tmp_path / "cpu", "llama", "tp2dp2")
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 4]
    got = train(inputs, tmp_path / "cuda", "llama", "tp2dp2", "--device", "cuda", launcher=launcher, env=on_fake())
    assert_close(got, want, "fp32")


def test_ranks_of_mpirun_that_share_a_gpu_are_refused(tmp_path, inputs):
    """Each sees one GPU, which may be its own; unless NCCL is told to accept it, the ranks compare them."""
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
    argv = [*launcher, *cuda_runs.arguments(inputs, tmp_path, "llama", "tp2", "--device", "cuda")]
    shared = {**on_fake(), "CUDA_VISIBLE_DEVICES": "3"}
    r = harness.run(*argv, env=shared)
    assert r.rc == 2 and "ranks 0 and 1 both have GPU 0000:04:00.0 of " in r.err, r
    assert harness.run(*argv, env={**shared, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}).rc == 0
    own = [*launcher, "sh", "-c", 'CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"', "sh", harness.BIN / "tp-train",
           *argv[len(launcher) + 1:]]
    assert harness.run(*own, env=on_fake()).rc == 0


def test_own_ranks_share_a_gpu_where_nccl_is_told_to_accept_it(tmp_path, inputs):
    """NCCL_HOSTID: each rank then names a host of its own, because NCCL refuses two ranks of a host on one GPU."""
    want = train(inputs, tmp_path / "cpu", "llama", "tp2pp2")
    for number, (variable, gpus) in enumerate([("NCCL_HOSTID", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "3")]):
        env = {**on_fake(), "FAKECUDA_GPUS": gpus, variable: "1"}
        assert_close(train(inputs, tmp_path / str(number), "llama", "tp2pp2", "--device", "cuda", env=env), want, "fp32")
    r = harness.run(*cuda_runs.arguments(inputs, tmp_path, "llama", "tp2", "--device", "cuda"), env={**on_fake(), "FAKECUDA_GPUS": "1"})
    assert r.rc == 2 and "2 ranks are on this machine, which has 1 usable GPU; " in r.err, r


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

COUNTED = {**LLAMA, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "head_dim": 4,
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
# In bf16 ranks of tp add what blocks compute, and gradients of what they read, in bf16. f32 are the embedding and the loss.
BF16_FORMULAS = {
    "tp2": {"ncclAllReduce bf16": (2 * M * (4 * L + 1), 2 * M * (4 * L + 1) * B * S * H),
            "ncclAllReduce f32": (2 * M * 3, 2 * M * (B * S * H + 3 * B * S))},
    "tp2sp": {"ncclAllReduce f32": FORMULAS["tp2sp"]["ncclAllReduce f32"],
              "ncclAllGather bf16": (2 * M * (6 * L + 2), M * (6 * L + 2) * B * S * H),
              "ncclAllGather f32": (2 * M, M * B * S * H),
              "ncclReduceScatter bf16": (2 * M * (4 * L + 1), M * (4 * L + 1) * B * S * H),
              "ncclReduceScatter f32": (2 * M, M * B * S * H)},
}
ALL_FORMULAS = [(layout, "fp32", wanted) for layout, wanted in FORMULAS.items()]
ALL_FORMULAS += [(layout, "bf16", wanted) for layout, wanted in BF16_FORMULAS.items()]
SHORT_FORMULAS = [("tp2sp", "fp32"), ("dp2zero3", "fp32"), ("tp2", "bf16"), ("tp2sp", "bf16")]


def calls(path):
    """{"ncclAllReduce f32": (calls, elements)} of a file that the fake device has written."""
    sums = {}
    for line in path.read_text().splitlines():
        name, kind, elements, _ = line.split()
        n, total = sums.get(name + " " + kind, (0, 0))
        sums[name + " " + kind] = n + 1, total + int(elements)
    return sums


@pytest.mark.parametrize("layout, dtype, wanted", [f for f in ALL_FORMULAS if harness.LONG or f[:2] in SHORT_FORMULAS])
def test_nccl_is_given_what_the_formulas_say(tmp_path, inputs, layout, dtype, wanted):
    (inputs / "counted.json").write_text(json.dumps(COUNTED))
    seen = []
    for steps in (1, 2):
        path = tmp_path / str(steps)
        ranks = 2 if layout.startswith("dp") else 1
        train(inputs, tmp_path / "out", "counted", layout, "--dtype", dtype, "--device", "cuda", "--micro", B, "--batch",
              B * M * ranks, steps=steps, env=on_fake(CALLS=path))
        seen.append(calls(path))
    step = {call: tuple(a - b for a, b in zip(both, seen[0].get(call, (0, 0))))
            for call, both in seen[1].items() if not call.endswith("f64")}
    assert {call: both for call, both in step.items() if any(both)} == wanted, (SEED, seen)


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


# ---- what a GPU keeps in bf16 ----


def printed_activations(inputs, out, dtype, device):
    """The bytes that tp-train prints, from three digits."""
    out.mkdir()
    r = harness.run(*[x for x in arguments(inputs, out, "kept", "tp1", "--dtype", dtype, "--device", device, steps=1) if x != "--quiet"],
                    env=on_fake())
    assert r.rc == 0, (SEED, r)
    n, unit = re.search(r"activations ([\d.]+) ([KMG]?i?B)", r.out + r.err).groups()
    return float(n) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def test_what_products_write_takes_half_the_memory_in_bf16(tmp_path, inputs):
    """Gate and up of each layer; and of the scratch half of the logits, which are wider than any activation here, all of their
    rounded gradients, and half of the gradients of query, key and value and of what a norm computes."""
    model = {**COUNTED, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 1024}
    (inputs / "kept.json").write_text(json.dumps(model))
    rows, ffn = 4 * 8, model["intermediate_size"]
    saved = {dtype: printed_activations(inputs, tmp_path / (dtype + "-cpu"), dtype, "cpu")
             - printed_activations(inputs, tmp_path / (dtype + "-cuda"), dtype, "cuda") for dtype in ("fp32", "bf16")}
    qkv = (model["num_attention_heads"] + 2 * model["num_key_value_heads"]) * model["head_dim"]
    want = rows * 2 * (3 * 2 * ffn + 2 * model["vocab_size"] + qkv + model["hidden_size"])
    assert saved["fp32"] == 0 and math.isclose(saved["bf16"], want, rel_tol=0.02), (saved, want)


@pytest.mark.parametrize("model,layout", [("llama", "tp2dp2"), ("gemma2", "pp2"), ("odd", "tp2")])
def test_logits_are_rounded_to_bf16_and_written_as_f32(tmp_path, inputs, model, layout):
    """A shard's rows of the vocabulary may have an odd number of columns."""
    (inputs / "odd.json").write_text(json.dumps({**COUNTED, "vocab_size": 259}))
    logits = {}
    for device in ("cpu", "cuda"):
        out = tmp_path / device
        train(inputs, out, model, layout, "--dtype", "bf16", "--device", device, "--micro", 1, "--logits", out / "logits", steps=1,
              env=on_fake())
        logits[device] = oracle.load_safetensors(out / "logits")["logits"]
    cpu, cuda = logits["cpu"], logits["cuda"]
    assert cuda.shape == cpu.shape and abs(cuda - cpu).max() < 2e-2 * abs(cpu).max(), SEED
    assert not (cuda.view("uint32") & 0xffff).any() and (cpu.view("uint32") & 0xffff).any()


# ---- what is refused ----

REFUSED = {
    "no library": (["--device", "cuda"], {"TP_CUDA_LIBRARY": "/nowhere/libtp-cuda.so"}, 2, "/nowhere/libtp-cuda.so"),
    "no driver": (["--device", "cuda"], on_fake(DRIVER=0), 2, "no NVIDIA driver"),
    "old driver": (["--device", "cuda"], on_fake(DRIVER=12040), 2, "supports CUDA 12.4, and 13.0 is needed"),
    "no GPU": (["--device", "cuda"], on_fake(GPUS=0), 2, "no GPU that this process may use"),
    "no fabric manager": (["--device", "cuda"], on_fake(NO_USE=802), 2, "start the service nvidia-fabricmanager"),
    "updated driver": (["--device", "cuda"], on_fake(NO_USE=803), 2, "restart the machine"),
    "broken driver": (["--device", "cuda"], on_fake(NO_USE=999), 2, "see whether nvidia-smi works"),
    "busy GPU": (["--device", "cuda", "--layout", "tp1"], on_fake(BUSY=46), 3,
                 "another process has this GPU alone, or its MPS server has ended"),
    "no memory for the start": (["--device", "cuda", "--layout", "tp1"], on_fake(BUSY=2), 3,
                                "opening the GPU failed; how much is free is not known."),
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


def test_heads_that_are_too_wide_for_a_gpu_are_refused_before_anything_is_changed(tmp_path, inputs):
    config, log = harness.write_config(tmp_path / "model", head_dim=264), tmp_path / "log"
    log.write_text("of a run before\n")
    r = harness.run("tp-train", "--model", config, "--data", inputs / "text", "--steps", 1, "--seq", 8, "--batch", 2, "--layout", "tp2",
                    "--device", "cuda", "--log", log, "--ckpt", tmp_path / "ckpt", env=on_fake())
    assert r.rc == 2 and len(r.lines) == 1 and "heads have 264 columns, and on a GPU at most 256" in r.err, r
    assert log.read_text() == "of a run before\n" and not (tmp_path / "ckpt").exists()


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
