"""tp-ckpt import --rules: a model whose architecture is not known is moved like any other.

needs: tp-ckpt tp-reshard tp-train
covers: reshard/ruled_tensors layout/cut_rules reshard/foreign_contents
"""
import json
import shutil
import sys

import numpy as np
import pytest

import foreign_files
import harness
import object_store as remote
import torch_files
from harness import ok, run
from object_store import ObjectStore
from rank_parts import read_shard
from state import digests

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import oracle_numpy  # noqa: E402

RULES = """
# tensor                         axis
embed.weight                     0    pad
blocks.*.attention.wqkv.weight   0    unit=4 blocks=3 first=16   # 4 heads of 4, 2 KV heads
blocks.*.attention.wo.weight     1    unit=4
blocks.*.experts.*.w1.weight     0
blocks.*.norm.weight             -
scale                            -
head.weight                      0    pad
"""
SHAPES = {"embed.weight": (13, 8), "head.weight": (13, 8), "scale": (1,)}
for _i in range(3):
    SHAPES["blocks.%d.attention.wqkv.weight" % _i] = (32, 8)
    SHAPES["blocks.%d.attention.wo.weight" % _i] = (8, 16)
    SHAPES["blocks.%d.norm.weight" % _i] = (8,)
    for _k in range(2):
        SHAPES["blocks.%d.experts.%d.w1.weight" % (_i, _k)] = (6, 8)
CONFIG = {"architectures": ["MyModel"], "model_type": "mine", "width": 8, "theta": 1e-05}


@pytest.fixture
def model(tmp_path):
    """(folder, its weights)"""
    rng = np.random.Generator(np.random.Philox(3))
    weights = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in SHAPES.items()}
    (tmp_path / "rules").write_text(RULES)
    return oracle_numpy.save_model(tmp_path / "model", CONFIG, weights), weights


def import_(folder, tmp_path, *more, rules=None):
    if rules is not None:
        (tmp_path / "rules").write_text(rules)
    return run("tp-ckpt", "import", folder, "--rules", tmp_path / "rules", "-o", tmp_path / "ckpt", *more)


def test_a_model_of_an_unknown_architecture_survives_import_reshard_and_export(model, tmp_path):
    folder, want = model
    r = import_(folder, tmp_path, "--layout", "tp2pp3")
    assert r.rc == 0, repr(r)
    layout = json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)
    assert "MyModel" in json.dumps(layout)
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp1dp2zero3", "-o", tmp_path / "one")
    ok("tp-ckpt", "verify", tmp_path / "one")
    ok("tp-ckpt", "export", tmp_path / "one", "--format", "safetensors", "-o", tmp_path / "hf")
    got = oracle_numpy.load_safetensors(tmp_path / "hf/model.safetensors")
    assert sorted(got) == sorted(want) and all(np.array_equal(got[k], want[k]) for k in want)
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config == {**CONFIG, "dtype": "float32", "torch_dtype": "float32"}
    assert import_(folder, tmp_path, "--force").rc == 0, "the same model again"


def test_rules_are_for_models_in_stores_too(model, tmp_path):
    folder, _ = model
    assert import_(folder, tmp_path, "--layout", "tp2pp3").rc == 0
    with ObjectStore() as store:
        store.add_tree("bucket/model", folder)
        rules = ("--rules", tmp_path / "rules", "--layout", "tp2pp3")
        for config in ([], ["--config", "s3://bucket/model/config.json"]):
            remote.ok(store, "tp-ckpt", "import", "s3://bucket/model", *rules, "-o", tmp_path / "there", "--force", *config)
            ok("tp-ckpt", "diff", tmp_path / "ckpt", tmp_path / "there")


def test_tp_reshard_takes_rules_too(model, tmp_path):
    folder, _ = model
    assert import_(folder, tmp_path, "--layout", "tp2pp3").rc == 0
    ok("tp-reshard", folder, "--rules", tmp_path / "rules", "--to", "tp2pp3", "-o", tmp_path / "new")
    assert run("tp-ckpt", "diff", tmp_path / "ckpt", tmp_path / "new").rc == 0
    for source, more in [(tmp_path / "ckpt", []), (folder, ["--format", "megatron"]), (folder, ["--format", "gguf"])]:
        r = run("tp-reshard", source, "--rules", tmp_path / "rules", "--to", "tp2", "-o", tmp_path / "no", *more)
        assert r.rc == 2 and not (tmp_path / "no").exists(), repr(r)


