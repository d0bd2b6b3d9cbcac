"""tp-reshard --dry-run of a conversion between formats says what the conversion then does, and writes nothing.

needs: tp-reshard tp-ckpt make_ckpt
covers: reshard/copy_totals reshard/atomic_folder
"""
import json
import os

import pytest

import harness
from object_store import ObjectStore, ok as remote_ok
from test_reshard import make, mpirun

CONFIG = {"num_hidden_layers": 2, "vocab_size": 261}
SAME = ["to", "step", "tensors", "boxes", "bytes_read", "bytes_written", "from_format", "format", "left_out", "windows", "files", "out"]
CASES = [("tp", "dcp", "tp2dp2zero3", 1), ("tp", "dcp", "tp2dp2zero3", 3), ("tp", "gguf", "tp1", 1), ("dcp", "megatron", "tp2pp2", 1),
         ("dcp", "torch_dist", "tp4", 2), ("dcp", "deepspeed", "tp1", 1), ("dcp", "tp", "tp4pp2", 1), ("dcp", "tp", "tp4pp2", 3),
         ("dcp", "trainer", "tp1", 1), ("dcp", "safetensors", "tp1", 2)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    made = {"tp": make(root / "own", "tp2", CONFIG, dtype="f32"), "dcp": root / "dcp"}
    harness.ok("tp-ckpt", "export", made["tp"], "-o", made["dcp"], "--format", "dcp")
    return made


def convert(case, sources, out, *more):
    source, format, to, n = case
    argv = ["tp-reshard", sources[source], "--to", to, "--format", format, "-o", out, *more]
    return mpirun(n, *argv) if n > 1 else argv


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_a_plan_has_the_numbers_of_the_conversion_and_writes_nothing(case, sources, tmp_path):
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    scratch.mkdir()
    argv, before = convert(case, sources, out), harness.tree(tmp_path, *sources.values())
    plan = json.loads(harness.ok(*argv, "--dry-run", "--json", env={"TMPDIR": str(scratch)} if case[3] == 1 else {}).out)
    text = harness.ok(*argv, "--dry-run").out
    assert harness.tree(tmp_path, *sources.values()) == before, "something was written"
    done = json.loads(harness.ok(*argv, "--json").out)
    assert plan["dry_run"] and not done["dry_run"]
    for key in SAME:
        assert plan[key] == done[key], key
    if not harness.SANITIZE:
        assert done["peak_rss_bytes"] <= plan["peak_rss_bytes"] <= 1 << 30
    at = "" if case[1] in ("safetensors", "gguf", "trainer", "accelerate-ddp", "deepspeed") else " at " + done["to"]
    assert text.startswith("plan     %s -> %s%s" % (case[0], case[1], at)) and "nothing was written" in text
    assert "in %d file" % done["files"] in text
    if case[1] == "tp":
        assert done["files"] == len(list(harness.steps(out)[0].glob("*.h5")))


def test_a_plan_finds_what_would_fail(sources, tmp_path):
    out = tmp_path / "out"
    harness.ok(*convert(("dcp", "megatron", "tp2", 1), sources, out))
    before = harness.tree(tmp_path)
    for case, out_of_it, word in ((("dcp", "megatron", "tp4", 1), out, "exists already; --force replaces it"),
                                  (("dcp", "megatron", "tp4", 2), out, "exists already; --force replaces it"),
                                  (("dcp", "megatron", "tp4", 1), "/proc", "mount point"),
                                  (("dcp", "gguf", "tp1", 2), tmp_path / "x", "start it without mpirun"),
                                  (("dcp", "megatron", "tp3", 1), tmp_path / "x", "tp3")):
        r = harness.run(*convert(case, sources, out_of_it, "--dry-run"))
        assert r.rc == 2 and word in r.err and harness.tree(tmp_path) == before, repr(r)
    harness.ok(*convert(("dcp", "megatron", "tp4", 1), sources, out, "--dry-run", "--force"))
    r = harness.run(*convert(("dcp", "megatron", "tp4", 1), sources, tmp_path / "x", "--dry-run"), env={"TMPDIR": str(tmp_path / "absent")})
    assert r.rc == 3 and str(tmp_path / "absent") in r.err and harness.tree(tmp_path) == before, repr(r)


def test_a_plan_of_an_export_to_a_store_creates_no_object(sources, tmp_path):
    with ObjectStore() as store:
        store.add_tree("bucket/runs/dcp", sources["dcp"])
        before = sorted(store.objects)
        argv = ["tp-reshard", "s3://bucket/runs/dcp", "--from-format", "dcp", "--to", "tp2", "--json"]
        for format in ("megatron", "tp"):
            to = [*argv, "--format", format, "-o", "s3://bucket/runs/" + format]
            plan = json.loads(remote_ok(store, *to, "--dry-run", TMPDIR=str(tmp_path)).out)
            assert sorted(store.objects) == before and not os.listdir(tmp_path)
            done = json.loads(remote_ok(store, *to).out)
            assert all(plan[key] == done[key] for key in SAME), (plan, done)
            before = sorted(store.objects)
