"""tp-ckpt and tp-reshard read what NeMo 2 saves, with versions of Megatron-core that it was used with: weights, masters and moments are
those that its ranks had loaded, bit for bit."""
import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402
from test_megatron import CHANGES  # noqa: E402

STEPS = 3
VOCAB = 256  # NeMo's model.yaml does not have it, so all rows are taken, and here none is padding
VERSIONS = ("0.12.3", "0.14.0")
# model, the ranks' tp, pp, dp and ep, and the form of the optimizer
CASES = {"llama": ("llama", 2, 1, 2, 1, "fully_sharded_model_space"), "experts": ("mixtral", 1, 2, 2, 2, "fully_sharded_model_space"),
         "flat": ("llama", 1, 2, 1, 1, "dp_zero_gather_scatter")}


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
    """{case: the folder that NeMo's calls have saved}"""
    folder, jobs = tmp_path_factory.mktemp("nemo"), {}
    for name, (model, tp, pp, dp, ep, form) in CASES.items():
        source = trained[model][0]
        harness.ok("tp-ckpt", "export", source / "ckpt", "--format", "torch_dist", "-o", folder / (name + "-export"), "--layout",
                   "tp2pp1" + ("ep%d" % ep if ep > 1 else ""), "--distributed-optimizer", "--megatron-core", request.param)
        jobs[name] = dict(tp=tp, pp=pp, dp=dp, ep=ep, load=str(folder / (name + "-export")), save=str(folder / name),
                          block=0, form=form, config=json.loads((source / "config.json").read_text()))
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("nemo_ranks.py", folder / "jobs", megatron=request.param)
    return {name: folder / name for name in CASES}


@pytest.mark.parametrize("case", ("llama", "experts"))
def test_what_nemo_saves_is_imported(case, ran, trained, tmp_path):
    source, want = trained[CASES[case][0]]
    r = harness.ok("tp-ckpt", "import", ran[case], "-o", tmp_path / "ckpt")
    assert "context/model.yaml" in r.err and json.loads((source / "config.json").read_text())["architectures"][0] in r.err, repr(r)
    assert "loops" in r.out and "lr_schedulers" in r.out, repr(r)
    found = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    assert want.keys() == found.keys() and all(torch.equal(found[name], want[name]) for name in want)
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % STEPS
    digest = harness.ok("tp-ckpt", "digest", ran[case]).out
    for path, more in ((ran[case] / "weights", ()), (ran[case], ("--config", source / "config.json"))):
        assert harness.ok("tp-ckpt", "digest", path, *more).out == digest
        assert harness.ok("tp-ckpt", "verify", path, *more).out.startswith("intact: ")
    harness.ok("tp-reshard", ran[case], "--to", "tp2", "-o", tmp_path / "made")
    assert harness.ok("tp-ckpt", "digest", tmp_path / "made").out == digest


def test_flat_buffers_of_an_unknown_layout_are_refused(ran, trained, tmp_path):
    r = harness.run("tp-ckpt", "import", ran["flat"], "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "--no-optim" in r.err and "tensor-parallel and pipeline sizes" in r.err, repr(r)
    harness.ok("tp-ckpt", "import", ran["flat"], "-o", tmp_path / "ckpt", "--no-optim")
    harness.ok("tp-ckpt", "diff", tmp_path / "ckpt", trained["llama"][0] / "ckpt", "--group", "param")
    listed = harness.ok("tp-ckpt", "digest", tmp_path / "ckpt").out
    assert "  param/" in listed and "  exp_avg" not in listed, listed