def state_of(weights):
    """{group: tensors}, as of an f32 run."""
    return {"param": weights, "master": weights, "exp_avg": {k: v + 1 for k, v in weights.items()},
            "exp_avg_sq": {k: v * v for k, v in weights.items()}}


def write_dcp(folder, weights):
    state = state_of(weights)
    tensors = {"model." + k: (v, torch_files.rows(v, 2)) for k, v in weights.items()}
    for group in ("exp_avg", "exp_avg_sq"):
        tensors.update({"optim.state.%s.%s" % (k, group): (v, torch_files.rows(v, 2)) for k, v in state[group].items()})
    tensors.update({"optim.state.%s.step" % k: (np.array(7, np.float32), [((), ())]) for k in weights})
    torch_files.dcp(folder, tensors)


@pytest.mark.parametrize("kind", ["bin", "dcp", "zero1", "zero3"])
def test_other_formats_take_rules_too(kind, model, tmp_path):
    folder, weights = tmp_path / kind, model[1]
    if kind == "bin":
        torch_files.save(folder / "pytorch_model.bin", {k: torch_files.Tensor(v) for k, v in weights.items()})
    elif kind == "dcp":
        write_dcp(folder, weights)
    else:
        getattr(foreign_files, kind)(folder, state_of(weights), 7, 2)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert import_(folder, tmp_path, "--layout", "tp2pp3", "--dtype", "f32").rc == 0
    groups = {d.split()[1].split("/")[0] for d in digests(tmp_path / "ckpt")}
    assert groups == ({"param"} if kind == "bin" else {"param", "exp_avg", "exp_avg_sq"})
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % (0 if kind == "bin" else 7)
    ok("tp-ckpt", "export", tmp_path / "ckpt", "-o", tmp_path / "hf")
    got = oracle_numpy.load_safetensors(tmp_path / "hf/model.safetensors")
    assert sorted(got) == sorted(weights) and all(np.array_equal(got[k], weights[k]) for k in weights)
    assert "rules" in import_(folder, tmp_path, "--force", rules=RULES.replace("scale ", "scaly ")).err
    if kind == "dcp":  # and back, with the optimizer
        ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "dcp", "--layout", "tp2", "-o", tmp_path / "back")
        found, _ = torch_files.load_dcp(tmp_path / "back")
        assert all(np.array_equal(found["model." + k], weights[k]) for k in weights)
        assert all(np.array_equal(found["optim.state.%s.exp_avg" % k], weights[k] + 1) for k in weights)


def write_torchtitan(folder, weights):
    """As torchtitan does, but with other names than those of a Llama."""
    names = {k: k.replace("embed", "tok_embeddings") for k in weights}
    state = state_of(weights)
    tensors = {names[k]: (v, torch_files.rows(v, 2)) for k, v in weights.items()}
    for group in ("exp_avg", "exp_avg_sq"):
        tensors.update({"optimizer.state.%s.%s" % (names[k], group): (v, torch_files.rows(v, 2)) for k, v in state[group].items()})
    tensors.update({"optimizer.state.%s.step" % k: (np.array(7, np.float32), [((), ())]) for k in names.values()})
    tensors["train_state.step"] = (np.array(7, np.float32), [((), ())])
    torch_files.dcp(folder, tensors, {"optimizer.param_groups.%s.lr" % k: 0.25 for k in names.values()})


@pytest.mark.parametrize("kind,head,state", [("dcp", "model.", "optim.state."), ("torchtitan", "", "optimizer.state.")])
def test_the_same_format_at_another_layout(kind, head, state, model, tmp_path):
    """With rules the names and rows of torchtitan's models stay as they are, and so do those of other programs."""
    folder, weights = tmp_path / kind, model[1]
    (write_dcp if kind == "dcp" else write_torchtitan)(folder, weights)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rules, embed = RULES, "embed.weight"
    if kind == "torchtitan":
        rules, embed = RULES.replace("embed.weight  ", "tok_embeddings.weight  "), "tok_embeddings.weight"
    (tmp_path / "rules").write_text(rules)
    for layout in ("tp2pp3", "tp1", "dp3zero1"):
        out = tmp_path / layout
        r = ok("tp-reshard", folder, "--rules", tmp_path / "rules", "--to", layout, "--format", kind, "-o", out)
        assert "%s -> %s at" % (kind, kind) in r.out and "train_state" not in r.out, repr(r)
        found, paths = torch_files.load_dcp(out)
        assert kind == "dcp" or (found["train_state.step"] == 7 and paths["train_state.step"] == ("train_state", "step"))
        for k, v in weights.items():
            name = embed if k == "embed.weight" else k
            assert np.array_equal(found[head + name], v) and found[state + name + ".step"] == 7
            assert np.array_equal(found[state + name + ".exp_avg"], v + 1) and np.array_equal(found[state + name + ".exp_avg_sq"], v * v)
        assert json.loads((out / "config.json").read_text())["model_type"] == "mine"
    assert len(list((tmp_path / "tp2pp3").glob("*.distcp"))) == 6 and len(list((tmp_path / "tp1").glob("*.distcp"))) == 1
    r = run("tp-reshard", folder, "--rules", tmp_path / "rules", "--to", "tp5", "--format", kind, "-o", tmp_path / "no")
    assert r.rc == 2 and "attention" in r.err and not (tmp_path / "no").exists(), repr(r)


