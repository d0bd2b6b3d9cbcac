"""Checkpoints of Hugging Face Accelerate with FSDP, and of the Trainer of transformers (accelerate_ranks.py, on CPUs): what they
save is imported, and what is made of it at other layouts they load, bit for bit, and continue as if nothing had happened."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import Trainer

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from accelerate_ranks import ALL_STEPS, CONFIG, STEPS  # noqa: E402
from test_formats import tensors  # noqa: E402

JOB = dict(ranks=2, version=2, kind="SHARDED_STATE_DICT", groups=2, tied=False, load=None, trainer=False)
SAVES = {"untied": {}, "tied": dict(tied=True, groups=1), "fsdp1": dict(version=1), "fsdp1-tied": dict(version=1, tied=True),
         "full": dict(kind="FULL_STATE_DICT"), "full-tied": dict(kind="FULL_STATE_DICT", tied=True, groups=1),
         "trainer": dict(trainer=True), "trainer-tied": dict(trainer=True, tied=True),
         "trainer-full": dict(trainer=True, kind="FULL_STATE_DICT")}
WAYS = "resharded", "exported"
MORE_RANKS = "untied-exported-3", "tied-resharded-3"


def run_jobs(folder, jobs):
    (folder / "jobs").write_text(json.dumps(jobs))
    env = dict(os.environ, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1", ACCELERATE_USE_FSDP="false")
    r = subprocess.run([sys.executable, "-B", HERE / "accelerate_ranks.py", folder / "jobs"], env=env, text=True,
                       timeout=900, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]


def saved_in(folder, name):
    return folder / name / ("checkpoint-%d" % STEPS if SAVES[name].get("trainer") else "")


def config_of(folder, name):
    return folder / ("tied.json" if SAVES[name].get("tied") else "untied.json")


def convert(folder, name):
    """What is made of a checkpoint: another layout at once; and by way of a checkpoint of ours."""
    source, config = saved_in(folder, name), config_of(folder, name)
    harness.ok("tp-reshard", source, "--to", "tp2pp2", "--config", config, "-o", folder / (name + "-resharded"))
    harness.ok("tp-ckpt", "import", source, "--layout", "tp2dp2zero1", "--config", config, "-o", folder / (name + "-ckpt"))
    out = folder / (name + "-exported")
    harness.ok("tp-ckpt", "export", folder / (name + "-ckpt"), "--format", "accelerate", "--layout", "tp2pp2", "-o", out)
    state = json.loads((out / "trainer_state.json").read_text())  # as the note of the export says
    (out / "trainer_state.json").write_text(json.dumps({**state, "train_batch_size": 2, "logging_steps": 1, "save_steps": STEPS}))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, {job: what rank 0 said}) after all ranks have run."""
    folder = tmp_path_factory.mktemp("accelerate")
    for tied in False, True:
        (folder / ("tied.json" if tied else "untied.json")).write_text(json.dumps(
            dict(CONFIG, model_type="llama", tie_word_embeddings=tied, rms_norm_eps=1e-6, rope_theta=10000.0)))
    jobs = {name: dict(JOB, **more, save=str(folder / name)) for name, more in SAVES.items()}
    loads = {"%s-%s" % (name, way): dict(jobs[name], kind=JOB["kind"], save=str(folder / (name + way)), load=str(folder / ("%s-%s" % (name, way))))
             for name in SAVES for way in WAYS}
    loads.update((name, dict(loads[name[:-2]], ranks=3)) for name in MORE_RANKS)
    for name, job in {**jobs, **loads}.items():
        job["out"] = str(folder / (name + ".pt"))
    run_jobs(folder, list(jobs.values()))
    for name in SAVES:
        convert(folder, name)
    run_jobs(folder, list(loads.values()))
    return folder, {name: torch.load(job["out"], weights_only=False) for name, job in {**jobs, **loads}.items()}


def without_initial_lr(state):
    """Which only schedules add; of a checkpoint of ours it is the rate itself."""
    return {**state, "options": [{k: v for k, v in g.items() if k != "initial_lr"} for g in state["options"]]}


def assert_equal(found, want):
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert torch.equal(x, want[name]) if torch.is_tensor(x) else x == want[name], name


@pytest.mark.parametrize("name", [n for n in SAVES if not SAVES[n].get("trainer")])
def test_what_accelerate_saves_is_imported(name, ran, tmp_path):
    folder, said = ran
    saved = dict(said[name]["saved"])
    assert saved.pop("step") == {STEPS}
    del saved["options"]
    if SAVES[name].get("tied"):
        del saved["param/lm_head.weight"]
    assert_equal(tensors(folder / (name + "-ckpt"), tmp_path / "all.npz"), saved)
    assert harness.steps(folder / (name + "-ckpt"))[-1].name == "step-%08d" % STEPS
    assert "equal" in harness.ok("tp-ckpt", "diff", saved_in(folder, name), folder / (name + "-exported")).out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [n for n in SAVES if not SAVES[n].get("trainer")])
def test_accelerate_loads_it_and_continues(name, way, ran):
    _, said = ran
    job = said["%s-%s" % (name, way)]
    assert_equal(without_initial_lr(job["loaded"]), said[name]["saved"])
    assert_equal(without_initial_lr(job["after"]), said[name]["after"])


@pytest.mark.parametrize("name", MORE_RANKS)
def test_accelerate_loads_it_on_another_number_of_ranks(name, ran):
    _, said = ran
    assert_equal(without_initial_lr(said[name]["loaded"]), said[name.split("-")[0]]["saved"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [n for n in SAVES if SAVES[n].get("trainer")])
def test_the_trainer_resumes(name, way, ran):
    """With the losses, the rates and the weights of the run that was not interrupted."""
    _, said = ran
    whole, resumed = said[name], said["%s-%s" % (name, way)]
    last = range(STEPS + 1, ALL_STEPS + 1)
    assert {k: resumed["log"][k][0] for k in last} == {k: whole["log"][k][0] for k in last}
    assert {k: resumed["log"][k][1] for k in last[1:]} == {k: whole["log"][k][1] for k in last[1:]}
    assert_equal(without_initial_lr(resumed["after"]), without_initial_lr(whole["after"]))


@pytest.mark.parametrize("family", family_models.FAMILIES)
def test_groups_are_those_of_the_trainer_in_every_family(family, tmp_path):
    """Also by way of a checkpoint of ours."""
    model = family_models.make(family, tmp_path / "model")
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(16)[None], labels=torch.arange(16)[None]).loss.backward()
    optimizer.step()
    folder = tmp_path / "checkpoint-1"
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    dcp.save({"optimizer": {"state": get_optimizer_state_dict(model, optimizer)["state"]}}, checkpoint_id=folder / "optimizer_0", no_dist=True)
    harness.ok("tp-reshard", folder, "--to", "tp2", "--config", tmp_path / "model", "-o", tmp_path / "a")
    harness.ok("tp-ckpt", "import", folder, "--config", tmp_path / "model", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "accelerate", "--transformers", "5", "-o", tmp_path / "b")
    decaying = set(Trainer.get_decay_parameter_names(None, model))
    names = [n for n, _ in model.named_parameters()]
    for out in tmp_path / "a", tmp_path / "b":
        dcp_to_torch_save(out / "optimizer_0", tmp_path / "whole.pt")
        groups = torch.load(tmp_path / "whole.pt", weights_only=False)["optimizer"]["param_groups"]
        assert [sorted(g["params"]) for g in groups] == [sorted(n for n in names if (n in decaying) == d) for d in (True, False)]
