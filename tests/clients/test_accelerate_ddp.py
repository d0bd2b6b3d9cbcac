"""Hugging Face Accelerate without FSDP (accelerate_ddp_ranks.py) trains models of every family, in one process and with DDP: what
save_state saves is imported with the state of the live optimizer, and what is made of it load_state loads, and continues with as if
nothing had happened, bit for bit.

covers: reshard/formats/hf_trainer/hf_trainer reshard/formats/hf_trainer/hf_trainer_optimizer reshard/formats/hf_trainer/hf_trainer_params
covers: reshard/formats/hf_trainer/hf_trainer_target"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from live_state import MODELS, assert_equal, names_in_files, state_of  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
STEPS, MORE = 3, 2
STACKED = "mixtral", "qwen3-moe"
OTHER_NAMES = *STACKED, "gpt-neox"  # of the modules of transformers 5
JOB = dict(ranks=1, family="llama", groups="one", safe=True, compiled=False, schedule=True, first=0, steps=STEPS, more=MORE, model=None, load=None,
           save=None, automatic=False)
# Groups that programs make, with weights as files of pickle, compiled, and in folders that Accelerate names.
KINDS = {"dims": dict(groups="dims"), "examples": dict(groups="examples"), "first": dict(groups="no decay first"),
         "opt-examples": dict(family="opt", groups="examples"), "bin": dict(safe=False), "compiled": dict(compiled=True),
         "automatic": dict(automatic=True, groups="dims"), "tied-bin": dict(family="qwen3", safe=False, groups="dims")}
DDP = {"ddp": dict(ranks=2, groups="dims"), "ddp-tied": dict(ranks=2, family="qwen3", groups="one")}
EXPORTS = {"one": "one", "dims": "norms", "examples": "examples"}  # what --param-groups calls them


def run_jobs(folder, jobs):
    for name, job in jobs.items():
        job["out"] = str(folder / (name + ".pt"))
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    env = dict(os.environ, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    r = subprocess.run([sys.executable, "-B", HERE / "accelerate_ddp_ranks.py", folder / "jobs"], env=env, text=True,
                       timeout=900, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]
    return {name: torch.load(job["out"], weights_only=False) for name, job in jobs.items()}


def folder_of(folder, name):
    return folder / name / "checkpoints/checkpoint_0" if name == "automatic" else folder / name


def make_models(folder, families):
    for family in families:
        if not (folder / "model" / family).exists():
            family_models.make(family, folder / "model" / family)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder, {name: job}, {name: what the live model and optimizer had})"""
    folder = tmp_path_factory.mktemp("accelerate-ddp")
    jobs = {name: dict(JOB, **{"family": name, **KINDS.get(name, {})}) if name in MODELS else dict(JOB, **{**KINDS, **DDP}[name])
            for name in (*MODELS, *KINDS, *DDP)}
    make_models(folder, {job["family"] for job in jobs.values()})
    for name, job in jobs.items():
        job.update(model=str(folder / "model" / job["family"]), save=str(folder / name))
    said = run_jobs(folder, jobs)
    for name, job in jobs.items():
        if job["family"] == "gemma2":  # of which transformers has had two orders
            shutil.copy(folder / "model/gemma2/config.json", folder / name)
    return folder, jobs, said


def by_file(state, family):
    """A state by the names of the model's files."""
    found = {}
    for name, x in state.items():
        if "/" in name:
            group, name = name.split("/", 1)
            found.update(("%s/%s" % (group, k), v.contiguous()) for k, v in names_in_files("%s:%s" % (family, name), x).items())
    return found


@pytest.mark.parametrize("name", [*MODELS, *KINDS, *DDP])
def test_the_state_is_that_of_the_live_optimizer(name, saved, tmp_path):
    folder, jobs, said = saved
    family = jobs[name]["family"]
    want = by_file(said[name]["saved"], family)
    assert all(x.count_nonzero() for x in want.values())  # else two parameters could be exchanged
    source, config = folder_of(folder, name), folder / "model" / family / "config.json"
    r = harness.ok("tp-ckpt", "import", source, "--config", config, "-o", tmp_path / "ckpt", "--layout", "tp2")
    assert "step %d, tp2" % STEPS in r.out and "Accelerate, one process or DDP" in r.out, repr(r)
    assert_equal(state_of(tmp_path / "ckpt", tmp_path), want)
    assert "intact" in harness.ok("tp-ckpt", "verify", source, "--config", config).out
    harness.ok("tp-ckpt", "diff", source, tmp_path / "ckpt", "--config", config)


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, x in want.items():
        assert torch.equal(got[name], x) if torch.is_tensor(x) else got[name] == x, name


