"""Megatron-core loads what tp-ckpt export writes, and tp-ckpt import reads what Megatron-core saved after a step: weights,
masters, moments and step are equal, bit for bit."""
import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402

STEPS = 3
# format of tp-ckpt, Megatron's --ckpt-format, the layout of the export, and the ranks' (torch_dist: any)
CASES = {"megatron-tp2": ("megatron", "torch", "tp2pp1", 2, 1), "megatron-pp2": ("megatron", "torch", "tp1pp2", 1, 2),
         "torch_dist-tp2": ("torch_dist", "torch_dist", "tp1pp2", 2, 1),
         "torch_dist-pp2": ("torch_dist", "torch_dist", "tp4pp1", 1, 2)}
GROUPS = {"master": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(config, tensors that were exported, {case: job}) after Megatron-core's ranks have run."""
    folder = tmp_path_factory.mktemp("megatron")
    path = harness.write_config(folder / "model")
    harness.train(path, folder / "ckpt", steps=STEPS, layout="tp2pp2", dtype="bf16")
    config, jobs = json.loads(path.read_text()), {}
    for name, (ours, theirs, layout, tp, pp) in CASES.items():
        harness.ok("tp-ckpt", "export", folder / "ckpt", "--format", ours, "-o", folder / name, "--layout", layout)
        (folder / name / "out").mkdir()
        jobs[name] = dict(format=theirs, tp=tp, pp=pp, load=str(folder / name), save=str(folder / name / "saved"),
                          out=str(folder / name / "out"), config=config)
    (folder / "jobs").write_text(json.dumps(list(jobs.values())))
    frameworks.run("megatron_ranks.py", folder / "jobs")
    return config, tensors(folder / "ckpt", folder / "all.npz"), jobs


def join(config, job, when, group):
    """{Hugging Face's name: tensor} from what the ranks hold."""
    ranks = [torch.load(pathlib.Path(job["out"]) / ("%d.pt" % r))[when] for r in range(job["tp"] * job["pp"])]
    heads, kv, width = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    hidden, vocab, found = config["hidden_size"], config["vocab_size"], {}

    def take(name, axis=0):
        return torch.cat([r[name][group] for r in ranks if name in r], axis)

    def one(name):
        parts = [r[name][group] for r in ranks if name in r]
        assert all(torch.equal(p, parts[0]) for p in parts), name
        return parts[0]

    found["model.embed_tokens.weight"] = take("embedding.word_embeddings.weight")[:vocab]
    found["lm_head.weight"] = take("output_layer.weight")[:vocab]
    found["model.norm.weight"] = one("decoder.final_layernorm.weight")
    for i in range(config["num_hidden_layers"]):
        theirs, ours = "decoder.layers.%d." % i, "model.layers.%d." % i
        qkv = take(theirs + "self_attention.linear_qkv.weight").view(kv, heads // kv + 2, width, hidden)
        for name, x in zip("qkv", (qkv[:, :-2], qkv[:, -2], qkv[:, -1])):
            found[ours + "self_attn.%s_proj.weight" % name] = x.reshape(-1, hidden)
        found[ours + "self_attn.o_proj.weight"] = take(theirs + "self_attention.linear_proj.weight", 1)
        gates = [r[theirs + "mlp.linear_fc1.weight"][group].chunk(2) for r in ranks if theirs + "mlp.linear_fc1.weight" in r]
        found[ours + "mlp.gate_proj.weight"], found[ours + "mlp.up_proj.weight"] = map(torch.cat, zip(*gates))
        found[ours + "mlp.down_proj.weight"] = take(theirs + "mlp.linear_fc2.weight", 1)
        found[ours + "input_layernorm.weight"] = one(theirs + "input_layernorm.weight")
        found[ours + "post_attention_layernorm.weight"] = one(theirs + "pre_mlp_layernorm.weight")
    return found


def assert_equal(found, want, group):
    assert {group + "/" + name for name in found} == {k for k in want if k.startswith(group + "/")}
    for name, x in found.items():
        assert torch.equal(x, want["%s/%s" % (group, name)]), (group, name)


@pytest.mark.parametrize("case", CASES)
def test_megatron_loads_the_export(case, ran):
    config, want, jobs = ran
    for group, ours in GROUPS.items():
        assert_equal(join(config, jobs[case], "loaded", group), want, ours)
    for rank in range(jobs[case]["tp"] * jobs[case]["pp"]):
        for name, x in torch.load(pathlib.Path(jobs[case]["out"]) / ("%d.pt" % rank))["loaded"].items():
            assert torch.equal(x["weight"], x["master"].bfloat16()) and x["step"] == STEPS, name


@pytest.mark.parametrize("case", CASES)
def test_what_megatron_saves_is_imported(case, ran, tmp_path):
    config, before, jobs = ran
    harness.write_config(tmp_path)
    harness.ok("tp-ckpt", "import", jobs[case]["save"], "--config", tmp_path / "config.json", "-o", tmp_path / "ckpt")
    want = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group, ours in GROUPS.items():
        saved = join(config, jobs[case], "saved", group)
        assert_equal(saved, want, ours)
        assert not torch.equal(saved["lm_head.weight"], before[ours + "/lm_head.weight"]), "there was no step"
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % (STEPS + 1)
