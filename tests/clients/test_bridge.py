"""Megatron-Bridge loads what tp-ckpt export writes; tp-ckpt and tp-reshard read what Megatron-Bridge saved after a step, without a
config.json; and Megatron-Bridge loads what tp-reshard makes of it for other ranks: weights, masters, moments, steps, options of AdamW,
schedule and counters are equal, bit for bit."""
import json
import pathlib
import sys

import pytest
import torch
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402
from test_megatron import CHANGES, GROUPS, RATES, assert_equal, join  # noqa: E402

STEPS = 3
SAMPLES, MODEL_ID = 128, "tests/a-model"  # of bridge_ranks.py
VOCAB = 300  # is padded, to another size at each tp
FORMS = ("dp_reshardable", "fully_reshardable")
# model, the layout of the export; the ranks that load it, make a step and save: tp, pp, dp, ep; and those that load what tp-reshard
# makes of that. The first ones are often those of the export, so Bridge asks for the random state if it is told that there is one. With
# "newest" Megatron-core and Bridge are the newest ones of requirements-megatron.txt.
CASES = {"same": ("llama", "tp2pp2", (2, 2, 1, 1), (2, 2, 1, 1)), "joined-newest": ("llama", "tp2pp1", (2, 1, 2, 1), (1, 1, 3, 1)),
         "cut": ("llama", "tp1pp1", (1, 1, 2, 1), (2, 2, 2, 1)), "experts": ("mixtral", "tp2pp1", (2, 1, 1, 1), (1, 2, 1, 1)),
         "experts-ep2-newest": ("mixtral", "tp1pp2ep2", (1, 2, 2, 2), (2, 1, 2, 2))}


def job_of(folder, name, source, load, ranks, save=False, pretrained=False):
    (folder / name).mkdir()
    tp, pp, dp, ep = ranks
    return dict(tp=tp, pp=pp, dp=dp, ep=ep, load=str(load), pretrained=pretrained, save=str(folder / name / "saved") if save else None,
                forms=FORMS, override=save, out=str(folder / name), config=json.loads((source / "config.json").read_text()), block=0)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """({model: tensors that were exported}, {(case, what): job}): "saved" loads the export, "load-FORM" what tp-reshard makes of FORM,
    "pretrained" takes the weights of an export without an optimizer."""
    folder = tmp_path_factory.mktemp("bridge")
    trained, jobs = {}, {}
    for model in ("llama", "mixtral"):
        path = harness.write_config(folder / model, vocab_size=VOCAB, **CHANGES[model])
        harness.train(path, folder / model / "ckpt", steps=STEPS, layout="tp2pp2", dtype="bf16")
        trained[model] = tensors(folder / model / "ckpt", folder / model / "all.npz")
    for case, (model, layout, ranks, _) in CASES.items():
        harness.ok("tp-ckpt", "export", folder / model / "ckpt", "--format", "torch_dist", "-o", folder / (case + "-export"), "--layout",
                   layout, "--distributed-optimizer", *RATES)
        jobs[case, "saved"] = job_of(folder, case, folder / model, folder / (case + "-export"), ranks, save=True)
    harness.ok("tp-ckpt", "export", folder / "llama/ckpt", "--format", "torch_dist", "-o", folder / "weights", "--no-optim")
    jobs["same", "pretrained"] = job_of(folder, "pretrained", folder / "llama", folder / "weights", (1, 1, 1, 1), pretrained=True)
    run(folder, jobs)
    more = {}
    for case, (model, _, _, (tp, pp, dp, ep)) in CASES.items():
        for form in FORMS:
            to = "tp%dpp%d" % (tp, pp) + ("dp%dep%d" % (dp, ep) if ep > 1 else "")
            made = folder / ("%s-%s-made" % (case, form))
            harness.ok("tp-reshard", jobs[case, "saved"]["save"] + "-" + form, "--to", to, "-o", made)
            more[case, "load-" + form] = job_of(folder, "%s-%s" % (case, form), folder / model, made, (tp, pp, dp, ep))
    run(folder, more)
    return trained, {**jobs, **more}


def run(folder, jobs):
    for version in (None, frameworks.NEWEST_MEGATRON):
        (folder / "jobs").write_text(json.dumps([job for (case, _), job in jobs.items() if ("newest" in case) == bool(version)]))
        frameworks.run("bridge_ranks.py", folder / "jobs", megatron=version)


