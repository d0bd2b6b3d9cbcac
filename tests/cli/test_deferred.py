"""The trainer computes the same bits on a device that runs queued work late, in a random order.

tp-train-deferred is tp-train on the device of tests/deferred/. It fails when the host accesses device
memory or reads a result early, or when an event between queues is missing. A failing test prints its seed;
TP_SEED=n repeats it.

needs: tp-train tp-train-deferred
covers: device/device
"""
import hashlib
import json
import os
import sys
import time

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "check"))
import compare_builds  # noqa: E402

# Layouts that compare_builds does not have: all axes at once, and those with most waits for other ranks.
MORE = [("llama", "tp2cp2pp2", []), ("llama", "pp4", ["--micro", "1"]), ("llama", "cp4", []),
        ("llama", "tp2sppp2dp2zero1", []), ("llama", "cp2pp2dp2zero3", []),
        ("llama", "pp2vpp2dp2zero3", ["--micro", "1"]), ("llama", "tp1", ["--threads", "2"])]
RUNS = compare_builds.RUNS + MORE
SEEDS = 4 if harness.LONG else 1  # for each run and dtype


def seeds():
    first = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
    return [first] if "TP_SEED" in os.environ else range(first, first + SEEDS)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    compare_builds.write_inputs(folder)
    return folder


def train(program, inputs, out, model, layout, *options, seed=0):
    """Train, stop, and continue from the checkpoint. Returns what must be equal: losses and norms, the bytes
    of all shards of all steps, and the logits of both starts."""
    out.mkdir()
    digests = {}
    for steps, exit_step, more in ((4, 2, []), (4, 4, ["--resume"])):
        argv = [program, "--model", inputs / (model + ".json"), "--data", inputs / "text", "--quiet",
                "--layout", layout, "--steps", steps, "--exit-step", exit_step, "--seq", 32,
                "--batch", 8, "--warmup", 2, "--save-every", 1, "--ckpt", out / "ckpt", "--log",
                out / "log", "--logits", out / ("logits-%d" % exit_step), *options, *more]
        r = harness.run(*argv, env={"TP_DEFERRED_SEED": str(seed)})
        assert r.rc == (0 if exit_step == steps else 75), "seed %d: %r" % (seed, r)
    for path in sorted(out.glob("ckpt/step-*/*.h5")) + sorted(out.glob("logits-*")):
        digests[str(path.relative_to(out))] = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines()]
    return [(x["step"], x["loss"], x["grad_norm"]) for x in lines], digests


@pytest.mark.sanitized(9)
@pytest.mark.parametrize("dtype", compare_builds.DTYPES)
@pytest.mark.parametrize("model,layout,options", RUNS,
                         ids=["-".join([m, lay, *o]).replace("--", "") for m, lay, o in RUNS])
def test_same_bits_in_every_order(tmp_path, inputs, model, layout, options, dtype):
    run = model, layout, "--dtype", dtype, *options
    expected = train("tp-train", inputs, tmp_path / "now", *run)
    assert len(expected[0]) == 4 and len(expected[1]) > 2
    for seed in seeds():
        late = train(harness.built("tp-train-deferred"), inputs, tmp_path / str(seed), *run,
                     seed=seed)
        assert late == expected, "seed %d" % seed
