"""tp-run plan: tp-train runs the layouts that it offers, and refuses the layouts that it refuses.

needs: tp-run tp-train
"""
import json
import os
import random
import re
import time

import pytest

import harness
from run_job import Job, train_job


def plan(job, *args):
    return json.loads(job.verb("plan", "--json", *args).out)


def train(model, c, folder, micro=None, **options):
    """One step of tp-train at a candidate of the plan."""
    argv = ["tp-train", "--model", model, "--data", harness.TEXT, "--steps", 1,
            "--layout", c["layout"], "--ckpt", folder / c["layout"]]
    if c["micro"] or micro:
        argv += ["--micro", c["micro"] or micro]
    if c["recompute"]:
        argv += ["--recompute", c["recompute"]]
    for name, value in options.items():
        argv += ["--" + name, value]
    return harness.run(*argv)


@pytest.mark.parametrize("ranks", [0, 65537])
def test_a_number_of_ranks_that_no_job_has_is_refused(ranks, tmp_path, tiny):
    job = train_job(tmp_path, tiny)
    r = job.verb("plan", "--ranks", ranks)
    assert r.rc == 2 and r.out == "" and "--ranks is a number from 1 to 65536, not %d" % ranks in r.err, repr(r)


def test_plan_prints_why_layouts_are_refused(tmp_path, tiny):
    job = train_job(tmp_path, tiny, allow="[]")
    by_layout = {c["layout"]: c for c in plan(job, "--ranks", 6)}
    assert by_layout["tp4"]["legal"] and by_layout["tp2dp2"]["legal"] and by_layout["tp1"]["legal"]
    assert not by_layout["tp3"]["legal"] and "3" in by_layout["tp3"]["why"]
    assert not by_layout["tp1dp3"]["legal"] and "--batch 8" in by_layout["tp1dp3"]["why"]
    need = by_layout["tp1"]["memory_bytes"]
    small = train_job(tmp_path / "small", tiny, allow="[]", name="small",
                      options={"micro": 8, "recompute": "none"}, layouts={"memory": need - 1})
    by_layout = {c["layout"]: c for c in plan(small)}
    assert not by_layout["tp1"]["legal"] and "layouts.memory" in by_layout["tp1"]["why"]
    assert not by_layout["tp4"]["recompute"] and not by_layout["tp4"]["micro"]


def test_a_layout_in_the_command_is_the_only_candidate(tmp_path, tiny):
    job = train_job(tmp_path, tiny, allow="[]", options={"layout": "tp2", "steps": 3})
    assert [c["layout"] for c in plan(job)] == ["tp2"]
    job.start()
    assert job.wait() == 0, job.story()
    assert {e["layout"] for e in job.events("launch")} == {"tp2"}


def test_tp_run_knows_the_letters_of_tp_train(tmp_path, tiny):
    """Both use the table of layout/train_option.c."""
    shown = harness.ok("tp-train", "--help").out
    letters = dict(re.findall(r"^ +-(\w), --([\w-]+) [A-Z]", shown, re.M))
    assert letters == {"m": "model", "d": "data", "n": "steps", "l": "layout", "t": "threads"}
    flags = re.findall(r"^ +-(\w), --[\w-]+  ", shown, re.M)
    assert sorted(flags) == ["h", "q"]


def test_tp_run_knows_all_options_of_tp_train(tmp_path, tiny):
    """Those in its help are accepted, with a value or without one, and no others."""
    options = re.findall(r"^ +(?:-\w, )?--([\w-]+)( [A-Za-z]\S*|\[=)?", harness.ok("tp-train", "--help").out, re.M)
    assert len(options) > 35 and {("steps", " N"), ("quiet", ""), ("resume", "[=")} <= set(options)
    for name, value in options:
        word = "--" + name + ("=x" if value.startswith("[") else "")
        words = [word, "x"] if value.startswith(" ") else [word]
        job = Job(tmp_path / name, [harness.JOB_TRAIN, "--model", tiny, *words])
        said = job.verb("plan").err
        assert "tp-train: " not in said, "%s: is it in layout/train_option.c as it is in tp-train? %s" % (name, said)


