"""Megatron's folders with the distributed optimizer (distrib_optim.pt), written at other layouts: foreign_files.py says what the
flat buffers of Megatron's ranks have; tests/clients/test_megatron.py asks Megatron itself.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/distributed_target reshard/formats/megatron/megatron_optimizer_target
    reshard/formats/megatron/megatron_buckets
"""
import itertools

import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_export_formats import modules_of
from test_import_formats import MEMORY, State, config_of, digests, groups_of
from test_megatron_experts import make_state

BUFFERS = ("param", "exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """deep: the vocabulary must be padded. odd: nothing is a multiple of 64 elements, and the head is tied. mixtral: experts."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("deep", "odd", "f32", "mixtral")}
    deep = {"num_hidden_layers": 4, "vocab_size": 259}
    odd = {"num_hidden_layers": 4, "vocab_size": 131, "hidden_size": 40, "num_attention_heads": 4, "head_dim": 6,
           "num_key_value_heads": 2, "intermediate_size": 52, "tie_word_embeddings": True}
    return {"deep": State(folders["deep"], harness.write_config(folders["deep"] / "model", **deep), dtype="bf16"),
            "odd": State(folders["odd"], harness.write_config(folders["odd"] / "model", **odd), dtype="bf16"),
            "f32": State(folders["f32"], harness.write_config(folders["f32"] / "model", **deep)),
            "mixtral": make_state(folders["mixtral"], "mixtral", head_dim=6)}


def state_groups(state):
    """Weights in f32 are their own masters, which the distributed optimizer has too."""
    groups = groups_of(state)
    return {**groups, "master": groups.get("master", groups["param"])}


def reference_of(state, mesh, **more):
    """What Megatron's ranks have when the vocabulary is padded as tp-reshard does."""
    reference = foreign_files.Megatron(config_of(state), *mesh, padding=128, **more)
    reference.fill = foreign_files.LAST_ROW
    return reference


def same_buffers(found, want, types):
    assert list(found) == list(want)
    for number in range(len(want) - 1):
        ((key, ours),) = found[number].items()
        (theirs,) = want[number].values()
        assert key == types and ours["numel_unpadded"] == theirs["numel_unpadded"]
        for name in BUFFERS:
            assert ours[name].tobytes() == theirs[name].storage.tobytes(), (number, name)


def check_ranks(folder, reference, groups, types):
    """Whether each rank of FOLDER has the buffers of the reference, and in model_optim_rng.pt the options alone."""
    for tp_rank, pp_rank, ep_rank in itertools.product(range(reference.tp), range(reference.pp), range(reference.ep)):
        rank = folder / "iter_0000003" / reference.folder(tp_rank, pp_rank, ep_rank)
        chunks = reference.by_optimizer(reference.chunks(groups, tp_rank, pp_rank, ep_rank))
        found = torch_files.load((rank / "distrib_optim.pt").read_bytes())
        found = found if reference.ep > 1 else [found]
        for part, mine in enumerate(chunks):
            if part == 0 and ep_rank > 0:
                assert found[part] is None
            else:
                same_buffers(found[part], reference.flat(mine, pp_rank), types)
        optimizers = torch_files.load((rank / "model_optim_rng.pt").read_bytes())["optimizer"]
        for part in optimizers if reference.ep > 1 else [optimizers]:
            assert list(part) == ["optimizer"] and list(part["optimizer"]) == ["param_groups"]
            assert {g["step"] for g in part["optimizer"]["param_groups"]} == {3}


# model, tp, pp, vpp, ep
MESHES = [("deep", 2, 2, 1, 1), ("deep", 1, 2, 2, 1), ("odd", 2, 2, 1, 1), ("odd", 1, 1, 1, 1), ("f32", 4, 1, 1, 1),
          ("mixtral", 2, 1, 1, 2), ("mixtral", 1, 2, 1, 1)]


@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
@pytest.mark.parametrize("model,tp,pp,vpp,ep", MESHES)
def test_ranks_have_megatrons_buffers(model, tp, pp, vpp, ep, engine, states, tmp_path):
    state = states[model]
    layout = "tp%dpp%dvpp%dep%d" % (tp, pp, vpp, ep)
    ok("tp-ckpt", "export", state.root, "--format", "megatron", "--layout", layout, "--distributed-optimizer", "-o", tmp_path / "m",
       "--mem", MEMORY, *modules_of(engine))
    reference = reference_of(state, (tp, pp, vpp), ep=ep, engine=engine)
    check_ranks(tmp_path / "m", reference, state_groups(state), ("float32" if model == "f32" else "bfloat16", "float32"))
    assert "intact" in ok("tp-ckpt", "verify", tmp_path / "m").out
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "again", "--mem", MEMORY)
    assert digests(tmp_path / "again") == digests(state.root)


