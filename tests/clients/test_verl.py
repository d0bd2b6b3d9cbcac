"""FSDP checkpoints of verl, which verl_ranks.py saves and loads by the same calls: what is imported is what torch gathers, bit for bit, for
FSDP2 and FSDP1, HSDP, uneven and empty parts, and tied heads. What tp-reshard writes for other numbers of ranks is loaded by them, and their
next step is that of the run that was not resharded, bit for bit.

needs: tp-ckpt tp-reshard
"""
import json
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import family_models  # noqa: E402
import harness  # noqa: E402
from family_models import IN_MEMORY  # noqa: E402
from test_formats import tensors  # noqa: E402

RANKS = pathlib.Path(__file__).with_name("verl_ranks.py")
STEPS = 2
GROUPS = "param", "exp_avg", "exp_avg_sq"
# No number of ranks divides all sizes, and 9 rows on 4 ranks are 3, 3, 3 and none.
SIZES = dict(vocab_size=251, hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=10, intermediate_size=9)
# kind of FSDP, ranks, fsdp_size, and more of the job
SAVED = {"fsdp2": ("fsdp2", 4, -1), "hsdp2": ("fsdp2", 4, 2), "tied2": ("fsdp2", 3, -1, "tied"), "dims2": ("fsdp2", 3, -1, "rule"),
         "fsdp1": ("fsdp1", 4, -1), "hsdp1": ("fsdp1", 4, 2), "tied1": ("fsdp1", 3, -1, "tied"), "orig1": ("fsdp1-orig", 3, -1),
         "one2": ("fsdp2", 1, -1),
         # their modules have the experts of a layer in one tensor
         "qwen3-moe2": ("fsdp2", 3, -1, "qwen3-moe"), "mixtral2": ("fsdp2", 4, 2, "mixtral"), "mixtral-dims2": ("fsdp2", 3, -1, "mixtral", "rule"),
         "qwen3-moe1": ("fsdp1", 3, -1, "qwen3-moe"), "mixtral1": ("fsdp1", 4, 2, "mixtral"), "mixtral-orig1": ("fsdp1-orig", 3, -1, "mixtral")}

# tp-reshard writes these for other numbers of ranks: name in SAVED, ranks, and the argument of --to
LOADED = {"fsdp2-2": ("fsdp2", 2), "fsdp2-3": ("fsdp2", 3), "fsdp2-1": ("fsdp2", 1), "fsdp2-5": ("fsdp2", 5), "hsdp2-6": ("hsdp2", 6),
          "tied2-2": ("tied2", 2), "dims2-4": ("dims2", 4), "one2-3": ("one2", 3),
          "fsdp1-2": ("fsdp1", 2), "fsdp1-3": ("fsdp1", 3), "hsdp1-6": ("hsdp1", 6), "tied1-4": ("tied1", 4),
          "qwen3-moe2-5": ("qwen3-moe2", 5), "mixtral2-6": ("mixtral2", 6), "mixtral-dims2-4": ("mixtral-dims2", 4),
          "qwen3-moe1-2": ("qwen3-moe1", 2), "mixtral1-6": ("mixtral1", 6)}


def make_job(folder, name, kind, ranks, fsdp_size, *more, load=None):
    path = harness.write_config(folder / "model", **SIZES, tie_word_embeddings="tied" in more)
    for family in IN_MEMORY.keys() & set(more):
        family_models.make(family, folder / family)
        path = folder / family / "config.json"
    config = json.loads(path.read_text())
    return dict(kind=kind, ranks=ranks, fsdp_size=fsdp_size, rule="rule" in more, config=config, load=load and str(load),
                save=str(folder / name / "actor"), out=str(folder / (name + ".pt")))