def test_one_format_from_another(model, tmp_path):
    """safetensors to DCP, and that to another layout. Without an optimizer, the head of names in it cannot be told apart from them."""
    folder, weights = model
    names = {"model." + k: v for k, v in weights.items()}
    ok("tp-reshard", folder, "--rules", tmp_path / "rules", "--to", "tp2", "--format", "dcp", "-o", tmp_path / "dcp")
    (tmp_path / "more").write_text("".join("model." + line + "\n" for line in RULES.splitlines() if line and line[0] != "#"))
    for to, more in (("pp3", []), ("tp1", ["--no-optim"])):
        ok("tp-reshard", tmp_path / "dcp", "--rules", tmp_path / "more", "--to", to, "--format", "dcp", "-o", tmp_path / to, *more)
        found, _ = torch_files.load_dcp(tmp_path / to)
        assert sorted(found) == sorted(names) and all(np.array_equal(found[k], names[k]) for k in names)


@pytest.mark.parametrize("kind", ["safetensors", "dcp"])
def test_verbs_that_only_read_need_no_rules(kind, model, tmp_path):
    folder, weights = model
    if kind == "dcp":
        folder = tmp_path / "dcp"
        write_dcp(folder, weights)
        (folder / "config.json").write_text(json.dumps(CONFIG))
    assert len(json.loads(ok("tp-ckpt", "show", folder, "--json").out)["tensors"]) == len(weights) * (3 if kind == "dcp" else 1)
    assert kind in ok("tp-ckpt", "ls", folder).out and "intact" in ok("tp-ckpt", "verify", folder).out
    assert import_(folder, tmp_path).rc == 0
    assert [d for d in digests(tmp_path / "ckpt") if "param/" in d] == [d for d in digests(folder) if "param/" in d]
    ok("tp-ckpt", "diff", folder, tmp_path / "ckpt", "--group", "param")


def small(folder, weights):
    """A DCP with an optimizer of tensors that are not cut, and the rules for them. Returns the option."""
    state = state_of(weights)
    tensors = {"model." + k: (v, [((0,) * v.ndim, v.shape)]) for k, v in weights.items()}
    for group in ("exp_avg", "exp_avg_sq"):
        tensors.update({"optim.state.%s.%s" % (k, group): (v, [((0,) * v.ndim, v.shape)]) for k, v in state[group].items()})
    tensors.update({"optim.state.%s.step" % k: (np.array(7, np.float32), [((), ())]) for k in weights})
    torch_files.dcp(folder, tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rules = folder.parent / (folder.name + ".rules")
    rules.write_text("".join("%s -\n" % k for k in weights))
    return "--rules", rules


def test_a_shape_without_elements_is_no_way_around_the_limit_of_sizes(tmp_path):
    rules = small(tmp_path / "source", {"w": np.zeros((0, 1 << 30, 1 << 30), np.float32)})
    r = run("tp-reshard", tmp_path / "source", *rules, "--to", "tp1", "--format", "dcp", "-o", tmp_path / "out")
    assert r.rc == 3 and "w has a shape with too many elements" in r.err, repr(r)


EMPTY = {"blocks.0.w": (4, 4), "blocks.1.none": (0, 4), "blocks.2.none": (4, 0), "none": (0,)}


@pytest.mark.parametrize("kind", ["dcp", "torchtitan", "deepspeed"])
def test_a_tensor_without_elements_is_not_lost(kind, tmp_path):
    rng = np.random.Generator(np.random.Philox(5))
    weights = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in EMPTY.items()}
    rules = small(tmp_path / "source", weights)
    ok("tp-ckpt", "import", tmp_path / "source", *rules, "--layout", "tp2dp2zero1", "-o", tmp_path / "ckpt")
    want = digests(tmp_path / "ckpt")
    assert len(want) == 3 * len(EMPTY)
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", kind, "-o", tmp_path / "out")
    with ObjectStore() as store:
        remote.ok(store, "tp-ckpt", "export", tmp_path / "ckpt", "--format", kind, "-o", "s3://bucket/out")
        for path in (tmp_path / "out").rglob("*"):
            if path.is_file():
                assert store.objects["bucket/out/%s" % path.relative_to(tmp_path / "out")][0] == path.read_bytes(), path
    if kind != "deepspeed":
        found, _ = torch_files.load_dcp(tmp_path / "out")
        head = "model." if kind == "dcp" else ""
        assert {k: found[head + k].shape for k in EMPTY} == EMPTY
    r = ok("tp-ckpt", "import", tmp_path / "out", "--config", tmp_path / "source", *rules, "--layout", "tp2", "-o", tmp_path / "back")
    assert digests(tmp_path / "back") == want and "every checksum of the source" in r.out, repr(r)


