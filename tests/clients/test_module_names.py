"""FSDP2 with AdamW saves models whose modules have other names in transformers 5 than their files (module_ranks.py): experts of
Mixtral and Qwen3-MoE in one tensor, GPT-NeoX's head. What is imported is what transformers itself makes of weights and moments
when it writes them to files, and what is made of it at other layouts the program loads and continues from, bit for bit.
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from family_models import IN_MEMORY  # noqa: E402
from module_ranks import STEPS  # noqa: E402
from test_formats import tensors  # noqa: E402

KINDS = "dcp", "accelerate"
WAYS = "resharded", "exported"
CASES = [(family, kind) for family in IN_MEMORY for kind in KINDS]


def run_jobs(folder, jobs):
    for job in jobs:
        job.update(folder=str(folder / "made"), out=str(folder / (job["name"] + ".pt")))
    (folder / "jobs").write_text(json.dumps(jobs))
    r = subprocess.run([sys.executable, "-B", HERE / "module_ranks.py", folder / "jobs"], text=True, timeout=900,
                       env=dict(os.environ, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]
    return {job["name"]: torch.load(job["out"], weights_only=False) for job in jobs}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder, {case: what rank 0 had}): three ranks, so four experts are dealt unevenly."""
    folder = tmp_path_factory.mktemp("modules")
    jobs = [dict(name="%s-%s" % case, ranks=3, family=case[0], load=None, save=str(folder / ("%s-%s" % case)),
                 accelerate=case[1] == "accelerate") for case in CASES]
    return folder, run_jobs(folder, jobs)


def assert_equal(found, want):
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert torch.equal(x, want[name]) if torch.is_tensor(x) else x == want[name], name


@pytest.mark.parametrize("family,kind", CASES)
def test_what_fsdp2_saves_is_imported(family, kind, saved, tmp_path):
    folder, said = saved
    source, said = folder / ("%s-%s" % (family, kind)), said["%s-%s" % (family, kind)]
    assert IN_MEMORY[family] in said["param"] and said["step"] == {STEPS}
    groups = {group: said[group] for group in ("param", "exp_avg", "exp_avg_sq")}
    want = family_models.in_files(family_models.make(family, tmp_path / "config"), groups, tmp_path)
    harness.ok("tp-ckpt", "import", source, "--config", tmp_path / "config", "--layout", "tp2", "-o", tmp_path / "ckpt")
    assert_equal(tensors(tmp_path / "ckpt", tmp_path / "all.npz"), want)
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % STEPS
    assert "equal" in harness.ok("tp-ckpt", "diff", source, tmp_path / "ckpt", "--config", tmp_path / "config").out


@pytest.fixture(scope="module")
def loaded(saved):
    """{"case-way": what two ranks have after they have loaded it}, by way of another layout, and of a checkpoint of ours."""
    folder, _ = saved
    jobs = []
    for family, kind in CASES:
        source, config = folder / ("%s-%s" % (family, kind)), folder / ("config-" + family)
        family_models.make(family, config)
        out = {way: "%s-%s" % (source, way) for way in WAYS}
        harness.ok("tp-reshard", source, "--to", "tp2pp2", "--config", config, "-o", out["resharded"])
        harness.ok("tp-ckpt", "import", source, "--config", config, "-o", "%s-ckpt" % source)
        harness.ok("tp-ckpt", "export", "%s-ckpt" % source, "--format", kind, "--transformers", "5", "--layout", "tp4dp2zero1",
                   "-o", out["exported"])
        jobs += [dict(name="%s-%s-%s" % (family, kind, way), ranks=2, family=family, load=out[way], save=None,
                      accelerate=kind == "accelerate") for way in WAYS]
    return run_jobs(folder, jobs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family,kind", CASES)
def test_fsdp2_loads_it_at_other_ranks_and_continues(family, kind, way, saved, loaded):
    want, found = saved[1]["%s-%s" % (family, kind)], loaded["%s-%s-%s" % (family, kind, way)]
    for group in "param", "exp_avg", "exp_avg_sq":
        assert_equal(found[group], want[group])
    assert found["step"] == want["step"] and found["loss"] == want["loss"]
