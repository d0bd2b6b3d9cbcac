"""CUDA graphs of the training step, on the fake CUDA device: the bits are those of steps that are queued one operation at a
time, and a step is one launch.

needs: tp-train libtp-cuda.so
covers: trainer/step_graph device/cuda/cuda_graph
"""
import hashlib
import json
import os
import time

import pytest

import harness
import test_cuda

SEED = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
STEPS = 6  # two are queued, one is recorded, three are replayed
LLAMA = {**test_cuda.COUNTED, "vocab_size": 128}
MODELS = {"llama": LLAMA, "deep": {**LLAMA, "num_hidden_layers": 4},
          "gpt2": {**test_cuda.MODELS["gpt2"], "n_embd": 16, "n_inner": 32, "n_head": 4, "n_layer": 2, "vocab_size": 128},
          "mixtral": {**LLAMA, **test_cuda.EXPERTS["mixtral"]}}
RUNS = [("llama", "tp2", ["--micro", "2"]), ("llama", "pp2", ["--micro", "1"]), ("gpt2", "dp2", ["--recompute", "full"]),
        ("llama", "dp2zero3", ["--micro", "1"]), ("gpt2", "tp2pp2", ["--micro", "1"]), ("llama", "cp2", ["--recompute", "selective"]),
        ("deep", "pp2vpp2dp2zero1", ["--micro", "1"]), ("llama", "tp2spcp2", ["--dtype", "bf16"]), ("gpt2", "tp1", ["--dtype", "bf16"])]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "text").write_bytes(bytes((i * i * 7 + i // 3) % 127 for i in range(2000)))
    for name, config in MODELS.items():
        (folder / (name + ".json")).write_text(json.dumps(config))
    return folder


def train(inputs, out, model, layout, *options, steps=STEPS, **fake):
    """From the step that is recorded on, each has another learning rate."""
    out.mkdir(exist_ok=True)
    return harness.run("tp-train", "--model", inputs / (model + ".json"), "--data", inputs / "text", "--layout", layout, "--steps",
                       steps, "--seq", 8, "--batch", 4, "--warmup", 2, "--lr", "0.02", "--weight-decay", "0.3", "--device", "cuda",
                       "--log", out / "log", *options, env=test_cuda.on_fake(SEED, **fake))


def outcome(out, root=None):
    """What a run computed: its log without times, and the bytes of the shards of all its steps."""
    log = [(x["step"], x["loss"], x["grad_norm"], x["lr"]) for x in harness.read_log(out / "log")]
    files = sorted(root.glob("step-*/*.h5")) if root else []
    return log, [(str(f.relative_to(root)), hashlib.sha256(f.read_bytes()).hexdigest()) for f in files]


@pytest.mark.sanitized(2)
@pytest.mark.parametrize("number", range(len(RUNS)) if harness.LONG else [0, 1, 3])
def test_the_bits_are_those_of_queued_steps(tmp_path, inputs, number):
    """With checkpoints between steps: the step after one is queued, and later ones are replayed again."""
    model, layout, options = RUNS[number]
    seen = {}
    for graphs in "off", "on":
        out = tmp_path / graphs
        r = train(inputs, out, model, layout, *options, "--cuda-graphs", graphs, "--ckpt", out / "ckpt", "--save-every", 4)
        assert r.rc == 0, (SEED, r)
        seen[graphs] = outcome(out, out / "ckpt")
    assert len(seen["on"][0]) == STEPS and len({x[3] for x in seen["on"][0][2:]}) == STEPS - 2, seen
    assert len(seen["on"][1]) >= 2, seen
    assert seen["on"] == seen["off"], SEED


def test_a_run_that_resumes_has_the_bits_of_queued_steps(tmp_path, inputs):
    seen = {}
    for graphs in "off", "on":
        out, save = tmp_path / graphs, ["--cuda-graphs", graphs, "--ckpt", tmp_path / graphs / "ckpt"]
        r = train(inputs, out, "llama", "tp2", *save, "--exit-step", 4, steps=9)
        assert r.rc == 75, (SEED, r)
        r = train(inputs, out, "llama", "dp2zero1", *save, "--resume=must", steps=9)
        assert r.rc == 0, (SEED, r)
        seen[graphs] = outcome(out, out / "ckpt")
    assert [x[0] for x in seen["on"][0]] == list(range(9)) and seen["on"] == seen["off"], SEED


def host_calls(path):
    """For each process, its calls: (name, operations queued before)."""
    calls = {}
    for line in path.read_text().splitlines():
        process, name, _, _, operations = line.split()
        calls.setdefault(process, []).append((name, int(operations)))
    return calls


def test_a_step_is_one_launch_and_one_wait(tmp_path, inputs):
    """Between the waits of steps 4, 5 and 6 a rank queues the graph, which counts as its begin and its end, and the event for
    which the host waits; it allocates nothing."""
    r = train(inputs, tmp_path, "llama", "tp2pp2", "--micro", 1, HOST_CALLS=tmp_path / "calls")
    assert r.rc == 0, (SEED, r)
    ranks = host_calls(tmp_path / "calls")
    assert len(ranks) == 4, ranks
    for calls in ranks.values():
        waits = [i for i, (name, _) in enumerate(calls) if name == "cudaEventSynchronize"][-4:]
        assert waits == list(range(waits[0], waits[0] + 4)), calls
        assert [calls[b][1] - calls[a][1] for a, b in zip(waits, waits[1:])] == [3, 3, 3], calls


def steps_line(r):
    return [line for line in r.lines if line.startswith("tp-train: steps: ")]


def test_the_start_says_how_steps_are_queued(tmp_path, inputs):
    assert steps_line(train(inputs, tmp_path, "llama", "tp1", steps=1)) == [
        "tp-train: steps: each is one CUDA graph after the first 2, unless a checkpoint is still copied"]
    assert steps_line(train(inputs, tmp_path, "llama", "tp1", "--cuda-graphs", "off", steps=1)) == [
        "tp-train: steps: queued one operation at a time, because of --cuda-graphs off"]
    assert steps_line(train(inputs, tmp_path, "llama", "tp1", "--device", "cpu", steps=1)) == []


def test_a_mixture_of_experts_is_queued_because_the_host_waits(tmp_path, inputs):
    r = train(inputs, tmp_path, "mixtral", "ep2dp2", steps=4)
    assert r.rc == 0, (SEED, r)
    assert steps_line(r) == ["tp-train: steps: queued one operation at a time, because in each layer the host waits for the rows "
                             "of the experts"], r


def test_a_driver_that_cannot_record_is_told_in_one_sentence(tmp_path, inputs):
    r = train(inputs, tmp_path, "llama", "tp1", NO_CAPTURE=1)
    errors = [line for line in r.lines if "recording a graph" in line]
    assert r.rc == 3 and len(errors) == 1, r
    assert errors[0].startswith("tp-train: ") and "--cuda-graphs off" in errors[0], errors
    assert train(inputs, tmp_path, "llama", "tp1", "--cuda-graphs", "off", NO_CAPTURE=1).rc == 0


def test_another_word_than_on_or_off_is_refused(tmp_path, inputs):
    r = train(inputs, tmp_path, "llama", "tp1", "--cuda-graphs", "maybe")
    assert r.rc == 2 and "--cuda-graphs is on or off, not 'maybe'" in r.err, r