def zero_state(shapes, frozen=()):
    """Masters that bf16 has exactly, moments, and the weights."""
    rng = np.random.Generator(np.random.Philox(5))
    masters = {k: rng.integers(-99, 99, shape).astype(np.float32) for k, shape in shapes.items()}
    state = {"param": {k: (v.view(np.uint32) >> 16).astype(np.uint16) for k, v in masters.items()},
             "master": {k: v for k, v in masters.items() if k not in frozen}}
    for group in foreign_files.MOMENTS:
        state[group] = {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in state["master"].items()}
    return state


def import_zero(kind, state, dp, tmp_path, *more):
    """The digests of what is imported of DeepSpeed's files of a model of tensors that are not cut."""
    if kind == "universal":
        foreign_files.universal(tmp_path / "ds", state, 7, False)
    else:
        getattr(foreign_files, kind)(tmp_path / "ds", state, 7, dp)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    r = import_(tmp_path / "ds", tmp_path, "--config", tmp_path / "config.json", *more,
                rules="".join("%s -\n" % k for k in state["param"]))
    assert r.rc == 0, repr(r)
    found = digests(tmp_path / "ckpt")
    shutil.rmtree(tmp_path / "ds")
    shutil.rmtree(tmp_path / "ckpt")
    return found


@pytest.mark.parametrize("dp", [1, 2, 3])
def test_a_parameter_of_zero_without_elements_is_read(dp, tmp_path):
    """At the ends and inside of the flat buffers, where it has an interval of no elements in a partition, or none."""
    shapes = {"a": (0, 3), **EMPTY, "v": (6,), "v.none": (0,), "z": (5, 4), "zz": (2, 0)}
    want = import_zero("universal", zero_state(shapes), dp, tmp_path)
    assert len(want) == 4 * len(shapes)
    assert import_zero("zero1", zero_state(shapes), dp, tmp_path) == want
    assert import_zero("zero3", zero_state(shapes), dp, tmp_path) == want
    weights = [d for d in want if "param/" in d]
    frozen = zero_state(shapes, ("blocks.1.none", "z"))
    for kind in ("zero1", "zero3", "universal"):
        assert import_zero(kind, frozen, dp, tmp_path, "--no-optim") == weights, kind


