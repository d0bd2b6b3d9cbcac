"""tp-ckpt and tp-reshard read what Megatron-FSDP saves as fsdp_dtensor, without a config.json: masters, moments and steps are those that
its ranks hold, bit for bit; and Megatron-core's ordinary ranks load what is made of it."""
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

STEPS = 2  # of fsdp_ranks.py
VOCAB = 300  # is padded, to another size at each tp
# model, tp, dp, ep, and --data-parallel-sharding-strategy. Without "f32" in the name models are in bf16; with "sequential" experts are
# not in grouped layers.
CASES = {"dp2": ("llama", 1, 2, 1, "optim_grads_params"), "dp3": ("qwen3", 1, 3, 1, "optim_grads_params"),
         "tp2dp2": ("llama", 2, 2, 1, "optim_grads_params"), "gpt2-dp2-f32": ("gpt2", 1, 2, 1, "optim_grads_params"),
         "dp2-optim": ("llama", 1, 2, 1, "optim"), "gpt2-tp2dp2": ("gpt2", 2, 2, 1, "optim_grads_params"),
         "ep2dp4": ("mixtral", 1, 4, 2, "optim_grads_params"), "tp2ep2dp2": ("mixtral", 2, 2, 2, "optim_grads_params"),
         "sequential-ep2dp2": ("mixtral", 1, 2, 2, "optim_grads_params")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """{case: job} after the ranks have run."""
    folder = tmp_path_factory.mktemp("fsdp")
    jobs = {}
    for model in {case[0] for case in CASES.values()}:
        path = harness.write_config(folder / model, vocab_size=VOCAB, **CHANGES[model])
        harness.train(path, folder / model / "ckpt", steps=1, layout="tp1", dtype="bf16")
        harness.ok("tp-ckpt", "export", folder / model / "ckpt", "--format", "torch_dist", "-o", folder / model / "args")
    for name, (model, tp, dp, ep, strategy) in CASES.items():
        (args,) = (folder / model / "args").glob("iter_*/common.pt")
        (folder / name / "out").mkdir(parents=True)
        jobs[name] = dict(tp=tp, pp=1, dp=dp, ep=ep, grouped="sequential" not in name, bf16="f32" not in name, strategy=strategy,
                          args=str(args), save=str(folder / name / "saved"), out=str(folder / name / "out"), load=None, block=0,
                          config=json.loads((folder / model / "config.json").read_text()))
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("fsdp_ranks.py", folder / "jobs")
    return jobs


@pytest.mark.parametrize("case", CASES)
def test_what_megatron_fsdp_saves_is_imported(case, ran, tmp_path):
    job = ran[case]
    r = harness.ok("tp-ckpt", "import", job["save"], "-o", tmp_path / "ckpt")
    assert job["config"]["architectures"][0] in r.err and "Megatron-FSDP" in r.out, repr(r)
    want = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group, ours in GROUPS.items():
        assert_equal(join(job, "saved", group), want, ours)
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % STEPS


# What is made of a case as torch_dist: the ranks of Megatron-core that load it, tp, pp, dp and ep.
MADE = {"dp3": (2, 1, 2, 1), "tp2dp2": (1, 2, 1, 1), "tp2ep2dp2": (1, 2, 2, 2)}
# Cases of Megatron-Bridge: model, tp, dp, ep.
BRIDGE = {"bridge": ("llama", 2, 2, 1), "bridge-ep2": ("mixtral", 1, 2, 2)}


def job_to_load(job, load, folder, ranks):
    """Megatron-core's ranks that load the folder."""
    tp, pp, dp, ep = ranks
    (folder / "out").mkdir(parents=True)
    to = "tp%dpp%d" % (tp, pp) + ("dp%dep%d" % (dp, ep) if ep > 1 else "")
    harness.ok("tp-reshard", load, "--to", to, "--format", "torch_dist", "-o", folder / "made")
    return dict(tp=tp, pp=pp, dp=dp, ep=ep, vpp=1, load=str(folder / "made"), save=str(folder / "saved"), out=str(folder / "out"),
                config=job["config"], block=0)


@pytest.fixture(scope="module")
def loaded(ran, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    jobs = {case: dict(job_to_load(ran[case], ran[case]["save"], folder / case, ranks), format="torch_dist", distributed=True, fused=True,
                       flat=(), grouped=True) for case, ranks in MADE.items()}
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("megatron_ranks.py", folder / "jobs", "transformer_engine")
    return jobs


@pytest.mark.parametrize("case", MADE)
def test_megatron_core_continues_without_fsdp(case, ran, loaded):
    for group in GROUPS:
        want, found = join(ran[case], "saved", group), join(loaded[case], "loaded", group)
        assert want.keys() == found.keys() and all(torch.equal(found[name], want[name]) for name in want), group
    for file in pathlib.Path(loaded[case]["out"]).iterdir():
        for name, x in torch.load(file)["loaded"].items():
            assert torch.equal(x["weight"], x["master"].bfloat16()) and x["step"] == STEPS, name


@pytest.fixture(scope="module")
def bridged(ran, tmp_path_factory):
    """{case: (job of Megatron-Bridge with Megatron-FSDP, job of one without that loads what is made of it)}"""
    folder = tmp_path_factory.mktemp("bridged")
    saved = {}
    for case, (model, tp, dp, ep) in BRIDGE.items():
        (folder / case / "out").mkdir(parents=True)
        like = next(job for name, job in ran.items() if CASES[name][0] == model)
        saved[case] = dict(like, tp=tp, dp=dp, ep=ep, save=str(folder / case / "saved"), out=str(folder / case / "out"))
    (folder / "jobs").write_text(json.dumps(list(saved.values())))
    frameworks.run("fsdp_ranks.py", folder / "jobs", "bridge")
    jobs = {case: dict(job_to_load(job, job["save"], folder / (case + "-made"), (1, 2, 2, BRIDGE[case][3])), pretrained=False,
                       save=None, forms=(), override=False) for case, job in saved.items()}
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("bridge_ranks.py", folder / "jobs")
    return {case: (saved[case], jobs[case]) for case in BRIDGE}


@pytest.mark.parametrize("case", BRIDGE)
def test_what_bridge_saves_is_imported_and_it_continues_without_fsdp(case, bridged, tmp_path):
    saved, job = bridged[case]
    r = harness.ok("tp-ckpt", "import", saved["save"], "-o", tmp_path / "ckpt")
    assert "run_config.yaml" in r.err and "Megatron-FSDP" in r.out, repr(r)
    ours = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group in GROUPS:
        want = join(saved, "saved", group)
        assert_equal(want, ours, GROUPS[group])
        found = join(job, "loaded", group)
        assert want.keys() == found.keys() and all(torch.equal(found[name], want[name]) for name in want), group
    for file in pathlib.Path(job["out"]).iterdir():
        out = torch.load(file, weights_only=False)
        assert out["train"]["step"] == STEPS and out["train"]["consumed_train_samples"] == STEPS * 128, out["train"]
        assert all(x["step"] == STEPS for x in out["loaded"].values())
        assert out["schedule"]["num_steps"] == STEPS * 128 and out["schedule"]["max_lr"] == 1e-3, out["schedule"]