def outs(job):
    return [torch.load(pathlib.Path(job["out"]) / ("%d.pt" % r), weights_only=False) for r in range(job["tp"] * job["pp"] * job["ep"])]


@pytest.mark.parametrize("case", CASES)
def test_bridge_loads_the_export(case, ran):
    trained, jobs = ran
    job = jobs[case, "saved"]
    for group, ours in GROUPS.items():
        assert_equal(join(job, "loaded", group), trained[CASES[case][0]], ours)
    for out in outs(job):
        assert out["train"]["step"] == STEPS and all(x["step"] == STEPS for x in out["loaded"].values())


def test_bridge_takes_weights_as_a_pretrained_checkpoint(ran):
    trained, jobs = ran
    found = join(jobs["same", "pretrained"], "loaded", "weight")
    for name, x in found.items():
        assert torch.equal(x, trained["llama"]["param/" + name].bfloat16()), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_what_bridge_saves_is_imported(case, form, ran, tmp_path):
    trained, jobs = ran
    job = jobs[case, "saved"]
    root = pathlib.Path(job["save"] + "-" + form)
    (inside,) = root.glob("iter_*")
    r = harness.ok("tp-ckpt", "import", root, "-o", tmp_path / "ckpt")
    assert job["config"]["architectures"][0] in r.err and "run_config.yaml" in r.err, repr(r)
    assert "vocabulary of %d, without the" % VOCAB in r.err, repr(r)
    want = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group, ours in GROUPS.items():
        saved = join(job, "saved", group)
        assert_equal(saved, want, ours)
        assert not any(torch.equal(x, trained[CASES[case][0]]["%s/%s" % (ours, name)]) for name, x in saved.items()), "no step"
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % (STEPS + 1)
    digest = harness.ok("tp-ckpt", "digest", root).out
    for path, more in ((inside, ()), (root, ("--config", pathlib.Path(job["load"]) / "config.json"))):
        assert harness.ok("tp-ckpt", "digest", path, *more).out == digest
        assert harness.ok("tp-ckpt", "verify", path, *more).out.startswith("intact: ")
        assert "torch_dist" in harness.ok("tp-ckpt", "ls", path, *more).out
    hf = harness.ok("tp-reshard", root, "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    assert "run_config.yaml" in hf.out and (tmp_path / "hf/model.safetensors").exists(), repr(hf)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_bridge_loads_what_is_made_of_its_own(case, form, ran):
    _, jobs = ran
    before, job = jobs[case, "saved"], jobs[case, "load-" + form]
    for group in ("weight", *GROUPS):
        want = join(before, "saved", group)
        found = join(job, "loaded", group)
        assert want.keys() == found.keys() and all(torch.equal(found[name], want[name]) for name in want), group
    saved = outs(before)[0]
    for out in outs(job):
        assert out["train"] == {**saved["train saved"], "floating_point_operations_so_far": out["train"]["floating_point_operations_so_far"]}
        assert out["train"]["consumed_train_samples"] == (STEPS + 1) * SAMPLES
        assert out["schedule"] == saved["schedule saved"]
        assert all(x["step"] == STEPS + 1 for x in out["loaded"].values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_the_files_of_bridge_come_along(case, form, ran):
    """run_config.yaml is the same, but for the sizes of the job and the random state; train_state.pt is the same file."""
    _, jobs = ran
    job = jobs[case, "load-" + form]
    source, made = (next(pathlib.Path(x).glob("iter_*")) for x in (jobs[case, "saved"]["save"] + "-" + form, job["load"]))
    want, found = (yaml.safe_load((x / "run_config.yaml").read_text()) for x in (source, made))
    sizes = {"tensor_model_parallel_size": job["tp"], "pipeline_model_parallel_size": job["pp"], "expert_model_parallel_size": job["ep"],
             "expert_tensor_parallel_size": job["tp"]}
    assert found == {**want, "model": {**want["model"], **sizes}, "checkpoint": {**want["checkpoint"], "save_rng": False}}
    assert found["model"]["hf_model_id"] == MODEL_ID and want["checkpoint"]["save_rng"]
    assert (made / "train_state.pt").read_bytes() == (source / "train_state.pt").read_bytes()
    groups = torch.load(made / "common.pt", weights_only=False)["optimizer"]
    group = (groups[0] if 0 in groups else groups)["optimizer"]["param_groups"][0]
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.9, 0.95), 0.1, 1e-8)
