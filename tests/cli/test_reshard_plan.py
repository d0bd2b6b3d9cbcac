"""tp-reshard --dry-run --model plans without a checkpoint, as it would with one.

needs: tp-reshard make_ckpt
covers: reshard/model_plan
"""
import json
import os
import random
import re

import pytest

import harness
from object_store import ObjectStore, fails, ok
from test_reshard import make, random_config, random_spec

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
LLAMA_405B = dict(vocab_size=128256, hidden_size=16384, intermediate_size=53248, head_dim=128, num_hidden_layers=126,
                  num_attention_heads=128, num_key_value_heads=8, max_position_embeddings=131072)


def plan(*args):
    return json.loads(harness.ok("tp-reshard", "--dry-run", "--json", *args).out)


@pytest.mark.parametrize("number", range(30 if harness.LONG else 3))
def test_the_plan_is_that_of_a_checkpoint(tmp_path, number):
    rng, seed = random.Random(SEED + number), SEED + number
    config = random_config(rng)
    start, to = random_spec(rng, config), random_spec(rng, config)
    options = rng.choice([[], ["--no-optim"], ["--dtype", "f32"]])
    root = make(tmp_path, start, config)
    found = plan("--model", tmp_path, "--from", start, "--to", to, *options)
    expected = plan(root, "--to", to, *options)
    for field in ("seconds", "peak_rss_bytes", "buffer_bytes", "step", "out"):
        del found[field], expected[field]
    assert found == expected, "seed %d: %s to %s of %s" % (seed, start, to, config)


@pytest.mark.skipif(bool(harness.SANITIZE), reason="sanitizers need more memory")
def test_millions_of_boxes_need_little_memory(tmp_path, figure):
    config = harness.write_config(tmp_path, **LLAMA_405B)
    argv = ["tp-reshard", "--dry-run", "--json", "--model", config, "--from", "tp8pp16dp128zero1", "--to",
            "tp16pp8dp64zero1"]
    code, peak, seconds, said = harness.measure(tmp_path, *argv)
    out = json.loads(said)
    assert code == 0 and out["boxes_from"] > 2.8e6 and out["boxes"] > 2.3e6
    assert peak < 256 << 20
    figure("plan of Llama-405B, tp8pp16dp128zero1 to tp16pp8dp64zero1",
           "%.2f s of CPU, %d MiB" % (seconds, peak >> 20))


def test_the_model_may_be_in_a_store(tmp_path):
    config = harness.write_config(tmp_path)
    argv = ["tp-reshard", "--dry-run", "--from", "tp2", "--to", "tp4", "--model"]
    with ObjectStore() as store:
        store.put("bucket/model/config.json", config.read_bytes())
        here = harness.ok(*argv, config).out.replace(str(config), "CONFIG")
        for path in ("s3://bucket/model/config.json", "s3://bucket/model"):
            assert ok(store, *argv, path).out.replace(path, "CONFIG") == here
        fails(store, *argv, "s3://bucket/none", code=2, says="s3://bucket/none/config.json: there is no such object")


def test_wrong_requests_are_refused(tmp_path):
    config = harness.write_config(tmp_path)
    for args, why in [(["--to", "tp2"], "CKPT is missing"),
                      (["--to", "tp2", "--model", config], "--model needs --dry-run and --from"),
                      (["--to", "tp2", "--model", config, "--dry-run"], "--model needs --dry-run and --from"),
                      (["x", "--to", "tp2", "--model", config], "exclude each other"),
                      (["--to", "tp2", "--from", "tp3", "--model", config, "--dry-run"], "tp3"),
                      (["--to", "tp2", "--from", "tp1", "--model", tmp_path / "none", "--dry-run"], "none")]:
        r = harness.run("tp-reshard", *args)
        assert r.rc in (2, 3) and why in r.err, (args, r)


MIXTRAL = dict(architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=4)


@pytest.mark.parametrize("start, to", [("ep4dp4zero1", "dp2"), ("ep4dp4zero1", "ep8"), ("tp2pp2dp2", "tp3"),
                                       ("tp2dp2", "tp3dp1"), ("tp2pp2vpp2", "pp1"), ("tp2pp2", "tp3cp3")])
def test_a_layout_that_is_suggested_is_taken_as_it_stands(start, to, tmp_path):
    """Also where the source has axes that the suggestion has not: --to would keep them."""
    argv = ["--model", harness.write_config(tmp_path, **MIXTRAL), "--from", start, "--to"]
    r = harness.run("tp-reshard", "--dry-run", *argv, to)
    assert r.rc == 2 and "nearest that fit: " in r.err, repr(r)
    for near in r.err.strip().split("nearest that fit: ")[1].split(", "):
        found = plan(*argv, near)
        assert not found["kept"] and all(axis in near for axis in re.findall(r"[a-z]+[0-9]+", found["to"])), (near, found)
