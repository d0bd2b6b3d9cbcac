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
