"""Megatron-core 0.8 to 0.14 load what --megatron-core writes for them with their distributed optimizer: weights, masters, moments,
step and groups are equal, bit for bit. tp-ckpt import reads what they then save."""
import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402
from test_megatron import CHANGES, GROUPS, assert_equal, join  # noqa: E402

STEPS = 3
VOCAB = 512  # needs no padding: these versions load the optimizer only where the padded vocabulary is the same
VERSIONS = [version for version in frameworks.megatron_versions() if version != frameworks.NEWEST_MEGATRON]
# model, the layout of the export, and the ranks' tp, pp, dp and ep
CASES = {"same": ("llama", "tp2pp2", 2, 2, 1, 1), "cut": ("llama", "tp1", 2, 1, 2, 1), "joined": ("llama", "tp4pp2", 1, 1, 3, 1),
         "experts": ("mixtral", "tp2pp2", 1, 1, 2, 1), "experts-ep2": ("mixtral", "tp1ep4", 1, 2, 2, 2)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{model: (its folder, the tensors of its checkpoint)}"""
    folder, out = tmp_path_factory.mktemp("trained"), {}
    for model in ("llama", "mixtral"):
        path = harness.write_config(folder / model, vocab_size=VOCAB, **CHANGES[model])
        harness.train(path, folder / model / "ckpt", steps=STEPS, layout="tp2pp2", dtype="bf16")
        out[model] = folder / model, tensors(folder / model / "ckpt", folder / model / "all.npz")
    return out


@pytest.fixture(scope="module", params=VERSIONS)
def ran(request, trained, tmp_path_factory):
    """{case: job} after the ranks of a version have run."""
    folder, jobs = tmp_path_factory.mktemp("core"), {}
    for name, (model, layout, tp, pp, dp, ep) in CASES.items():
        source = trained[model][0]
        harness.ok("tp-ckpt", "export", source / "ckpt", "--format", "torch_dist", "-o", folder / name, "--layout", layout,
                   "--distributed-optimizer", "--megatron-core", request.param)
        (folder / name / "out").mkdir()
        jobs[name] = dict(tp=tp, pp=pp, dp=dp, ep=ep, load=str(folder / name), save=str(folder / name / "saved"),
                          block=0, out=str(folder / name / "out"), config=json.loads((source / "config.json").read_text()))
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("megatron_core_ranks.py", folder / "jobs", megatron=request.param)
    return jobs


@pytest.mark.parametrize("case", CASES)
def test_a_version_loads_what_is_written_for_it(case, ran, trained):
    job = ran[case]
    for group, ours in GROUPS.items():
        assert_equal(join(job, "loaded", group), trained[CASES[case][0]][1], ours)
    for rank in range(job["tp"] * job["pp"] * job["ep"]):
        for name, x in torch.load(pathlib.Path(job["out"]) / ("%d.pt" % rank))["loaded"].items():
            assert torch.equal(x["weight"], x["master"].bfloat16()) and x["step"] == STEPS, name
            # Before 0.14 groups are taken by their order, which a later stage has another of, with layers that begin with a norm.
            assert x["wd_mult"] == (x["weight"].ndim > 1) or rank >= job["tp"] * job["ep"], name


@pytest.mark.parametrize("case", CASES)
def test_what_a_version_saves_is_imported(case, ran, trained, tmp_path):
    harness.ok("tp-ckpt", "import", ran[case]["save"], "-o", tmp_path / "ckpt")
    want, found = trained[CASES[case][0]][1], tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    assert want.keys() == found.keys() and all(torch.equal(found[name], want[name]) for name in want)
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % STEPS