def test_names_are_written_as_they_are_even_if_they_look_like_paths(tmp_path):
    """Of a DCP, where two of them got one name. DeepSpeed Universal has a folder of this name for each tensor."""
    names = ["a/b", "a.b", "0", "..", "../../../there"]
    weights = {k: np.full((2, 2), i, np.float32) for i, k in enumerate(names)}
    weights["blocks.0.w"] = np.ones((2, 2), np.float32)
    rules = small(tmp_path / "source", weights)
    for kind, head in (("dcp", "model."), ("torchtitan", "")):
        ok("tp-reshard", tmp_path / "source", *rules, "--to", "tp1", "--format", kind, "-o", tmp_path / kind)
        found, paths = torch_files.load_dcp(tmp_path / kind)
        for k, v in weights.items():
            assert np.array_equal(found[head + k], v) and paths[head + k][-1] == k
        assert kind != "dcp" or (paths["optim.state.0.exp_avg"] == ("optim", "state", "0", "exp_avg") and
                                 paths["optim.param_groups.0.lr"] == ("optim", "param_groups", 0, "lr"))
    for name in names:
        weights = {name: np.ones((2, 2), np.float32), "blocks.0.w": np.ones((2, 2), np.float32)}
        rules = small(tmp_path / "one", weights)
        r = run("tp-reshard", tmp_path / "one", *rules, "--to", "tp1", "--format", "deepspeed", "-o", tmp_path / "out" / "ds")
        if name in ("a.b", "0"):
            assert r.rc == 0, repr(r)
        else:
            assert r.rc == 2 and "tensor %s cannot be the name of a folder" % name in r.err, repr(r)
        assert not (tmp_path / "there").exists() and not (tmp_path / "out/there").exists()
        shutil.rmtree(tmp_path / "one")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_tensor_with_the_name_of_safetensors_metadata_is_refused(tmp_path):
    weights = {k: np.ones((2, 2), np.float32) for k in ("__metadata__", "blocks.0.w")}
    rules = small(tmp_path / "source", weights)
    ok("tp-ckpt", "import", tmp_path / "source", *rules, "-o", tmp_path / "ckpt")
    for command in (["tp-ckpt", "export", tmp_path / "ckpt"], ["tp-reshard", tmp_path / "source", *rules, "--to", "tp1", "--format", "safetensors"]):
        r = run(*command, "-o", tmp_path / "out")
        assert r.rc == 2 and "a tensor is called __metadata__" in r.err and len(r.lines) == 1, repr(r)
        assert not (tmp_path / "out").exists()


