"""torchtitan 0.2 and 0.3 (torchtitan_ranks.py) save and load Llama, Qwen3 and Qwen3-MoE with AdamW: imported, resharded and exported.
What is imported is compared with torchtitan's own adapter, bit for bit, and what it loads by its logits with transformers."""
import json
import pathlib
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402

STEPS = 3
VERSIONS = [line.split()[0].split("==")[1] for line in (frameworks.HERE / "requirements-torchtitan.txt").read_text().splitlines()
            if line.startswith("torchtitan")]
TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250  # of torchtitan_ranks.py
SIZES = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=192)
QWEN = dict(SIZES, head_dim=32, rms_norm_eps=1e-6, attention_bias=None, mlp_bias=None)
MODELS = {"llama": dict(SIZES, head_dim=16),
          "qwen3": dict(QWEN, architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True),
          "qwen3_moe": dict(QWEN, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=48, norm_topk_prob=True)}
PARALLEL = [(2, 1), (2, 2)]  # tp and ep of torchtitan 0.3 on four ranks, the rest by FSDP


class Run:
    """The jobs of a version: what was run, and what rank 0 said."""

    def __init__(self, folder, version):
        self.folder, self.version, self.jobs = folder / version, version, {}
        self.folder.mkdir()

    def add(self, name, model, config, ranks, load=None, whole=False, axis=0, tp=1, ep=1):
        self.jobs[name] = dict(ranks=ranks, config=config, load=load and str(load), all=whole, axis=axis, tp=tp, ep=ep,
                               save=str(self.folder / name), out=str(self.folder / (name + ".pt")), model=model)

    def run(self):
        jobs = [job for job in self.jobs.values() if not pathlib.Path(job["out"]).exists()]
        (self.folder / "jobs").write_text(json.dumps(jobs))
        frameworks.run("torchtitan_ranks.py", self.folder / "jobs", torchtitan=self.version)

    def said(self, name):
        return torch.load(self.jobs[name]["out"])

    def saved(self, name):
        return self.folder / name / "step-1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder, {model: config}) with a checkpoint of tp-train of each, and an export for torchtitan."""
    folder, configs = tmp_path_factory.mktemp("torchtitan"), {}
    for model, changes in MODELS.items():
        path = harness.write_config(folder / model, **changes)
        configs[model] = json.loads(path.read_text())
        harness.train(path, folder / model / "ckpt", steps=STEPS, layout="tp2pp2")
        harness.ok("tp-ckpt", "export", folder / model / "ckpt", "--format", "torchtitan", "-o", folder / model / "exported", "--layout",
                   "tp2dp2ep2" if "moe" in model else "tp2dp3zero1")
    return folder, configs


@pytest.fixture(scope="module")
def ran(trained):
    """{version: Run} after all ranks have run: each version loads what it saved, what the other one saved, and exports."""
    folder, configs = trained
    runs = {version: Run(folder, version) for version in VERSIONS}
    for version, run in runs.items():
        for model, config in configs.items():
            run.add(model, model, config, ranks=3)
            run.add(model + "-exported", model, config, ranks=2, load=folder / model / "exported")
        run.add("cut-experts", "qwen3_moe", configs["qwen3_moe"], ranks=2, axis=1)
        for tp, ep in PARALLEL if version >= "0.3" else ():
            name, config = "tp%dep%d" % (tp, ep), configs["qwen3_moe"]
            run.add(name, "qwen3_moe", config, ranks=4, tp=tp, ep=ep)
            run.add(name + "-exported", "qwen3_moe", config, ranks=4, load=folder / "qwen3_moe/exported", tp=tp, ep=ep)
        run.run()
    for version, run in runs.items():
        for model in configs:
            harness.ok("tp-reshard", run.saved(model), "--to", "tp2pp2", "--config", folder / model, "-o",
                       run.folder / (model + "-tp2pp2"))
    for version, run in runs.items():
        for other, from_run in runs.items():
            for model, config in configs.items():
                run.add("%s-of-%s" % (model, other), model, config, ranks=2, load=from_run.folder / (model + "-tp2pp2"),
                        whole=other == version)
        run.run()
    return runs


def is_copy(config, name):
    return name.endswith("lm_head.weight") and config["tie_word_embeddings"]


def assert_equal(found, want, config):
    """Tensors of torchtitan's adapter, which may have the copy of a tied head."""
    found = {k: x for k, x in found.items() if not is_copy(config, k)}
    assert found.keys() == want.keys()
    for name, x in found.items():
        assert torch.equal(x, want[name]), name


def steps_of(said):
    return {float(x) for k, x in said["state"].items() if k.endswith(".step")}


def biases(said):
    return [x for k, x in sorted(said["state"].items()) if ".moe.expert_bias" in k]