RESHARDED = [n for n in (*MODELS, *KINDS, *DDP) if n not in OTHER_NAMES]


@pytest.fixture(scope="module")
def resumed(saved):
    """{name: what a program had that loaded what tp-reshard made of NAME, and went on}. What is written is for a model that is not
    compiled."""
    folder, jobs, _ = saved
    again = {}
    for name in RESHARDED:
        out = folder / (name + "-moved")
        harness.ok("tp-reshard", folder_of(folder, name), "--to", "tp1", "--config", jobs[name]["model"] + "/config.json", "-o", out)
        again[name] = dict(jobs[name], load=str(out), save=None, automatic=False, compiled=False, first=STEPS, steps=0)
    return run_jobs(folder, again)


@pytest.mark.parametrize("name", RESHARDED)
def test_accelerate_continues_as_if_it_had_never_stopped(name, resumed, saved):
    """With the groups and options of the source, its schedule and its random state."""
    folder, _, said = saved
    assert_same(resumed[name]["loaded"], said[name]["saved"])
    assert_same(resumed[name]["after"], said[name]["after"])
    files = {p.name for p in folder_of(folder, name).iterdir()} - {"pytorch_model.bin"}
    assert {p.name for p in (folder / (name + "-moved")).iterdir()} == files | {"model.safetensors", "config.json"}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_where_modules_have_other_names_it_is_refused(name, saved, tmp_path):
    folder, jobs, _ = saved
    r = harness.run("tp-reshard", folder / name, "--to", "tp1", "--config", jobs[name]["model"] + "/config.json", "-o", tmp_path / "out")
    assert r.rc == 2 and "the modules of transformers have other names" in r.err and not (tmp_path / "out").exists(), repr(r)


@pytest.fixture(scope="module")
def regrouped(saved, tmp_path_factory):
    """{(groups, way): what a program had that loaded it} by way of a checkpoint at tp2pp2, and of FSDP's."""
    folder, jobs, _ = saved
    config, loads = folder / "model/llama/config.json", {}
    for groups, theirs in EXPORTS.items():
        top, name = tmp_path_factory.mktemp(groups), source_of(groups)
        harness.ok("tp-ckpt", "import", folder / name, "--config", config, "-o", top / "ckpt", "--layout", "tp2pp2")
        harness.ok("tp-ckpt", "export", top / "ckpt", "--format", "accelerate-ddp", "--param-groups", theirs, "-o", top / "a")
        harness.ok("tp-reshard", folder / name, "--to", "tp2", "--format", "accelerate", "--config", config, "-o", top / "fsdp")
        harness.ok("tp-reshard", top / "fsdp", "--to", "tp1", "--format", "accelerate-ddp", "--param-groups", theirs, "-o", top / "b")
        loads.update({"%s-%s" % (groups, x): dict(jobs[name], load=str(top / x), save=None, first=STEPS, steps=0, more=1, schedule=False)
                      for x in "ab"})
    return run_jobs(tmp_path_factory.mktemp("regrouped"), loads)


def source_of(groups):
    return "llama" if groups == "one" else groups


@pytest.mark.parametrize("way", "ab")
@pytest.mark.parametrize("groups", EXPORTS)
def test_by_way_of_another_framework_the_groups_are_chosen(groups, way, regrouped, saved):
    """Weights, moments, steps and options; the schedule stays behind."""
    before, loaded = saved[2][source_of(groups)]["saved"], regrouped["%s-%s" % (groups, way)]["loaded"]
    assert_same({k: v for k, v in loaded.items() if k != "options"}, {k: v for k, v in before.items() if k != "options"})
    had, has = ([{k: g[k] for k in ("betas", "eps", "weight_decay", "lr")} for g in x["options"]] for x in (before, loaded))
    assert has == had