# model, source's and target's tp, pp, vpp, dp, elements of a bucket
RESHARDS = [("deep", (2, 2, 1), (1, 1, 1), 1, None), ("odd", (1, 4, 1), (2, 2, 1), 2, 3000), ("odd", (2, 2, 2), (1, 2, 1), 3, 9000),
            ("odd", (1, 1, 1), (4, 1, 1), 1, 1)]


@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
@pytest.mark.parametrize("model,before,after,dp,bucket", RESHARDS)
def test_the_same_format_at_another_layout_and_back(model, before, after, dp, bucket, engine, states, tmp_path):
    """Modules are those of the source, and buckets those that its arguments give at the new layout."""
    state, same = states[model], dict(bucket_size=bucket, engine=engine)
    reference_of(state, before, **same).legacy(tmp_path / "m", groups_of(state), 3, distributed=True)
    more = ("--config", state.config, "--mem", MEMORY)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp%dpp%dvpp%ddp%d" % (*after, dp), "-o", tmp_path / "there", *more)
    assert "megatron -> megatron" in r.out and "optimizer" not in r.err, repr(r)
    check_ranks(tmp_path / "there", reference_of(state, after, **same), groups_of(state), ("bfloat16", "float32"))
    ok("tp-reshard", tmp_path / "there", "--to", "tp%dpp%dvpp%d" % before, "-o", tmp_path / "back", *more)
    check_ranks(tmp_path / "back", reference_of(state, before, **same), groups_of(state), ("bfloat16", "float32"))
    assert digests(tmp_path / "there") == digests(tmp_path / "back") == digests(state.root)


def test_gradients_have_the_type_of_the_programs_arguments(states, tmp_path):
    reference = reference_of(states["deep"], (1, 1, 1))
    reference.more_args["accumulate_allreduce_grads_in_fp32"] = False
    reference.legacy(tmp_path / "m", groups_of(states["deep"]), 3, distributed=True)
    ok("tp-reshard", tmp_path / "m", "--to", "tp2", "-o", tmp_path / "there", "--config", states["deep"].config)
    found = torch_files.load((tmp_path / "there/iter_0000003/mp_rank_01/distrib_optim.pt").read_bytes())
    assert list(found[0]) == [("bfloat16", "bfloat16")]


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
def test_the_class_of_adamw_is_kept_unless_another_is_chosen(kind, states, tmp_path):
    """torch.optim.AdamW needs a step for each tensor. FusedAdam refuses one, and needs that of the group."""
    state = states["deep"]
    argv = ["tp-ckpt", "export", state.root, "--format", kind, "--layout", "tp2"]
    for name, more in {"fused": [], "torch": ["--megatron-adam", "torch"], "dist": ["--distributed-optimizer"]}.items():
        ok(*argv, "-o", tmp_path / name, *more)

    def of(folder):
        inside = folder / "iter_0000003"
        path = inside / ("common.pt" if (inside / "common.pt").exists() else "mp_rank_00/model_optim_rng.pt")
        adamw = torch_files.load(path.read_bytes())["optimizer"]["optimizer"]
        counted = [adamw["state"]["common_step"]] if "common_step" in adamw["state"] else [
            s["step"] for s in adamw["state"].values() if "step" in s]
        groups = [g["step"] for g in adamw["param_groups"] if "step" in g]
        assert all(g["bias_correction"] is True for g in adamw["param_groups"])
        assert bool(counted) != bool(groups) and all(x == 3 for x in counted + groups) and len(groups) in (0, 2)
        return "fused" if groups else "torch"

    def becomes(source, name, *more):
        ok("tp-reshard", tmp_path / source, "--to", "tp1", "-o", tmp_path / name, *more)
        assert digests(tmp_path / name) == digests(state.root)
        return of(tmp_path / name)

    other = {"megatron": "torch_dist", "torch_dist": "megatron"}[kind]
    for name in ("fused", "torch"):
        assert of(tmp_path / name) == name
        assert becomes(name, name + "-kept") == name and becomes(name, name + "-other", "--format", other) == name
        chosen = {"fused": "torch", "torch": "fused"}[name]
        assert becomes(name, name + "-chosen", "--megatron-adam", chosen) == chosen
    assert becomes("dist", "ordinary", "--ordinary-optimizer") == "fused"