def run_jobs(folder, name, jobs):
    path = folder / name
    path.write_text(json.dumps(list(jobs.values())))
    r = subprocess.run([sys.executable, "-B", RANKS, path], text=True, timeout=1200, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert r.returncode == 0, r.stdout[-6000:]
    return {name: torch.load(job["out"]) for name, job in jobs.items()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(folder, {job: what rank 0 said})"""
    folder = tmp_path_factory.mktemp("verl")
    return folder, run_jobs(folder, "jobs", {name: make_job(folder, name, *how) for name, how in SAVED.items()})


@pytest.fixture(scope="module")
def loaded(ran):
    """{case of LOADED: what rank 0 said}"""
    folder, _ = ran
    jobs = {}
    for case, (name, ranks) in LOADED.items():
        r = harness.ok("tp-reshard", folder / name / "actor", "--to", "dp%d" % ranks, "-o", folder / "to" / case)
        assert [line.split()[-1] for line in r.out.splitlines() if line.startswith("left out")] == ["rng"], repr(r)
        kind, _, fsdp_size, *more = SAVED[name]
        jobs[case] = make_job(folder, "again-" + case, kind, ranks, fsdp_size, *more, load=folder / "to" / case)
    return run_jobs(folder, "loads", jobs)


def assert_equal(found, state, family, folder):
    """Of a family whose modules have other names than files, what transformers makes of them."""
    groups = {group: {name: x[group] for name, x in state.items()} for group in GROUPS}
    if family:
        assert IN_MEMORY[family] in state
        want = family_models.in_files(family_models.make(family, folder / family), groups, folder)
    else:
        want = {"%s/%s" % (group, name): x for group in GROUPS for name, x in groups[group].items()}
    assert found.keys() == want.keys()
    for name, x in want.items():
        assert torch.equal(found[name], x), name


def family_of(name):
    return next((word for word in SAVED[name][3:] if word in IN_MEMORY), None)


@pytest.mark.parametrize("case", SAVED)
def test_what_verl_saves_is_imported(case, ran, tmp_path):
    folder, said = ran
    state = said[case]["saved"]
    assert {float(x["step"]) for x in state.values()} == {STEPS}
    assert all(x["exp_avg"].count_nonzero() for x in state.values())
    r = harness.ok("tp-ckpt", "import", folder / case, "-o", tmp_path / "ckpt")
    assert "huggingface/config.json" in r.out + r.err
    assert [p.name for p in harness.steps(tmp_path / "ckpt")] == ["step-%08d" % STEPS]
    assert_equal(tensors(tmp_path / "ckpt", tmp_path / "all.npz"), state, family_of(case), tmp_path)


@pytest.mark.parametrize("case", LOADED)
def test_another_number_of_ranks_continues_as_if_nothing_had_happened(case, ran, loaded, tmp_path):
    folder, said = ran
    before, after = said[LOADED[case][0]], loaded[case]
    for key in "saved", "next":
        assert before[key].keys() == after[key].keys()
        for name, x in before[key].items():
            assert all(torch.equal(v, after[key][name][k]) for k, v in x.items()), (key, name)
    assert (before["lr"], before["epoch"]) == (after["lr"], after["epoch"]) and before["lr"] != 1e-3
    assert not torch.equal(before["saved"]["model.norm.weight"]["param"], before["next"]["model.norm.weight"]["param"])
    harness.ok("tp-ckpt", "import", folder / ("again-" + case), "-o", tmp_path / "ckpt")  # of what they save then
    assert_equal(tensors(tmp_path / "ckpt", tmp_path / "all.npz"), before["saved"], family_of(LOADED[case][0]), tmp_path)


def test_transformers_computes_with_an_export(ran, tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    folder, said = ran
    harness.ok("tp-reshard", folder / "fsdp2", "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    state = {name: x["param"] for name, x in said["fsdp2"]["saved"].items()}
    assert set(load_file(tmp_path / "hf/model.safetensors")) == set(state)
    model = LlamaForCausalLM(LlamaConfig.from_dict(make_job(folder, "x", "fsdp2", 1, -1)["config"]))
    model.load_state_dict(state)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(ids).logits, model(ids).logits)