@pytest.mark.parametrize("verb", [["plan"], []])
def test_a_mistyped_option_of_tp_train_is_refused_before_anything_starts(verb, tmp_path, tiny):
    job = train_job(tmp_path, tiny, options={"save-evry": 5})
    before = sorted(tmp_path.iterdir())
    r = harness.run("tp-run", *verb, job.path)
    assert r.rc == 2 and not r.out and len(r.lines) == 1, repr(r)
    assert "%s: command: tp-train: unknown option '--save-evry'; did you mean --save-every?" % job.path in r.err, repr(r)
    assert sorted(tmp_path.iterdir()) == before


def test_plan_prints_one_line_per_mesh_and_the_reasons(tmp_path, tiny):
    job = train_job(tmp_path, tiny, allow="[]")
    lines = job.verb("plan").out.splitlines()
    assert sum(line.startswith("* ") for line in lines) == 1
    assert any(line.split()[:1] == ["tp3"] and " no: " in line for line in lines)
    assert "--all" in lines[-1]
    everything = job.verb("plan", "--all").out.splitlines()
    assert len(everything) > len(lines) and "--all" not in everything[-1]


def test_tp_train_runs_what_plan_offers_and_refuses_what_it_refuses(tmp_path, figure):
    """Random small models and batches. Some candidates of each plan are run."""
    seed = int(os.environ.get("TP_SEED", time.time_ns() % 1000000))
    rng, ran, refused = random.Random(seed), 0, 0
    figure("seed", seed)
    for trial in range(12 if harness.LONG else 3):
        folder = tmp_path / str(trial)
        heads = rng.choice([2, 4, 6])
        model = harness.write_config(
            folder / "model", num_attention_heads=heads, num_key_value_heads=rng.choice([1, 2]),
            head_dim=8, hidden_size=8 * heads, intermediate_size=rng.choice([48, 96]),
            num_hidden_layers=rng.choice([1, 2, 3, 4, 5]), max_position_embeddings=64)
        pace = {"seq": rng.choice([12, 16, 32]), "batch": rng.choice([4, 6, 8, 12])}
        if rng.random() < 0.4:
            pace["micro"] = rng.choice([1, 2, 3])
        job = train_job(folder, model, allow="[]", options=pace, nodes="8")
        candidates = plan(job)
        offered = [c for c in candidates if c["legal"]]
        no = [c for c in candidates if not c["legal"]]
        assert offered or pace["batch"] % pace.get("micro", 1), (seed, trial)
        for c in rng.sample(offered, min(len(offered), 6 if harness.LONG else 4)):
            r = train(model, c, folder, **pace)
            assert r.rc == 0, (seed, c, r)
            ran += 1
        for c in rng.sample(no, min(len(no), 3 if harness.LONG else 2)):
            r = train(model, c, folder, **pace)
            assert r.rc == 2, (seed, c, r)
            refused += 1
    figure("candidates run, refused", (ran, refused))
    assert ran >= 4 and refused >= 2


@pytest.mark.parametrize("memory_of", ["tp1", "tp2", "tp1dp2zero1"])
def test_tp_train_accepts_what_is_planned_for_limited_memory(tmp_path, tiny, memory_of):
    """layouts.memory is passed to tp-train as --mem. Both agree on what fits."""
    first = plan(train_job(tmp_path, tiny, allow="[]", options={"recompute": "none"}))
    limit = next(c["memory_bytes"] for c in first if c["layout"] == memory_of) - 1
    tight = plan(train_job(tmp_path / "tight", tiny, allow="[]", options={"mem": limit}))
    fits = {c["layout"]: c for c in tight if c["legal"]}
    if memory_of in fits:  # by smaller microbatches or by recomputing
        c = fits[memory_of]
        assert c["micro"] or c["recompute"]
        assert c["memory_bytes"] <= limit
        r = train(tiny, c, tmp_path / "run", mem=limit, seq=64, batch=8)
        assert r.rc == 0, (c, r)
    plain = {"layout": memory_of, "micro": 0, "recompute": ""}
    assert train(tiny, plain, tmp_path / "plain", mem=limit, seq=64, batch=8).rc == 2