def test_a_class_of_adamw_that_does_not_fit_is_refused(states, tmp_path):
    root = states["deep"].root
    for argv, says in ((["--format", "megatron", "--megatron-adam", "apex"], "takes fused or torch, not 'apex'"),
                       (["--format", "dcp", "--megatron-adam", "torch"], "is for --format megatron or torch_dist, not dcp"),
                       (["--format", "megatron", "--megatron-adam", "torch", "--no-optim"], "and --no-optim exclude each other"),
                       (["--format", "megatron", "--megatron-adam", "torch", "--distributed-optimizer"],
                        "and --distributed-optimizer exclude each other")):
        r = run("tp-ckpt", "export", root, "-o", tmp_path / "no", *argv)
        assert r.rc == 2 and len(r.lines) == 1 and "--megatron-adam " + says in r.err and not (tmp_path / "no").exists(), repr(r)
    r = run("tp-reshard", root, "--to", "tp1", "-o", tmp_path / "no", "--megatron-adam", "torch")
    assert r.rc == 2 and "--megatron-adam is for --format megatron or torch_dist" in r.err, repr(r)


def test_the_optimizer_keeps_its_kind_unless_another_is_chosen(states, tmp_path):
    state = states["deep"]
    foreign_files.Megatron(config_of(state), 2).legacy(tmp_path / "m", groups_of(state), 3, distributed=True)

    def kind(name, *argv):
        ok("tp-reshard", tmp_path / "m", "--to", "pp2", "-o", tmp_path / name, "--config", state.config, *argv)
        inside = tmp_path / name / "iter_0000003"
        if (inside / "common.pt").exists():
            return torch_files.load((inside / "common.pt").read_bytes())["optimizer"].get("param_state_sharding_type")
        return len(list(inside.rglob("distrib_optim.pt")))

    assert kind("same") == 2 and kind("dist", "--format", "torch_dist") == "fully_reshardable"
    assert kind("ordinary", "--ordinary-optimizer") == 0 and kind("weights", "--no-optim") == 0
    assert kind("common", "--format", "torch_dist", "--ordinary-optimizer") is None
    for name in ("same", "dist", "ordinary", "common"):
        assert digests(tmp_path / name) == digests(state.root), name
    for source, argv in ((tmp_path / "m", ["--format", "dcp"]), (tmp_path / "m", ["--distributed-optimizer"]), (state.root, [])):
        r = run("tp-reshard", source, "--to", "tp1", "-o", tmp_path / "no", "--ordinary-optimizer", *argv)
        assert r.rc == 2 and "--ordinary-optimizer" in r.err and not (tmp_path / "no").exists(), repr(r)
    ok("tp-ckpt", "export", state.root, "--format", "megatron", "--no-optim", "-o", tmp_path / "w")
    r = run("tp-reshard", tmp_path / "w", "--to", "tp2", "-o", tmp_path / "no", "--distributed-optimizer")
    assert r.rc == 2 and "has no state of an optimizer" in r.err and not (tmp_path / "no").exists(), repr(r)