def test_formats_that_fuse_tensors_take_no_rules(model, tmp_path):
    r = import_(model[0], tmp_path, "--format", "megatron")
    assert r.rc == 2 and "--rules" in r.err and "Megatron-LM" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_without_rules_the_architecture_is_refused(model, tmp_path):
    r = run("tp-ckpt", "import", model[0], "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "MyModel" in r.err and "--rules" in r.err, repr(r)


@pytest.mark.parametrize("change,words", [
    (lambda t: t.replace("scale ", "scaly "), ["no line for tensor scale", "rules"]),
    (lambda t: t + "other - \n", ["there is no tensor other"]),
    (lambda t: t + "blocks.*.norm.weight 0\n", ["both have tensor blocks.0.norm.weight"]),
    (lambda t: t.replace("norm.weight             -", "norm.weight   1"), ["has no axis 1"]),
    (lambda t: t.replace("first=16", "first=17"), ["first=17"]),
    (lambda t: t.replace("axis", "axis\nbad"), ["one word"]),
    (lambda t: t.replace("wo.weight     1 ", "wo.weight     1 expert "), ["wo.weight' has too few '*'"]),
    (lambda t: t.replace("scale                            -", "scale - expert"), ["'expert' is not possible"]),
])
def test_rules_that_do_not_fit_are_refused(change, words, model, tmp_path):
    r = import_(model[0], tmp_path, rules=change(RULES))
    assert r.rc == 2 and len(r.lines) == 1 and all(w in r.err for w in words), repr(r)
    assert not (tmp_path / "ckpt").exists()


def test_a_layout_that_the_rules_do_not_allow_is_refused(model, tmp_path):
    r = import_(model[0], tmp_path, "--layout", "tp4")
    assert r.rc == 2 and "wqkv" in r.err and "nearest that fit" in r.err, repr(r)


def test_a_line_that_is_optional_needs_no_tensor(model, tmp_path):
    folder, weights = model
    more = "blocks.*.attention.wo.bias - optional\nblocks.*.extra 0 unit=4 optional\n"
    r = import_(folder, tmp_path, rules=RULES + more.replace(" optional", ""))
    assert r.rc == 2 and "there is no tensor blocks.*.attention.wo.bias" in r.err and "'optional'" in r.err, repr(r)
    assert import_(folder, tmp_path, "--layout", "tp2", rules=RULES + more).rc == 0
    oracle_numpy.save_model(tmp_path / "more", CONFIG, {**weights, "blocks.2.extra": np.arange(16, dtype=np.float32)})
    assert import_(tmp_path / "more", tmp_path, "--layout", "tp2", "--force", rules=RULES + more).rc == 0
    tensors = json.loads((harness.steps(tmp_path / "ckpt")[-1] / "manifest.json").read_text())["tensors"]
    extra = [t["rule"] for t in tensors if t["name"] == "blocks.2.extra"]  # where there is one, it is cut as the line says
    assert extra == [{"dim": 0, "unit": 4, "blocks": 1, "share": False, "pad": False}]


def test_ep_deals_the_experts_of_lines_that_say_expert(model, tmp_path):
    folder, weights = model
    r = import_(folder, tmp_path, "--layout", "dp2ep2")
    assert r.rc == 2 and "ep needs a mixture of experts" in r.err, repr(r)
    rules = RULES.replace("experts.*.w1.weight     0", "experts.*.w1.weight     0   expert")
    assert import_(folder, tmp_path, "--layout", "tp2dp2ep2", rules=rules).rc == 0
    found = [set(read_shard(path)) for path in sorted(harness.steps(tmp_path / "ckpt")[-1].glob("rank-*.h5"))]
    assert len(found) == 4
    for rank, names in enumerate(found):
        dealt = {"blocks.%d.experts.%d.w1.weight" % (i, rank // 2) for i in range(3)}
        assert {name for name in names if "experts" in name} == dealt, rank
    ok("tp-reshard", tmp_path / "ckpt", "--to", "tp1dp2ep1", "-o", tmp_path / "one")
    ok("tp-ckpt", "export", tmp_path / "one", "--format", "safetensors", "-o", tmp_path / "hf")
    got = oracle_numpy.load_safetensors(tmp_path / "hf/model.safetensors")
    assert sorted(got) == sorted(weights) and all(np.array_equal(got[k], weights[k]) for k in weights)
    r = run("tp-reshard", tmp_path / "ckpt", "--to", "dp4ep4", "-o", tmp_path / "no")
    assert r.rc == 2 and "its 2 experts are not divisible by ep 4" in r.err, repr(r)


def test_a_number_that_is_no_layer_is_on_the_last_stage(model, tmp_path):
    weights = {**model[1], **{"tail.%d.w.weight" % i: np.full((4, 4), i, np.float32) for i in (0, 77)}}
    folder = oracle_numpy.save_model(tmp_path / "more", CONFIG, weights)
    assert import_(folder, tmp_path, "--layout", "pp3", rules=RULES + "tail.*.w.weight 0 last\n").rc == 0
    manifest = json.loads((harness.steps(tmp_path / "ckpt")[-1] / "manifest.json").read_text())
    assert manifest["layout"]["layers"] == 3
    assert {t["name"]: t["layer"] for t in manifest["tensors"]}.items() >= {"tail.0.w.weight": -2, "tail.77.w.weight": -2}.items()
    assert "tail.77.w.weight" in read_shard(harness.steps(tmp_path / "ckpt")[-1] / "rank-00002.h5")


@pytest.mark.parametrize("method", ["fp8", "mxfp4", None])
def test_quantized_weights_are_refused(method, model, tmp_path):
    folder, _ = model
    text = json.dumps({**CONFIG, "quantization_config": {"quant_method": method} if method else {"bits": 4}})
    (tmp_path / "quantized.json").write_text(text)
    for argv in (["tp-ckpt", "import", folder, "--config", tmp_path / "quantized.json"], ["tp-ckpt", "import", folder],
                 ["tp-reshard", folder, "--to", "tp2"]):
        r = run(*argv, "--rules", tmp_path / "rules", "-o", tmp_path / "ckpt")
        (folder / "config.json").write_text(text)
        assert r.rc == 2 and len(r.lines) == 1 and "--rules" in r.err and not (tmp_path / "ckpt").exists(), repr(r)
        assert "weights are quantized (%s)" % (method or "quantization_config") in r.err and "to bf16 first" in r.err, repr(r)


def test_a_type_of_quantized_weights_is_refused_although_the_config_does_not_say_it(model, tmp_path):
    name = "blocks.0.attention.wo.weight"
    path = model[0] / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header[name].update(dtype="F8_E4M3", shape=[8, 64])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size:])
    r = import_(model[0], tmp_path)
    assert r.rc == 2 and name in r.err and "convert the model to bf16 first" in r.err, repr(r)


def test_rules_are_refused_for_a_known_architecture_and_with_ignore(model, tmp_path):
    r = import_(model[0], tmp_path, "--ignore", "scale")
    assert r.rc == 2 and "--ignore" in r.err, repr(r)
    harness.write_config(model[0])
    r = import_(model[0], tmp_path)
    assert r.rc == 2 and "LlamaForCausalLM" in r.err and "--rules" in r.err, repr(r)
