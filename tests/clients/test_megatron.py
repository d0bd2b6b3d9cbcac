"""Megatron-core loads what tp-ckpt export writes, with its ordinary and its distributed optimizer, and tp-ckpt import reads what
Megatron-core saved after a step, without a config.json: weights, masters, moments and step are equal, bit for bit."""
import json
import pathlib
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402
from test_formats import tensors  # noqa: E402

STEPS = 3
# model, format of tp-ckpt, Megatron's --ckpt-format, the layout of the export, and the ranks' tp, pp, dp and ep (torch_dist: any).
# With "vpp2" in the name there are two virtual stages, with "distributed" the distributed optimizer, with "fused" Megatron's AdamW
# is FusedAdam, not torch's. With "engine" layers are of Transformer Engine's modules (engine_modules.py), and so is AdamW; their
# experts are in grouped layers, but with "sequential". Those of the others are a GroupedMLP with "stacked". With "blocks" the rows
# that are saved are taken for those of --moe-mlp-glu-interleave-size, which megatron-core 0.16.1 does not have: the option only
# says what rows mean, so Megatron's own code still decides where they are in torch_dist. With "newest" Megatron-core is the newest
# one of requirements-megatron.txt, which finds groups of parameters by RATES too.
CASES = {"megatron-tp2": ("llama", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "megatron-pp2-newest": ("llama", "megatron", "torch", "tp1pp2", 1, 2, 1, 1),
         "torch_dist-tp2": ("llama", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 1, 1),
         "torch_dist-pp2-newest": ("llama", "torch_dist", "torch_dist", "tp4pp1", 1, 2, 1, 1),
         "distributed-tp2dp2": ("llama", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 2, 1),
         "distributed-pp2dp3-newest": ("llama", "torch_dist", "torch_dist", "tp4pp1", 1, 2, 3, 1),
         "experts-megatron-tp2ep2": ("mixtral", "megatron", "torch", "tp2pp1ep2", 2, 1, 2, 2),
         "experts-megatron-pp2": ("mixtral", "megatron", "torch", "tp1pp2", 1, 2, 1, 1),
         "experts-torch_dist-ep2": ("mixtral", "torch_dist", "torch_dist", "tp2pp2ep4", 1, 1, 2, 2),
         "experts-torch_dist-tp2": ("mixtral", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 1, 1),
         "experts-torch_dist-tp2-blocks": ("mixtral", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 1, 1),
         "distributed-experts-dp2": ("mixtral", "torch_dist", "torch_dist", "tp2pp1", 1, 1, 2, 1),
         "distributed-experts-pp2ep2-newest": ("mixtral", "torch_dist", "torch_dist", "tp1pp1ep4", 1, 2, 2, 2),
         "distributed-stacked-tp2ep2": ("mixtral", "torch_dist", "torch_dist", "tp2pp2ep2", 2, 1, 2, 2),
         "distributed-megatron-tp2dp2": ("llama", "megatron", "torch", "tp2pp1dp2", 2, 1, 2, 1),
         "distributed-megatron-pp2dp2": ("gpt2", "megatron", "torch", "tp1pp2", 1, 2, 2, 1),
         "distributed-megatron-tp2pp2-vpp2-newest": ("deep", "megatron", "torch", "tp2pp2vpp2", 2, 2, 1, 1),
         "distributed-megatron-experts-ep2": ("mixtral", "megatron", "torch", "tp1pp2ep2", 1, 2, 2, 2),
         "megatron-vpp2": ("deep", "megatron", "torch", "tp1pp2vpp2", 1, 2, 1, 1),
         "torch_dist-vpp2": ("deep", "torch_dist", "torch_dist", "tp2pp1", 1, 2, 1, 1),
         "gpt2-megatron-tp2": ("gpt2", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "gpt2-torch_dist-tp2-newest": ("gpt2", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 1, 1),
         "fused-megatron-tp2": ("llama", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "fused-torch_dist-pp2": ("llama", "torch_dist", "torch_dist", "tp4pp1", 1, 2, 1, 1),
         "fused-experts-megatron-ep2": ("mixtral", "megatron", "torch", "tp1pp2ep2", 1, 2, 2, 2),
         "fused-experts-torch_dist-ep2-newest": ("mixtral", "torch_dist", "torch_dist", "tp2pp2ep4", 1, 1, 2, 2),
         "distributed-fused-megatron-tp2dp2": ("llama", "megatron", "torch", "tp2pp1dp2", 2, 1, 2, 1),
         "distributed-fused-torch_dist-dp2": ("llama", "torch_dist", "torch_dist", "tp1pp2", 1, 1, 2, 1),
         "engine-megatron-tp2": ("llama", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "engine-megatron-pp2": ("qwen3", "megatron", "torch", "tp1pp2", 1, 2, 1, 1),
         "engine-megatron-vpp2": ("deep", "megatron", "torch", "tp1pp2vpp2", 1, 2, 1, 1),
         "engine-gpt2-megatron-tp2": ("gpt2", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "engine-experts-megatron-tp2ep2-newest": ("mixtral", "megatron", "torch", "tp2pp1ep2", 2, 1, 2, 2),
         "engine-experts-megatron-pp2": ("mixtral", "megatron", "torch", "tp1pp2", 1, 2, 1, 1),
         "engine-sequential-megatron-pp2ep2": ("mixtral", "megatron", "torch", "tp1pp2ep2", 1, 2, 2, 2),
         "engine-torch_dist-tp2-newest": ("qwen3", "torch_dist", "torch_dist", "tp1pp2", 2, 1, 1, 1),
         "engine-experts-torch_dist-ep2": ("mixtral", "torch_dist", "torch_dist", "tp2pp2ep4", 1, 1, 2, 2),
         "distributed-megatron-engine-tp2dp2": ("qwen3", "megatron", "torch", "tp2pp1dp2", 2, 1, 2, 1),
         "distributed-megatron-engine-pp2dp2": ("gpt2", "megatron", "torch", "tp1pp2", 1, 2, 2, 1),
         "distributed-megatron-engine-tp2pp2-vpp2": ("deep", "megatron", "torch", "tp2pp2vpp2", 2, 2, 1, 1),
         "distributed-megatron-engine-experts-pp2ep2": ("mixtral", "megatron", "torch", "tp1pp2ep2", 1, 2, 2, 2),
         "distributed-megatron-engine-experts-tp2": ("mixtral", "megatron", "torch", "tp2pp1", 2, 1, 1, 1),
         "distributed-megatron-engine-sequential-ep2": ("mixtral", "megatron", "torch", "tp1pp1ep2", 1, 1, 2, 2),
         "distributed-engine-experts-torch_dist-dp2-newest": ("mixtral", "torch_dist", "torch_dist", "tp2pp1", 1, 1, 2, 1)}
# Cases that are saved in other ways too: as dp_reshardable, dp_zero_gather_scatter, and as folders with distrib_optim.pt.
FLAT = ("dp_reshardable", "dp_zero_gather_scatter", "torch")
FLAT_CASES = ("distributed-experts-dp2", "distributed-experts-pp2ep2-newest", "distributed-stacked-tp2ep2",
              "distributed-engine-experts-torch_dist-dp2-newest")
# Megatron's logits are compared, but for experts in local modules, whose router Megatron-core cannot compute without its extension.
FORWARD = [name for name, case in CASES.items() if case[0] != "mixtral" or "engine" in name]
TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250
BLOCK = 16  # three of gate on each of two ranks
CHANGES = {"llama": {}, "deep": dict(num_hidden_layers=4), "qwen3": dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3"), "mixtral": dict(
    architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=4, num_experts_per_tok=2), "gpt2": dict(
        architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=64, n_layer=2, n_head=8, n_inner=96, n_positions=64,
        num_key_value_heads=8, tie_word_embeddings=True, hidden_act=None, activation_function="gelu_new")}
RATES = ("--lr", "2e-3", "--min-lr", "5e-4")  # of the programs in megatron_ranks.py
GROUPS = {"master": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """({model: tensors that were exported}, {case: job}) after Megatron-core's ranks have run."""
    folder = tmp_path_factory.mktemp("megatron")
    trained, jobs, programs = {}, {}, {}
    for model, changes in CHANGES.items():
        path = harness.write_config(folder / model, **changes)
        harness.train(path, folder / model / "ckpt", steps=STEPS, layout="tp2pp2", dtype="bf16")
        trained[model] = tensors(folder / model / "ckpt", folder / model / "all.npz")
    for name, (model, ours, theirs, layout, tp, pp, dp, ep) in CASES.items():
        distributed, engine = name.startswith("distributed"), "engine" in name
        grouped, fused = ("experts" in name and "sequential" not in name) if engine else "stacked" in name, engine or "fused" in name
        harness.ok("tp-ckpt", "export", folder / model / "ckpt", "--format", ours, "-o", folder / name, "--layout", layout,
                   *["--distributed-optimizer"] * distributed, *["--megatron-adam", "torch"] * (not distributed and not fused),
                   *["--transformer-impl", "local"] * (ours == "megatron" and not engine),
                   *["--moe-experts", "sequential"] * ("sequential" in name), *RATES)
        (folder / name / "out").mkdir()
        jobs[name] = dict(format=theirs, tp=tp, pp=pp, vpp=2 if "vpp2" in name else 1, dp=dp, ep=ep, distributed=distributed,
                          fused=fused, load=str(folder / name), save=str(folder / name / "saved"), out=str(folder / name / "out"),
                          flat=FLAT if name in FLAT_CASES else (), grouped=grouped, block=BLOCK if "blocks" in name else 0,
                          config=json.loads((folder / model / "config.json").read_text()))
        program = "transformer_engine" if engine else "local", frameworks.NEWEST_MEGATRON if "newest" in name else None
        programs.setdefault(program, []).append(jobs[name])
    for (impl, version), of_program in programs.items():
        (folder / "jobs").write_text(json.dumps(of_program))
        frameworks.run("megatron_ranks.py", folder / "jobs", impl, megatron=version)
    return trained, jobs


def mlp(found, theirs, ours, names, take, block=0):
    """A gated MLP, or an expert."""
    gate, up, down = names
    gates = [(x.view(-1, 2, block, x.shape[1]).transpose(0, 1).flatten(0, 2) if block else x).chunk(2)
             for x in take(theirs + "linear_fc1.weight", None)]
    found[ours % gate], found[ours % up] = map(torch.cat, zip(*gates))
    found[ours % down] = take(theirs + "linear_fc2.weight", 1)


def gpt2(config, take, one):
    found = {"transformer.wte.weight": take("embedding.word_embeddings.weight")[:config["vocab_size"]],
             "transformer.wpe.weight": one("embedding.position_embeddings.weight")}
    for kind in ("weight", "bias"):
        found["transformer.ln_f." + kind] = one("decoder.final_layernorm." + kind)
        for i in range(config["n_layer"]):
            theirs, ours, whole = "decoder.layers.%d.%%s.%s" % (i, kind), "transformer.h.%d.%%s.%s" % (i, kind), kind == "bias"
            qkv = take(theirs % "self_attention.linear_qkv")
            heads = qkv.view(config["n_head"], 3, -1, *qkv.shape[1:])
            found[ours % "attn.c_attn"] = torch.cat([heads[:, x].flatten(0, 1) for x in range(3)]).t()
            found[ours % "mlp.c_fc"] = take(theirs % "mlp.linear_fc1").t()
            for x, y in {"self_attention.linear_proj": "attn.c_proj", "mlp.linear_fc2": "mlp.c_proj"}.items():
                found[ours % y] = one(theirs % x) if whole else take(theirs % x, 1).t()
            found[ours % "ln_1"], found[ours % "ln_2"] = one(theirs % "input_layernorm"), one(theirs % "pre_mlp_layernorm")
    return found


def join(job, when, group):
    """{Hugging Face's name: tensor} from what the ranks hold."""
    ranks = [torch.load(pathlib.Path(job["out"]) / ("%d.pt" % r))[when] for r in range(job["tp"] * job["pp"] * job["ep"])]
    config = job["config"]
    heads, kv, width = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    hidden, vocab, found = config["hidden_size"], config["vocab_size"], {}

    def take(name, axis=0):
        """From the tensor-parallel ranks of the first expert-parallel one that has it; others have the same or nothing."""
        parts = [r[name][group] for r in ranks if name in r]
        for copy in range(job["tp"], len(parts), job["tp"]):
            assert all(map(torch.equal, parts[:job["tp"]], parts[copy:])), name
        return parts[:job["tp"]] if axis is None else torch.cat(parts[:job["tp"]], axis)

    def one(name):
        parts = [r[name][group] for r in ranks if name in r]
        assert all(torch.equal(p, parts[0]) for p in parts), name
        return parts[0]

    if "n_embd" in config:
        return gpt2(config, take, one)
    found["model.embed_tokens.weight"] = take("embedding.word_embeddings.weight")[:vocab]
    found["lm_head.weight"] = take("output_layer.weight")[:vocab]
    found["model.norm.weight"] = one("decoder.final_layernorm.weight")
    for i in range(config["num_hidden_layers"]):
        theirs, ours = "decoder.layers.%d." % i, "model.layers.%d." % i
        qkv = take(theirs + "self_attention.linear_qkv.weight").view(kv, heads // kv + 2, width, hidden)
        for name, x in zip("qkv", (qkv[:, :-2], qkv[:, -2], qkv[:, -1])):
            found[ours + "self_attn.%s_proj.weight" % name] = x.reshape(-1, hidden)
        found[ours + "self_attn.o_proj.weight"] = take(theirs + "self_attention.linear_proj.weight", 1)
        if "num_local_experts" in config:
            moe = ours + "block_sparse_moe."
            found[moe + "gate.weight"] = one(theirs + "mlp.router.weight")
            for e in range(config["num_local_experts"]):
                mlp(found, theirs + "mlp.experts.local_experts.%d." % e, moe + "experts.%d.%%s.weight" % e, ("w1", "w3", "w2"), take,
                    job["block"] if when == "saved" else 0)
        else:
            mlp(found, theirs + "mlp.", ours + "mlp.%s_proj.weight", ("gate", "up", "down"), take)
        for name in "qk" if config["model_type"] == "qwen3" else "":
            found[ours + "self_attn.%s_norm.weight" % name] = one(theirs + "self_attention.%s_layernorm.weight" % name)
        found[ours + "input_layernorm.weight"] = one(theirs + "input_layernorm.weight")
        found[ours + "post_attention_layernorm.weight"] = one(theirs + "pre_mlp_layernorm.weight")
    return found


def assert_equal(found, want, group):
    assert {group + "/" + name for name in found} == {k for k in want if k.startswith(group + "/")}
    for name, x in found.items():
        assert torch.equal(x, want["%s/%s" % (group, name)]), (group, name)


@pytest.mark.parametrize("case", CASES)
def test_megatron_loads_the_export(case, ran):
    trained, jobs = ran
    job = jobs[case]
    for group, ours in GROUPS.items():
        assert_equal(join(job, "loaded", group), trained[CASES[case][0]], ours)
    for rank in range(job["tp"] * job["pp"] * job["ep"]):
        for name, x in torch.load(pathlib.Path(job["out"]) / ("%d.pt" % rank))["loaded"].items():
            assert torch.equal(x["weight"], x["master"].bfloat16()) and x["step"] == STEPS, name


@pytest.mark.parametrize("case", CASES)
def test_what_megatron_saves_is_imported(case, ran, tmp_path):
    trained, jobs = ran
    before, job = trained[CASES[case][0]], jobs[case]
    r = harness.ok("tp-ckpt", "import", job["save"], "-o", tmp_path / "ckpt")
    assert job["config"]["architectures"][0] in r.err, repr(r)
    assert "vocabulary of %d," % job["config"]["vocab_size"] in r.err, repr(r)
    want = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group, ours in GROUPS.items():
        saved = join(job, "saved", group)
        assert_equal(saved, want, ours)
        assert not any(torch.equal(x, before["%s/%s" % (ours, name)]) for name, x in saved.items()), "there was no step"
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % (STEPS + 1)


@pytest.mark.parametrize("case", FORWARD)
def test_transformers_has_megatrons_logits(case, ran, tmp_path):
    job = ran[1][case]
    harness.ok("tp-ckpt", "import", job["save"], "--layout", "tp2pp2", "-o", tmp_path / "ckpt")
    harness.ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "hf")
    last = range((job["pp"] - 1) * job["ep"] * job["tp"], ((job["pp"] - 1) * job["ep"] + 1) * job["tp"])
    theirs = torch.cat([torch.load(pathlib.Path(job["out"]) / ("%d.pt" % r))["logits"] for r in last], -1)
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)(TOKENS).logits
    worst = (ours - theirs[..., :job["config"]["vocab_size"]]).abs().max().item()
    assert worst < 1e-4, worst


LEGACY_DISTRIBUTED = [name for name in CASES if name.startswith("distributed-megatron")]


@pytest.mark.parametrize("case", LEGACY_DISTRIBUTED)
def test_the_distributed_optimizer_comes_back_from_another_layout(case, ran, tmp_path):
    """What Megatron saved, at another layout, and back at its own: the tensors are equal there, and the flat buffers too, with the
    padding of the vocabulary."""
    job = ran[1][case]
    own = "tp%dpp%dvpp%dep%d" % tuple(job[x] for x in ("tp", "pp", "vpp", "ep"))
    harness.ok("tp-reshard", job["save"], "--to", "tp4dp2", "-o", tmp_path / "there")
    harness.ok("tp-reshard", tmp_path / "there", "--to", own, "-o", tmp_path / "back")
    want = harness.ok("tp-ckpt", "digest", job["save"]).out
    assert all(harness.ok("tp-ckpt", "digest", tmp_path / x).out == want for x in ("there", "back"))
    files = sorted(pathlib.Path(job["save"]).rglob("distrib_optim.pt"))
    assert len(files) == job["tp"] * job["pp"] * job["ep"]
    for file in files:
        theirs, ours = (torch.load(x, weights_only=False) for x in (file, tmp_path / "back" / file.relative_to(job["save"])))
        both = list(zip(buffers_of(theirs), buffers_of(ours), strict=True))
        assert both and all(a == b for (a, _), (b, _) in both)
        assert all(torch.equal(x, y) for (_, x), (_, y) in both)


def buffers_of(saved):
    """[(place and size, flat tensor)] of a distrib_optim.pt."""
    for part, state in enumerate(saved if isinstance(saved, list) else [saved]):
        for number, by_type in (state or {}).items():
            for types, buffer in by_type.items() if number != "buckets_coalesced" else ():
                for key in ("param", "exp_avg", "exp_avg_sq"):
                    yield (part, number, types, key, buffer["numel_unpadded"], buffer[key].shape), buffer[key]


@pytest.mark.parametrize("kind", FLAT)
@pytest.mark.parametrize("case", FLAT_CASES)
def test_flat_buffers_with_experts_are_imported(case, kind, ran, tmp_path):
    job = ran[1][case]
    harness.ok("tp-ckpt", "import", job["save"] + "-" + kind, "-o", tmp_path / "ckpt")
    want = tensors(tmp_path / "ckpt", tmp_path / "all.npz")
    for group, ours in GROUPS.items():
        assert_equal(join(job, "saved", group), want, ours)