PARALLEL_NAMES = ["tp%dep%d" % x for x in PARALLEL]


@pytest.mark.parametrize("version,name", [(v, n) for v in VERSIONS
                                          for n in [*MODELS, "cut-experts", *(PARALLEL_NAMES if v >= "0.3" else ())]])
def test_what_torchtitan_saves_is_imported(version, name, ran, trained, tmp_path):
    run, (folder, configs) = ran[version], trained
    model = run.jobs[name]["model"]
    r = harness.ok("tp-ckpt", "import", run.saved(name), "--config", folder / model, "-o", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert ", torchtitan\n" in r.out, repr(r)
    saved = run.said(name)["saved"]
    assert_equal(saved["hf"], tensors(tmp_path / "ckpt", tmp_path / "all.npz"), configs[model])
    assert {"step-%08d" % s for s in steps_of(saved)} == {harness.steps(tmp_path / "ckpt")[-1].name} == {"step-00000002"}
    assert "equal" in harness.ok("tp-ckpt", "diff", run.saved(name), tmp_path / "ckpt", "--config", folder / model).out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("version", VERSIONS)
def test_torchtitan_loads_the_export(version, model, ran, trained, tmp_path):
    run, (folder, configs) = ran[version], trained
    said = run.said(model + "-exported")
    assert_equal(said["loaded"]["hf"], tensors(folder / model / "ckpt", tmp_path / "all.npz"), configs[model])
    assert steps_of(said["loaded"]) == {STEPS} and all(not x.any() for x in biases(said["loaded"]))
    options = {k: x for k, x in said["loaded"]["state"].items() if ".param_groups." in k}
    assert {tuple(x) for k, x in options.items() if k.endswith(".betas")} == {(0.9, 0.95)}
    assert all(0 < x < 1e-2 for k, x in options.items() if k.endswith((".lr", ".initial_lr")))
    harness.ok("tp-ckpt", "export", folder / model / "ckpt", "-o", tmp_path / "hf")
    with torch.no_grad():
        want = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)(TOKENS).logits
    # 0.3 computes experts in bf16
    assert (said["logits"] - want).abs().max() < (2e-3 if "moe" in model and version >= "0.3" else 1e-5)


@pytest.mark.parametrize("name", PARALLEL_NAMES)
def test_ranks_with_tensor_and_expert_parallelism_load_the_export(name, ran, trained, tmp_path):
    loaded = ran["0.3.0"].said(name + "-exported")["loaded"]
    assert_equal(loaded["hf"], tensors(trained[0] / "qwen3_moe/ckpt", tmp_path / "all.npz"), trained[1]["qwen3_moe"])
    assert steps_of(loaded) == {STEPS}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("source", VERSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_torchtitan_loads_what_is_resharded(version, source, model, ran, trained):
    """Of its own version with the schedule and the counters, and continues with the same loss; of the other one too."""
    before, after = ran[source].said(model), ran[version].said("%s-of-%s" % (model, source))
    assert_equal(after["loaded"]["hf"], {k: x for k, x in before["saved"]["hf"].items() if not is_copy(trained[1][model], k)},
                 trained[1][model])
    assert steps_of(after["loaded"]) == {2}
    assert len(biases(before["saved"])) == len(biases(after["loaded"])) == (2 if "moe" in model else 0)
    for x, y in zip(biases(before["saved"]), biases(after["loaded"])):
        assert torch.equal(x, y) and x.any()
    if version == source:
        assert (after["step"], after["last_epoch"]) == (2, 2)
        assert after["losses"][0] == pytest.approx(before["losses"][-1], rel=1e-3 if "moe" in model else 1e-5)
    assert abs(before["losses"][0] - before["losses"][-1]) > 1e-2, "there was no step"


@pytest.mark.parametrize("key,name", [
    ("layers.0.moe.routed_experts.inner_experts.w1_EFD", "model.layers.0.mlp.experts.0.gate_proj.weight"),
    ("layers.1.attention.qkv_linear.wk.weight", "model.layers.1.self_attn.k_proj.weight")])
def test_weights_in_fp8_are_refused_by_name(key, name, ran, trained, tmp_path):
    weights = {k: x for k, x in ran["0.3.0"].said("qwen3_moe")["saved"]["state"].items() if not k.startswith("optimizer.")}
    dcp.save({**weights, key: weights[key].to(torch.float8_e4m3fn)}, checkpoint_id=tmp_path / "fp8", no_dist=True)
    r = harness.run("tp-ckpt", "import", tmp_path / "fp8", "--config", trained[0] / "qwen3_moe", "-o", tmp_path / "bad")
    assert r.rc == 3 and "tensor param/%s has a dtype that is not supported" % name in r.err and not (tmp_path / "bad").exists(), repr(r)
