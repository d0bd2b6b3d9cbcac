"""DeepSpeed loads what tp-ckpt export and tp-reshard write as Universal, at other numbers of ranks and other stages of ZeRO,
and tp-ckpt import reads what DeepSpeed saves: masters, moments and step are equal, bit for bit."""
import json
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402

STEPS = 3
# DeepSpeed trains: stage of ZeRO, ranks, bf16
TRAINED = {"zero1": (1, 2, True), "zero2": (2, 3, False), "zero3": (3, 2, True)}
# DeepSpeed loads the Universal checkpoint that is made of a trained one, or of tp-train's: stage, ranks
LOADED = {("tp-train", 1, 3), ("tp-train", 3, 3), ("zero1", 3, 3), ("zero2", 1, 2), ("zero3", 2, 3)}
# Trained without the products of MLPs. 5 ranks divide none of their sizes.
FROZEN = {"zero1-frozen": (1, 2, True), "zero3-frozen": (3, 5, True), "zero3-f32-frozen": (3, 2, False)}
GROUPS = {"master": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


def run_jobs(folder, name, jobs):
    (folder / name).write_text(json.dumps(list(jobs.values())))
    frameworks.run("deepspeed_ranks.py", folder / name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(config.json, {job: (its folder, what rank 0 said)}, tensors of tp-train) after all ranks of DeepSpeed have run."""
    folder = tmp_path_factory.mktemp("deepspeed")
    path = harness.write_config(folder / "model")
    config = json.loads(path.read_text())
    harness.train(path, folder / "ckpt", steps=STEPS, layout="tp2pp2", dtype="bf16")

    def job(name, stage, ranks, bf16, load=None):
        return dict(stage=stage, ranks=ranks, bf16=bf16, load=load, frozen="mlp" if name in FROZEN else None, config=config, save=str(folder / name),
                    out=str(folder / (name + ".pt")))

    jobs = {name: job(name, *how) for name, how in {**TRAINED, **FROZEN}.items()}
    run_jobs(folder, "jobs-train", jobs)
    harness.ok("tp-ckpt", "export", folder / "ckpt", "--format", "deepspeed", "-o", folder / "tp-train-universal")
    for name in TRAINED:
        harness.ok("tp-reshard", folder / name, "--to", "tp1", "--config", path, "-o", folder / (name + "-universal"))
    loads = {case: job("%s-zero%d-%d" % case, *case[1:], TRAINED.get(case[0], (0, 0, True))[2],
                       str(folder / (case[0] + "-universal"))) for case in sorted(LOADED)}
    run_jobs(folder, "jobs-load", loads)
    said = {name: (pathlib.Path(j["save"]), torch.load(j["out"])) for name, j in {**jobs, **loads}.items()}
    return path, said, tensors(folder / "ckpt", folder / "all.npz")


def assert_equal(state, want, step):
    for group, ours in GROUPS.items():
        assert {ours + "/" + name for name in state} == {k for k in want if k.startswith(ours + "/")}
        for name, x in state.items():
            assert torch.equal(x[group], want["%s/%s" % (ours, name)]), (group, name)
    assert {x["step"] for x in state.values()} == {step}


def differ(a, b):
    return all(not torch.equal(a[name][group], b[name][group]) for name in a for group in GROUPS)


@pytest.mark.parametrize("case", [*TRAINED, *sorted(LOADED)], ids=str)
def test_what_deepspeed_saves_is_imported(case, ran, tmp_path):
    config, said, _ = ran
    folder, out = said[case]
    harness.ok("tp-ckpt", "import", folder, "--config", config, "-o", tmp_path / "ckpt")
    (at,) = {x["step"] for x in out["saved"].values()}
    assert_equal(out["saved"], tensors(tmp_path / "ckpt", tmp_path / "all.npz"), at)
    assert differ(out["saved"], out["loaded"]), "there was no step"
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % at


@pytest.mark.parametrize("case", FROZEN)
def test_what_is_not_trained_is_imported(case, ran, tmp_path):
    config, said, _ = ran
    folder, out = said[case]
    r = harness.run("tp-ckpt", "import", folder, "--config", config, "-o", tmp_path / "no")
    assert r.rc == 3 and "mlp" in r.err and "--no-optim" in r.err, repr(r)
    harness.ok("tp-ckpt", "import", folder, "--config", config, "--no-optim", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "hf")
    found, saved = load_file(tmp_path / "hf/model.safetensors"), out["saved"]
    assert {k for k, x in saved.items() if "weight" in x} == {k for k in saved if "mlp" in k}
    assert set(found) == set(saved) and {x.dtype for x in found.values()} == {torch.bfloat16 if FROZEN[case][2] else torch.float32}
    for name, x in saved.items():
        assert torch.equal(x["weight"] if "weight" in x else x["master"].to(found[name].dtype), found[name]), name


@pytest.mark.parametrize("case", sorted(LOADED), ids=str)
def test_deepspeed_loads_universal(case, ran):
    _, said, trained = ran
    loaded = said[case][1]["loaded"]
    if case[0] == "tp-train":
        return assert_equal(loaded, trained, STEPS)
    saved = said[case[0]][1]["saved"]
    assert loaded.keys() == saved.keys()
    for name, x in loaded.items():
        assert all(torch.equal(x[group], saved[name][group]) for group in GROUPS) and x["step"] == saved[name]["step"], name
