"""tp-ckpt import of what other frameworks save: pytorch_model.bin, torch.distributed.checkpoint, Megatron-LM
and DeepSpeed.

The files are written by torch_files.py and foreign_files.py from a checkpoint of tp-train, and imported; then all tensors have the
digests of that checkpoint.

With TP_FOREIGN=DIR, folders of real frameworks in DIR are imported too: DIR/CASE/{ckpt,config.json,
truth.safetensors,truth_optim.safetensors}.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/import_source reshard/formats/foreign reshard/formats/pieces/piece_source reshard/formats/pieces/piece_endpoint
    reshard/formats/torch/torch_pieces reshard/formats/torch/torch_bin reshard/formats/torch/dcp reshard/formats/torch/dcp_metadata
    reshard/formats/pieces/file_table reshard/formats/pieces/flat_pieces reshard/formats/megatron/megatron reshard/formats/megatron/megatron_map
    reshard/formats/megatron/megatron_rank reshard/formats/megatron/megatron_optimizer reshard/formats/megatron/megatron_folder reshard/formats/megatron/megatron_args
    reshard/formats/megatron/megatron_flat reshard/formats/megatron/megatron_modules reshard/formats/megatron/torch_dist_flat
    reshard/formats/megatron/torch_dist_cut
    reshard/formats/megatron/torch_dist reshard/formats/deepspeed/deepspeed reshard/formats/deepspeed/deepspeed_zero
    reshard/formats/deepspeed/deepspeed_shapes reshard/formats/deepspeed/deepspeed_rank
    reshard/formats/deepspeed/deepspeed_universal reshard/foreign_contents cli/ckpt/foreign reshard/tensor_view
    storage/missing_files reshard/formats/safetensors/safetensors_pieces reshard/formats/megatron/master_check cli/ckpt/cmd_diff reshard/foreign_shapes
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from state import State, digests

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import oracle_numpy  # noqa: E402

GROUPS = ("exp_avg", "exp_avg_sq")
MEMORY = "1G" if harness.SANITIZE else "64M"  # a sanitizer keeps what is freed


def import_(state, source, root, *more):
    return run("tp-ckpt", "import", source, "--config", state.config, "-o", root, "--mem", MEMORY, *more)


def imported(state, source, root, *more):
    r = import_(state, source, root, *more)
    assert r.rc == 0, repr(r)
    return r


# ---- pytorch_model.bin ----

def tensors_of(weights, **wrap):
    return {k: torch_files.Tensor(v, **wrap) for k, v in weights.items()}


@pytest.mark.parametrize("wrap", [None, "type", "parameter", "attributes"])
def test_bin_in_one_file(wrap, f32, tmp_path):
    torch_files.save(tmp_path / "hf/pytorch_model.bin", tensors_of(f32.group("param"), wrap=wrap))
    r = imported(f32, tmp_path / "hf", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert "pytorch_model.bin" in r.out and "every checksum of the source" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == f32.digests("param")
    assert harness.steps(tmp_path / "ckpt")[0].name == "step-00000000"


def test_safetensors_are_read_where_there_is_a_bin_too(f32, tmp_path):
    """As transformers does, whose save_pretrained leaves an older pytorch_model.bin in the folder."""
    weights = f32.group("param")
    oracle_numpy.save_model(tmp_path / "hf", config_of(f32), weights)
    torch_files.save(tmp_path / "hf/pytorch_model.bin", tensors_of({k: v + 1 for k, v in weights.items()}))
    imported(f32, tmp_path / "hf", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == f32.digests("param")
    ok("tp-reshard", tmp_path / "hf", "--to", "tp2", "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == f32.digests("param")
    imported(f32, tmp_path / "hf", tmp_path / "bin", "--format", "bin")
    assert digests(tmp_path / "bin") != f32.digests("param")


def test_bin_in_parts_with_views_and_transposes(bf16, tmp_path):
    weights = bf16.group("param")
    names = sorted(weights)
    up, gate = [n for n in names if n.endswith(("up_proj.weight", "gate_proj.weight"))][:2]
    both = np.concatenate([weights[up].reshape(-1), weights[gate].reshape(-1)])  # two views of one storage
    files = {n: torch_files.transposed(weights[n]) if weights[n].ndim == 2 else torch_files.Tensor(weights[n])
             for n in names}
    shape = weights[up].shape
    files[up] = torch_files.Tensor(None, both, 0, shape, (shape[1], 1))
    files[gate] = torch_files.Tensor(None, both, weights[up].size, shape, (shape[1], 1))
    half = [n for n in names if n not in (up, gate)]
    parts = {"pytorch_model-00001-of-00002.bin": half[:5],
             "pytorch_model-00002-of-00002.bin": half[5:] + [up, gate]}
    for file, inside in parts.items():
        torch_files.save(tmp_path / "hf" / file, {n: files[n] for n in inside})
    (tmp_path / "hf/pytorch_model.bin.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, inside in parts.items() for n in inside}}))
    imported(bf16, tmp_path / "hf", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == bf16.digests("param")


def test_bin_with_a_missing_or_misshapen_tensor_names_it(f32, tmp_path):
    weights = f32.group("param")
    name = "model.layers.1.mlp.up_proj.weight"
    torch_files.save(tmp_path / "a/pytorch_model.bin", tensors_of({k: v for k, v in weights.items() if k != name}))
    r = import_(f32, tmp_path / "a", tmp_path / "ckpt")
    assert r.rc == 3 and name in r.err and "missing" in r.err and not (tmp_path / "ckpt").exists(), repr(r)
    torch_files.save(tmp_path / "b/pytorch_model.bin", tensors_of({**weights, name: weights[name][:-1]}))
    r = import_(f32, tmp_path / "b", tmp_path / "ckpt")
    assert r.rc == 3 and name in r.err and "pytorch_model.bin" in r.err, repr(r)
    torch_files.save(tmp_path / "c/pytorch_model.bin", tensors_of({**weights, "foo.bar": weights[name]}))
    r = import_(f32, tmp_path / "c", tmp_path / "ckpt")
    assert r.rc == 2 and "foo.bar" in r.err and "--ignore" in r.err, repr(r)


def test_a_flipped_bit_in_a_storage_is_found(f32, tmp_path):
    file = tmp_path / "hf/pytorch_model.bin"
    torch_files.save(file, tensors_of(f32.group("param")))
    data = bytearray(file.read_bytes())
    at = data.find(f32.group("param")["model.norm.weight"].tobytes())
    data[at + 9] ^= 4
    file.write_bytes(data)
    r = import_(f32, tmp_path / "hf", tmp_path / "ckpt")
    assert r.rc == 3 and "CRC-32" in r.err and "data/" in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


# ---- torch.distributed.checkpoint ----

def dcp_tensors(state, parts, head="model.", tail="optim.state."):
    """The state dict of an FSDP program: weights and moments cut by rows, steps as scalars."""
    out = {}
    for name, array in state.group("param").items():
        out[head + name] = (array, torch_files.rows(array, parts))
        for group in GROUPS:
            moment = state.group(group)[name]
            out[tail + name + "." + group] = (moment, torch_files.rows(moment, parts))
        out[tail + name + ".step"] = (np.array(3, np.float32), [((), ())])
    return out


@pytest.mark.parametrize("parts,head,tail", [(1, "model.", "optim.state."), (3, "", "optimizer.state."),
                                             (5, "net.", "app.optim.state."), (2, "app.model.", "app.optim.state.")])
def test_dcp_with_the_optimizer(parts, head, tail, f32, tmp_path):
    options = {"lr": 0.1, "betas": (0.5, 0.75), "eps": 1e-6, "weight_decay": 0.25, "foreach": None}
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, parts, head, tail),
                    {"optim.param_groups.0." + k: v for k, v in options.items()})
    r = imported(f32, tmp_path / "dcp", tmp_path / "ckpt", "--layout", "tp2dp2zero1")
    assert "step 3" in r.out and "left out 1: optim.param_groups.*.foreach" in r.out, repr(r)
    kept = json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["options"]
    assert kept == {"lr": 0.1, "beta1": 0.5, "beta2": 0.75, "eps": 1e-6, "weight_decay": 0.25}
    assert digests(tmp_path / "ckpt") == digests(f32.root)


def test_with_step_the_optimizer_keeps_its_own_count(f32, tmp_path):
    """AdamW's bias correction depends on it; the checkpoint's step is the number of the run."""
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2))
    imported(f32, tmp_path / "dcp", tmp_path / "ckpt", "--step", 9)
    train = json.loads((tmp_path / "ckpt/step-00000009/manifest.json").read_text())["train"]
    assert (train["step"], train["optimizer_start"]) == (9, 6)
    ok("tp-reshard", tmp_path / "dcp", "--config", f32.config, "--to", "tp1", "--step", 9, "--format", "megatron", "-o", tmp_path / "m")
    assert (tmp_path / "m/iter_0000009").is_dir()
    imported(f32, tmp_path / "m", tmp_path / "back")
    assert harness.steps(tmp_path / "back")[0].name == "step-00000003", "the step is the optimizer's"
    r = import_(f32, tmp_path / "dcp", tmp_path / "low", "--step", 2)
    assert r.rc == 2 and "--step 2 is less than the 3 steps" in r.err and not harness.steps(tmp_path / "low"), repr(r)
    imported(f32, tmp_path / "dcp", tmp_path / "low", "--step", 2, "--no-optim")


def test_training_resumes_from_an_imported_dcp(f32, tmp_path):
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2))
    imported(f32, tmp_path / "dcp", tmp_path / "ckpt", "--layout", "tp2")
    r = run(*harness.train_args(f32.config, tmp_path / "ckpt", steps=5, resume=True, layout="tp2", exit_step=4))
    assert r.rc == 75 and "the data starts at the first sequence, the learning rate at step 3" in r.err, repr(r)
    r = ok(*harness.train_args(f32.config, tmp_path / "ckpt", steps=5, resume=True, layout="tp2"))
    assert "data starts" not in r.err, "what tp-train saved has the place: %r" % r


@pytest.mark.parametrize("head", ["model.", "app.model.", "net."])
def test_dcp_weights_alone_with_a_prefix(head, f32, tmp_path):
    torch_files.dcp(tmp_path / "dcp", {head + k: (v, torch_files.rows(v, 2)) for k, v in f32.group("param").items()})
    imported(f32, tmp_path / "dcp", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == f32.digests("param")


def test_dcp_without_a_moment_says_how_to_do_without(f32, tmp_path):
    tensors = dcp_tensors(f32, 2)
    del tensors["optim.state.model.norm.weight.exp_avg_sq"]
    torch_files.dcp(tmp_path / "dcp", tensors)
    r = import_(f32, tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and "exp_avg_sq/model.norm.weight is missing; --no-optim" in r.err and len(r.lines) == 1, repr(r)
    r = run("tp-reshard", tmp_path / "dcp", "--config", f32.config, "--to", "tp2")
    assert r.rc == 3 and "--no-optim" in r.err, repr(r)
    imported(f32, tmp_path / "dcp", tmp_path / "ckpt", "--no-optim")


def test_dcp_with_an_optimizer_that_counts_in_int(f32, tmp_path):
    tensors = dcp_tensors(f32, 2)
    objects = {k: 3 for k in tensors if k.endswith(".step")}
    noise = {"scheduler.state.x.step": 7, "loader.state.step": 8}
    torch_files.dcp(tmp_path / "dcp", {k: v for k, v in tensors.items() if k not in objects}, {**objects, **noise})
    r = imported(f32, tmp_path / "dcp", tmp_path / "ckpt")
    assert "step 3" in r.out and "left out 2: scheduler.state.x.step, loader.state.step" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(f32.root)
    ok("tp-reshard", tmp_path / "dcp", "--config", f32.config, "--to", "tp2", "-o", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(f32.root)
    objects[min(objects)] = 4
    torch_files.dcp(tmp_path / "two", {k: v for k, v in tensors.items() if k not in objects}, objects)
    r = import_(f32, tmp_path / "two", tmp_path / "no")
    assert r.rc == 3 and "at step 4" in r.err, repr(r)


def test_dcp_cut_in_two_dimensions(f32, tmp_path):
    tensors = dcp_tensors(f32, 2)
    for key, (array, _) in list(tensors.items()):
        if array.ndim == 2:
            tensors[key] = (array, [((r[0][0], c[0][1]), (r[1][0], c[1][1]))
                                    for c in torch_files.columns(array, 2) for r in torch_files.rows(array, 3)])
    torch_files.dcp(tmp_path / "dcp", tensors, files=3)
    imported(f32, tmp_path / "dcp", tmp_path / "ckpt", "--layout", "tp1")
    assert digests(tmp_path / "ckpt") == digests(f32.root)


def test_dcp_weights_alone_and_casts(f32, tmp_path):
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2))
    imported(f32, tmp_path / "dcp", tmp_path / "a", "--no-optim")
    assert digests(tmp_path / "a") == f32.digests("param")
    imported(f32, tmp_path / "dcp", tmp_path / "b", "--dtype", "bf16")  # the masters are the f32 weights
    found = digests(tmp_path / "b")
    assert set(f32.digests(*GROUPS)) < set(found)
    masters = [d.replace("master/", "param/") for d in found if " master/" in d or "  master/" in d]
    assert masters == f32.digests("param")


@pytest.mark.parametrize("what", ["hole", "overlap", "outside", "path", "cut", "step"])
def test_a_damaged_dcp_is_refused_by_name(what, f32, tmp_path):
    tensors = dcp_tensors(f32, 2)
    name = "model.model.layers.0.mlp.down_proj.weight"
    array, boxes = tensors[name]
    half = array.shape[0] // 2
    if what == "hole":
        tensors[name] = (array, boxes[:1])
    elif what == "overlap":
        tensors[name] = (array, boxes + boxes[1:])
    elif what == "outside":
        larger = np.concatenate([array, array])
        tensors[name] = (larger, [((0, 0), array.shape), ((half, 0), larger.shape)])
    elif what == "step":
        tensors["optim.state.model.norm.weight.step"] = (np.array(4, np.float32), [((), ())])
    torch_files.dcp(tmp_path / "dcp", tensors)
    if what == "path":
        metadata = (tmp_path / "dcp/.metadata").read_bytes()
        (tmp_path / "dcp/.metadata").write_bytes(metadata.replace(b"__1_0.distcp", b"../../distcp"))
    if what == "cut":
        file = tmp_path / "dcp/__1_0.distcp"
        file.write_bytes(file.read_bytes()[:-2000])
    r = import_(f32, tmp_path / "dcp", tmp_path / "ckpt")
    assert r.rc == 3 and len(r.lines) == 1 and not harness.steps(tmp_path / "ckpt"), repr(r)
    word = {"path": "outside the folder", "cut": "cut off", "step": "step 4"}.get(what, "mlp.down_proj.weight")
    assert word in r.err, repr(r)


# ---- Megatron ----

def groups_of(state):
    found = {g: state.group(g) for g in ("param", "master", *GROUPS)}
    return {g: t for g, t in found.items() if t}


def config_of(state):
    return json.loads(pathlib.Path(state.config).read_text())


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Four layers in bf16, a vocabulary that must be padded."""
    folder = tmp_path_factory.mktemp("deep")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=4, vocab_size=259), dtype="bf16")


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 1), (8, 1, 1), (2, 2, 2)], ids="tp%dpp%dvpp%d".__mod__)
@pytest.mark.parametrize("distributed", [False, True])
def test_megatron_with_the_optimizer(mesh, distributed, deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), *mesh)
    megatron.legacy(tmp_path / "m", groups_of(deep), 3, distributed)
    r = imported(deep, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert "Megatron-LM" in r.out and "step 3" in r.out and "left out 2: args, rng_state" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(deep.root)


def test_the_file_of_a_ranks_distributed_optimizer_that_is_missing_is_named(deep, tmp_path):
    foreign_files.Megatron(config_of(deep), 2, 2).legacy(tmp_path / "m", groups_of(deep), 3, distributed=True)
    (tmp_path / "m/iter_0000003/mp_rank_01_001/distrib_optim.pt").unlink()
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "mp_rank_01_001/distrib_optim.pt: no such file" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("tp", [1, 4])
def test_torch_dist_with_the_optimizer(tp, deep, tmp_path):
    foreign_files.Megatron(config_of(deep), tp).torch_dist(tmp_path / "m", groups_of(deep), 3)
    r = imported(deep, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert "torch_dist" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(deep.root)


@pytest.mark.parametrize("tp,dp", [(1, 1), (2, 3), (4, 5)])
def test_the_distributed_optimizer_as_fully_sharded_model_space(tp, dp, deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), tp, dp=dp)
    megatron.torch_dist(tmp_path / "m", groups_of(deep), 3, "fully_sharded_model_space")
    r = imported(deep, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert "every checksum of the source" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(deep.root)
    ok("tp-reshard", tmp_path / "m", "--to", "tp2", "--config", deep.config, "-o", tmp_path / "out")  # of the same kind
    found = torch_files.load_dcp(tmp_path / "out/iter_0000003")[0]
    assert any(name.startswith("optimizer.state.param.") for name in found), list(found)
    assert digests(tmp_path / "out") == digests(deep.root)


CUT = "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight"


def name_another_shape(tensors, _, cut):
    cut[CUT] = cut[CUT][:1] + cut[CUT][:0:-1]


def forget_the_shape(tensors, _, cut):
    del cut[CUT]


def name_a_shape_of_no_grid(tensors, _, cut):
    cut[CUT] = (*cut[CUT][:2], cut[CUT][2] + 1)


def name_more_axes(tensors, _, cut):
    cut[CUT] = (1, 1, *cut[CUT])


def go_beyond_the_part(tensors, _, cut):
    array, boxes = tensors[CUT]
    tensors[CUT] = (array, [*boxes[:-1], (boxes[-1][0], boxes[-1][1][:-1] + (boxes[-1][1][-1] + 1,))])


def go_beyond_the_grid(tensors, _, cut):
    array, boxes = tensors[CUT]
    tensors[CUT] = (array, [*boxes[:-1], ((99,) + boxes[-1][0][1:], boxes[-1][1])])


def drop_interval(tensors, _, cut):
    array, boxes = tensors[CUT]
    tensors[CUT] = (array, boxes[:5] + boxes[6:])


@pytest.mark.parametrize("change,word", [
    (name_another_shape, "has another shape"), (forget_the_shape, "neither a matrix nor a vector"),
    (name_a_shape_of_no_grid, "is not a grid"), (name_more_axes, "is not a grid"), (go_beyond_the_part, "is not a grid"),
    (go_beyond_the_grid, "is not a grid"), (drop_interval, "down_proj.weight")])
def test_parts_that_are_no_grid_are_refused_by_name(change, word, deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), 2, dp=2)
    megatron.torch_dist(tmp_path / "m", groups_of(deep), 3, "fully_sharded_model_space", change)
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and len(r.lines) == 1 and word in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Nothing is a multiple of 64 elements, and the head is tied."""
    folder = tmp_path_factory.mktemp("odd")
    return State(folder, harness.write_config(
        folder / "model", num_hidden_layers=4, vocab_size=131, hidden_size=40, num_attention_heads=4, head_dim=6,
        num_key_value_heads=2, intermediate_size=52, tie_word_embeddings=True), dtype="bf16")


# tp, pp, vpp, dp, elements of a bucket, Transformer Engine
FLAT = [(1, 1, 1, 1, None, False), (2, 2, 1, 3, 3000, True), (4, 1, 1, 2, 1, True), (2, 2, 2, 2, 9000, False),
        (1, 4, 1, 5, None, True)]


@pytest.mark.parametrize("tp,pp,vpp,dp,bucket,engine", FLAT)
@pytest.mark.parametrize("kind", ["legacy", "dp_reshardable", "dp_zero_gather_scatter"])
def test_the_flat_buffers_of_megatrons_distributed_optimizer(kind, tp, pp, vpp, dp, bucket, engine, odd, tmp_path):
    megatron = foreign_files.Megatron(config_of(odd), tp, pp, vpp, dp=dp, bucket_size=bucket, engine=engine)
    if kind == "legacy":
        megatron.legacy(tmp_path / "m", groups_of(odd), 3, distributed=True)
    else:
        megatron.torch_dist(tmp_path / "m", groups_of(odd), 3, kind)
    r = imported(odd, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert "step 3" in r.out and "every checksum of the source" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(odd.root)


def test_flat_buffers_of_an_untied_model(deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), 2, 2, dp=2, bucket_size=5000, engine=True)
    megatron.torch_dist(tmp_path / "m", groups_of(deep), 3, "dp_reshardable")
    r = imported(deep, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp4")
    assert "left out 3: args" in r.out and "dp_group_idx_0.optimizer/shard_0_1" in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(deep.root)


BUCKET = "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_%d."


def drop_bucket(tensors, _):
    for name in MOMENTS_AND_MASTER:
        del tensors[BUCKET % 1 + name]


def drop_last_bucket(tensors, _):
    last = max(int(k.split("bucket_idx_")[1].split(".")[0]) for k in tensors if k.startswith(BUCKET[:40]))
    for name in MOMENTS_AND_MASTER:
        del tensors[BUCKET % last + name]


def drop_chunk(tensors, _):
    array, boxes = tensors[BUCKET % 0 + "exp_avg"]
    tensors[BUCKET % 0 + "exp_avg"] = (array, boxes[1:])


def cut_differently(tensors, _):
    array, boxes = tensors[BUCKET % 0 + "param"]
    tensors[BUCKET % 0 + "param"] = (array, [(boxes[0][0], (boxes[0][1][0] + 7,)), *boxes[1:]])


def resize_bucket(tensors, _):
    array, boxes = tensors[BUCKET % 0 + "param"]
    tensors[BUCKET % 0 + "param"] = (array[:-8], boxes[:-1])


def rename_moment(tensors, _):
    tensors[BUCKET % 0 + "momentum"] = tensors.pop(BUCKET % 0 + "exp_avg")


def add_rank(tensors, _):
    tensors[(BUCKET % 0).replace("idx_1.", "idx_4.", 1) + "param"] = tensors[BUCKET % 0 + "param"]


MOMENTS_AND_MASTER = ("param", *GROUPS)


@pytest.mark.parametrize("change,word", [
    (drop_bucket, "a bucket before it is missing|another bucket of its buffer is missing"), (drop_last_bucket, "elements, but"),
    (drop_chunk, "exp_avg/model"), (cut_differently, "unknown order"), (resize_bucket, "another shape"),
    (rename_moment, "momentum is unknown state"), (add_rank, "did not have")])
def test_damaged_flat_buffers_are_refused_by_name(change, word, odd, tmp_path):
    megatron = foreign_files.Megatron(config_of(odd), 2, 2, dp=2, bucket_size=3000)
    megatron.torch_dist(tmp_path / "m", groups_of(odd), 3, "dp_reshardable", change)
    r = import_(odd, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and len(r.lines) == 1 and any(w in r.err for w in word.split("|")), repr(r)
    assert not harness.steps(tmp_path / "ckpt")


@pytest.mark.parametrize("what", ["engine", "short", "missing", "tp"])
def test_flat_buffers_that_do_not_fit_the_model_are_refused(what, odd, tmp_path):
    def change(tensors, objects):
        key = "optimizer.distributed.dp_group_idx_0.param_state/shard_0_1"
        buffers = next(iter(objects[key][0][0].values())) if key in objects else {}
        if what == "short":
            buffers["exp_avg_sq"] = torch_files.Tensor(buffers["exp_avg_sq"].storage[:-1])
        if what == "missing":
            del objects[key]

    kind = "dp_reshardable" if what == "engine" else "dp_zero_gather_scatter"
    megatron = foreign_files.Megatron(config_of(odd), 2, 2, bucket_size=3000, engine=what == "engine")
    if what == "engine":  # the order of modules is not that of args
        megatron.more_args["transformer_impl"] = "local"
    if what == "tp":
        megatron.more_args["tensor_model_parallel_size"] = 4
    megatron.torch_dist(tmp_path / "m", groups_of(odd), 3, kind, change)
    r = import_(odd, tmp_path / "m", tmp_path / "ckpt")
    word = {"engine": "unknown order", "short": "exp_avg_sq is not a flat buffer", "missing": "/model.",
            "tp": "elements, but the parameters"}[what]
    assert r.rc == 3 and word in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


def test_an_order_that_sizes_do_not_tell_is_noticed(deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), 2, 2, engine=True)
    megatron.more_args["transformer_impl"] = "local"
    megatron.torch_dist(tmp_path / "m", groups_of(deep), 3, "dp_zero_gather_scatter")
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "unknown order" in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)


@pytest.mark.parametrize("kind", ["legacy", "dp_zero_gather_scatter"])
def test_masters_that_are_not_those_of_the_weights_are_refused(kind, deep, tmp_path):
    """As if the order of parameters were another one; sizes alone do not tell."""
    state = groups_of(deep)
    a, b = ("model.layers.%d.mlp.gate_proj.weight" % i for i in (1, 2))
    for group in ("master", *GROUPS):
        state[group] = {**state[group], a: state[group][b], b: state[group][a]}
    megatron = foreign_files.Megatron(config_of(deep), 2, 2)
    if kind == "legacy":
        megatron.legacy(tmp_path / "m", state, 3, distributed=True)
    else:
        megatron.torch_dist(tmp_path / "m", state, 3, kind)
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "unknown order" in r.err and a in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)
    assert run("tp-ckpt", "verify", tmp_path / "m", "--config", deep.config).rc == 1
    imported(deep, tmp_path / "m", tmp_path / "ckpt", "--no-optim")
    assert digests(tmp_path / "ckpt") == deep.digests("param")


class Counting(foreign_files.Megatron):
    """Its optimizer is at a step of its own: fp16 skips the update of some iterations."""

    count = None

    def ordinary(self, chunks, step):
        out = super().ordinary(chunks, step)
        for state in out["optimizer"]["state"].values():
            state["step"] = self.count
        return out


GROUP = {"wd_mult": 1.0, "lr": 0.1, "step": 3}


@pytest.mark.parametrize("kind,changes", [
    ("legacy", {"count": 3}), ("legacy", {"count": torch_files.Tensor(np.array(3, np.float32))}),
    ("torch_dist", {"common_step": torch_files.Tensor(np.array(3, np.float32))}), ("torch_dist", {"common_step": 3}),
    ("torch_dist", {"param_groups": [{"wd_mult": 0.0, "step": 3}, GROUP]}), ("dp_reshardable", {"param_groups": [GROUP]})])
def test_the_step_of_megatrons_optimizer_is_not_the_iteration(kind, changes, deep, tmp_path):
    megatron = Counting(config_of(deep), 2)
    vars(megatron).update(changes)
    if kind == "legacy":
        megatron.legacy(tmp_path / "m", groups_of(deep), 5)
    else:
        megatron.torch_dist(tmp_path / "m", groups_of(deep), 5, None if kind == "torch_dist" else kind)
    r = imported(deep, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert harness.steps(tmp_path / "ckpt")[0].name == "step-00000003", repr(r)
    assert digests(tmp_path / "ckpt") == digests(deep.root)


def test_megatron_ranks_of_two_iterations_are_refused(deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), 2)
    for step in 3, 4:
        megatron.legacy(tmp_path / str(step), groups_of(deep), step, distributed=True)
    rank = tmp_path / "3/iter_0000003/mp_rank_01"
    shutil.rmtree(rank)
    shutil.copytree(tmp_path / "4/iter_0000004/mp_rank_01", rank)
    r = import_(deep, tmp_path / "3", tmp_path / "ckpt")
    assert r.rc == 3 and "mp_rank_01" in r.err and "at step 4, but" in r.err, repr(r)


def test_a_megatron_rank_that_is_missing_or_of_another_model_is_named(deep, f32, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep), 2, 2)
    megatron.legacy(tmp_path / "m", groups_of(deep), 3)
    r = run("tp-ckpt", "import", tmp_path / "m", "--config", f32.config, "-o", tmp_path / "ckpt")
    assert r.rc == 3 and "mp_rank_00_000" in r.err and "layer" in r.err, repr(r)
    (tmp_path / "m/iter_0000003/mp_rank_01_001/model_optim_rng.pt").unlink()
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "mp_rank_01_001" in r.err and not harness.steps(tmp_path / "ckpt"), repr(r)
    r = run("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "config.json" in r.err, repr(r)


@pytest.mark.parametrize("change,word", [({"num_attention_heads": 6, "num_query_groups": 5}, "num_attention_heads 6"),
                                         ({"num_query_groups": 2}, "num_query_groups 2"),
                                         ({"apply_layernorm_1p": True}, "apply_layernorm_1p"),
                                         ({"layernorm_zero_centered_gamma": True}, "layernorm_zero_centered_gamma"),
                                         ({"rotary_interleaved": True}, "rotary_interleaved")])
@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
def test_a_megatron_program_of_another_model_is_refused(kind, change, word, deep, tmp_path):
    megatron = foreign_files.Megatron(config_of(deep))
    megatron.more_args.update(group_query_attention=True, **change)
    getattr(megatron, kind)(tmp_path / "m", groups_of(deep), 3)
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and word in r.err and not (tmp_path / "ckpt").exists(), repr(r)


def test_a_folder_of_no_known_format_is_said_to_be_one(deep, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/weights.npz").write_bytes(b"")
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and "no known format" in r.err and "megatron" in r.err and len(r.lines) == 1, repr(r)


def test_with_a_format_the_message_is_of_that_format(deep, tmp_path):
    foreign_files.Megatron(config_of(deep), 2).legacy(tmp_path / "m", groups_of(deep), 3)
    (tmp_path / "m/latest_checkpointed_iteration.txt").write_text("99")
    r = import_(deep, tmp_path / "m", tmp_path / "ckpt", "--format", "megatron")
    assert r.rc == 2 and "iter_0000099" in r.err, repr(r)


# ---- DeepSpeed ----

@pytest.mark.parametrize("dp", [1, 3])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_zero1(dp, kind, request, tmp_path):
    state = request.getfixturevalue(kind)
    foreign_files.zero1(tmp_path / "ds", groups_of(state), 3, dp)
    imported(state, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(state.root)


def test_zero1_with_elastic_checkpoint(bf16, tmp_path):
    """The base optimizer's state is a list of what each group has."""
    foreign_files.zero1(tmp_path / "ds", groups_of(bf16), 3, 2, elastic=True, count=3)
    r = imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert "step 3" in r.out and "left out" not in r.out, repr(r)
    assert digests(tmp_path / "ckpt") == digests(bf16.root)


@pytest.mark.parametrize("dp", [1, 3])
def test_zero3(dp, bf16, tmp_path):
    foreign_files.zero3(tmp_path / "ds", groups_of(bf16), 3, dp)
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(bf16.root)


@pytest.mark.parametrize("bare", [False, True])
def test_universal(bare, bf16, tmp_path):
    foreign_files.universal(tmp_path / "ds", groups_of(bf16), 3, bare)
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(bf16.root)


@pytest.mark.parametrize("cut", ["tensors", "stages"])
def test_universal_of_model_parallel_ranks(cut, bf16, tmp_path):
    """ds_to_universal joins the parts in zero/, and leaves each rank's model states, with shapes of its part, as they are."""
    state = groups_of(bf16)
    foreign_files.universal(tmp_path / "ds", state, 3, False)
    for rank in range(2):
        def part(t):
            if cut == "tensors":
                return {k: np.split(v, 2)[rank] if v.ndim == 2 else v for k, v in t.items()}
            return {k: v for k, v in t.items() if (k.startswith("model.layers.1") or k == "model.norm.weight") == (rank == 1)}
        states = foreign_files._model_states({k: torch_files.Tensor(v) for k, v in part(state["param"]).items()}, [part(state["master"])], 3, 2, {})
        torch_files.save(tmp_path / ("ds/global_step3_universal/mp_rank_%02d_model_states.pt" % rank), {**states, "mp_world_size": 2})
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(bf16.root)
    (tmp_path / "ds/global_step3_universal/mp_rank_01_model_states.pt").unlink()
    r = import_(bf16, tmp_path / "ds", tmp_path / "ckpt", "--force")
    assert r.rc == 3 and "mp_rank_01_model_states.pt" in r.err and "no such file" in r.err.lower(), repr(r)


@pytest.mark.parametrize("universal,zero,newest", [(3, 12, 12), (12, 3, 12), (3, 3, 3)])
def test_of_two_files_that_say_which_step_is_the_newest_the_newer_one_is_taken(universal, zero, newest, bf16, tmp_path):
    """Training goes on in the folder that has the Universal checkpoint which it began with."""
    foreign_files.universal(tmp_path / "ds", groups_of(bf16), universal, False)
    foreign_files.zero1(tmp_path / "ds", groups_of(bf16), zero, 2)
    r = imported(bf16, tmp_path / "ds", tmp_path / "ckpt")
    assert harness.steps(tmp_path / "ckpt")[-1].name == "step-%08d" % newest, repr(r)


def test_deepspeeds_optimizer_is_read_also_where_the_trainer_left_the_weights_alone_beside_it(bf16, tmp_path):
    """As transformers.Trainer does with save_safetensors=False, or DeepSpeed's save_16bit_model."""
    foreign_files.zero1(tmp_path / "ds", groups_of(bf16), 3, 2)
    torch_files.save(tmp_path / "ds/pytorch_model.bin", tensors_of(bf16.group("param")))
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(bf16.root)
    imported(bf16, tmp_path / "ds", tmp_path / "bin", "--format", "bin")
    assert digests(tmp_path / "bin") == bf16.digests("param")


OWN_ADAM = {"zero1": lambda *a, **more: foreign_files.zero1(*a, 2, **more), "zero3": lambda *a, **more: foreign_files.zero3(*a, 2, **more),
            "universal": lambda *a, **more: foreign_files.universal(*a, False, **more)}


@pytest.mark.parametrize("kind", OWN_ADAM)
def test_the_step_of_deepspeeds_own_adam_is_a_number(kind, bf16, tmp_path):
    """It is not global_steps, which also counts steps that fp16 skips."""
    OWN_ADAM[kind](tmp_path / "ds", groups_of(bf16), 5, count=3)
    r = imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--layout", "tp2")
    assert "step 3" in r.out and harness.steps(tmp_path / "ckpt")[0].name == "step-00000003", repr(r)
    assert digests(tmp_path / "ckpt") == digests(bf16.root)
    OWN_ADAM[kind](tmp_path / "negative", groups_of(bf16), 5, count=-3)
    r = import_(bf16, tmp_path / "negative", tmp_path / "no")
    assert r.rc == 3 and "is not a whole number" in r.err and len(r.lines) == 1, repr(r)


@pytest.mark.parametrize("step", [3, torch_files.Tensor(np.array(3, np.float32))])
def test_universal_of_zero3_has_its_step_in_one_place(step, bf16, tmp_path):
    foreign_files.universal(tmp_path / "ds", groups_of(bf16), 5, True)
    torch_files.save(tmp_path / "ds/global_step5_universal/zero/optimizer_state.pt", {
        "optimizer_state_dict": {"state": {0: {"step": step}}, "param_groups": []}})
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt")
    assert harness.steps(tmp_path / "ckpt")[0].name == "step-00000003"


FROZEN = "model.layers.1.mlp.up_proj.weight"
WITH_FROZEN = {**OWN_ADAM, "zero3-5": lambda *a: foreign_files.zero3(*a, 5), "universal-bare": lambda *a: foreign_files.universal(*a, True)}


def without_state_of(groups, *names):
    """The state of a program that does not train these."""
    return {g: t if g == "param" else {k: v for k, v in t.items() if k not in names} for g, t in groups.items()}


@pytest.mark.parametrize("kind", WITH_FROZEN)
def test_frozen_parameters_of_deepspeed_have_weights_only(kind, bf16, tmp_path):
    groups = without_state_of(groups_of(bf16), FROZEN, "model.norm.weight")
    WITH_FROZEN[kind](tmp_path / "ds", groups, 3)
    r = ok("tp-ckpt", "verify", tmp_path / "ds", "--config", bf16.config)
    assert "shapes" not in r.out, repr(r)
    assert "param/%s\n" % FROZEN in ok("tp-ckpt", "digest", tmp_path / "ds").out
    r = import_(bf16, tmp_path / "ds", tmp_path / "no")
    assert r.rc == 3 and (FROZEN in r.err or "model.norm.weight" in r.err) and "--no-optim" in r.err and len(r.lines) == 1, repr(r)
    r = imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--no-optim")
    assert "left out" not in r.out and digests(tmp_path / "ckpt") == bf16.digests("param"), repr(r)


def test_frozen_parameters_of_zero3_keep_their_type(bf16, tmp_path):
    groups = without_state_of(groups_of(bf16), FROZEN)
    groups["param"] = {**groups["param"], FROZEN: groups_of(bf16)["master"][FROZEN]}
    foreign_files.zero3(tmp_path / "ds", groups, 3, 2)
    imported(bf16, tmp_path / "ds", tmp_path / "ckpt", "--no-optim")
    dtypes = {t["name"]: t["dtype"] for t in json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["tensors"]}
    assert dtypes.pop(FROZEN) == "f32" and set(dtypes.values()) == {"bf16"}
    imported(bf16, tmp_path / "ds", tmp_path / "cast", "--no-optim", "--dtype", "bf16")
    assert digests(tmp_path / "cast") == bf16.digests("param")


# DeepSpeed's folders whose import has other groups: masters of weights in f32, and masters alone.
OTHER_GROUPS = {"zero1": "f32", "zero3": "bf16", "universal-bare": "bf16"}


@pytest.mark.parametrize("kind", OTHER_GROUPS)
def test_diff_of_what_has_masters_and_its_import(kind, request, tmp_path):
    """Weights in f32 are their own masters, and weights are masters that were rounded."""
    state = request.getfixturevalue(OTHER_GROUPS[kind])
    WITH_FROZEN[kind](tmp_path / "ds", groups_of(state), 3)
    for a, b in ((tmp_path / "ds", state.root), (state.root, tmp_path / "ds")):
        r = ok("tp-ckpt", "diff", a, b)
        assert r.out == "equal: %d tensors\n" % (4 * len(state.group("param"))), repr(r)
        assert "equal: %d tensors" % len(state.group("param")) in ok("tp-ckpt", "diff", a, b, "--group", "param").out
    groups = groups_of(state)
    masters = "master" if "master" in groups else "param"
    groups[masters] = {**groups[masters], FROZEN: groups[masters][FROZEN].copy()}
    groups[masters][FROZEN][1, 2] += 1
    if masters == "param":  # the masters alone are changed, not the weights
        groups = {**groups, "master": groups["param"], "param": groups_of(state)["param"]}
    WITH_FROZEN[kind](tmp_path / "changed", groups, 3)
    group, text = ("master", ", compared with param of the second") if kind == "zero1" else ("param", ", compared with master of the first")
    r = run("tp-ckpt", "diff", tmp_path / "changed", state.root)
    assert r.rc == 1 and ("%s/%s: 1 of " % (group, FROZEN)) in r.out and "first at [1, 2], by at most " in r.out and text in r.out, repr(r)
    assert "different: %d tensor" % (1 if kind == "zero1" else 2) in r.out and "only" not in r.out, repr(r)
    found = json.loads(run("tp-ckpt", "diff", state.root, tmp_path / "changed", "--json").out)["differences"]
    text = text.replace("first", "X").replace("second", "first").replace("X", "second")
    one, = [d for d in found if text in d["difference"]]
    assert harness.steps(state.root)[0].name in one["a"]["file"] and "changed" in one["b"]["file"]


def test_diff_of_masters_that_the_other_has_no_f32_of(bf16, tmp_path):
    ok("tp-reshard", bf16.root, "--to", "tp1", "--no-optim", "-o", tmp_path / "weights")
    r = run("tp-ckpt", "diff", bf16.root, tmp_path / "weights")
    n = len(bf16.group("param"))
    assert r.rc == 1 and "master/%s: is only in the first" % FROZEN in r.out and "different: %d tensors" % (3 * n) in r.out, repr(r)


def model_states_of_rank_1(change):
    """_model_states, whose second result is changed."""
    original, calls = foreign_files._model_states, []

    def changed(*a):
        states = original(*a)
        calls.append(states)
        if len(calls) == 2:
            change(states)
        return states
    return changed


def shorter(states):
    name, part = states["frozen_param_fragments"].popitem()
    states["frozen_param_fragments"][name] = torch_files.Tensor(part.storage[:-1])


RANK_1 = {"global_steps is 4, but 3": lambda s: s.update(global_steps=4),
          "global_steps is missing, but 3": lambda s: s.pop("global_steps"),
          "dp_world_size is 4, but 2": lambda s: s.update(dp_world_size=4),
          "number 1 of param_shapes is lm_head.weight [3, 5], but lm_head.weight [": lambda s: s["param_shapes"][0].update(
              {"lm_head.weight": foreign_files._size((3, 5))}),
          "of param_shapes is missing, but model.norm.weight": lambda s: s["param_shapes"][1].popitem(),
          "number 1 of frozen_param_shapes is missing, but " + FROZEN: lambda s: s["frozen_param_shapes"].clear(),
          "frozen_param_fragments has " + FROZEN: shorter}


@pytest.mark.parametrize("word", RANK_1)
def test_ranks_of_zero3_that_are_of_different_saves_are_named(word, bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "_model_states", model_states_of_rank_1(RANK_1[word]))
    foreign_files.zero3(tmp_path / "ds", without_state_of(groups_of(bf16), FROZEN), 3, 2)
    r = import_(bf16, tmp_path / "ds", tmp_path / "ckpt", "--no-optim")
    assert r.rc == 3 and "/zero_pp_rank_1_mp_rank_00_model_states.pt: " in r.err and word in r.err and len(r.lines) == 1, repr(r)
    r = run("tp-ckpt", "verify", tmp_path / "ds")
    assert r.rc == 1 and word in r.out and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("kind, name", [("zero1", "/zero_pp_rank_1"), ("zero3", "/bf16_zero_pp_rank_1")])
def test_a_rank_of_zero_that_is_missing_is_named(kind, name, bf16, tmp_path):
    getattr(foreign_files, kind)(tmp_path / "ds", groups_of(bf16), 3, 2)
    lost, = (tmp_path / "ds/global_step3").glob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    lost.unlink()
    r = import_(bf16, tmp_path / "ds", tmp_path / "ckpt")
    assert r.rc == 3 and name in r.err and "each of the 2 ranks" in r.err, repr(r)
    assert not harness.steps(tmp_path / "ckpt")


@pytest.mark.parametrize("lost", ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt",
                                  "zero_pp_rank_2_mp_rank_00_model_states.pt", "*zero_pp_rank_0_*"])
def test_model_states_of_zero3_that_are_missing_are_named(lost, bf16, tmp_path):
    """Although the weights are in the files of the optimizer."""
    foreign_files.zero3(tmp_path / "ds", groups_of(bf16), 3, 3)
    for file in (tmp_path / "ds/global_step3").glob(lost):
        file.unlink()
    missing_is_damage(tmp_path / "ds", lost.strip("*") + ("mp_rank_00_model_states.pt" if "*" in lost else ""), bf16, tmp_path)


def test_model_states_of_zero1_that_are_missing_are_named(bf16, tmp_path):
    foreign_files.zero1(tmp_path / "ds", groups_of(bf16), 3, 2)
    (tmp_path / "ds/global_step3/mp_rank_00_model_states.pt").unlink()
    missing_is_damage(tmp_path / "ds", "mp_rank_00_model_states.pt", bf16, tmp_path)


def missing_is_damage(folder, name, state, tmp_path):
    r = import_(state, folder, tmp_path / "ckpt")
    assert r.rc == 3 and "/global_step3/%s: no such file" % name in r.err and len(r.lines) == 1, repr(r)
    assert not harness.steps(tmp_path / "ckpt")
    r = run("tp-reshard", folder, "--config", state.config, "--to", "tp2", "--format", "tp", "-o", tmp_path / "y")
    assert r.rc == 3 and name in r.err and not (tmp_path / "y").exists(), repr(r)
    r = run("tp-ckpt", "verify", folder, "--config", state.config)
    assert r.rc == 1 and name in r.out and "\ndamaged: " in r.out, repr(r)


def written_in_parts(fmt, state, folder):
    """Write a checkpoint of at least seven files; returns the files in their order, without config.json and indexes."""
    if fmt == "bin":
        weights = tensors_of(state.group("param"))
        parts = {"pytorch_model-%05d.bin" % i: dict(list(weights.items())[i::7]) for i in range(7)}
        for file, inside in parts.items():
            torch_files.save(folder / file, inside)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(
            {"weight_map": {name: file for file, inside in parts.items() for name in inside}}))
    elif fmt in ("zero1", "zero3"):
        getattr(foreign_files, fmt)(folder, groups_of(state), 3, 8)
    else:
        cut = ["--max-shard-size", "30K"] if fmt == "safetensors" else ["--layout", "tp4pp2"]
        ok("tp-ckpt", "export", state.root, "--format", fmt, "-o", folder, *cut)
    pattern = {"safetensors": "*.safetensors", "bin": "*.bin", "megatron": "*/*/*.pt", "zero1": "*/*optim_states.pt",
               "zero3": "*/*_states.pt"}.get(fmt, "**/*.distcp")
    files = sorted(folder.glob(pattern), key=lambda f: (f.parent.name[::-1], f.name))  # Megatron's tp rank is before pp
    assert len(files) >= 7
    return files


@pytest.mark.parametrize("fmt", ["safetensors", "bin", "dcp", "megatron", "torch_dist", "zero1", "zero3"])
def test_a_copy_that_is_not_complete_names_the_files_that_are_missing(fmt, bf16, tmp_path):
    """An import refuses it, and verify finds the damage."""
    files = written_in_parts(fmt, bf16, tmp_path / "x")
    for n in (1, 3, 6):
        lost = files[-n:]
        for file in lost:
            file.unlink(missing_ok=True)
        r = import_(bf16, tmp_path / "x", tmp_path / "ckpt")
        assert r.rc == 3 and lost[0].name in r.err and len(r.lines) == 1, repr(r)
        assert run("tp-reshard", tmp_path / "x", "--config", bf16.config, "--to", "tp2",
                   "--format", "tp", "-o", tmp_path / "y").rc == 3
        assert not (tmp_path / "y").exists()
        assert ("; %d files of this checkpoint are missing: " % n in r.err) == (n > 1), repr(r)
        assert all(str(f.relative_to(f.parents[fmt == "megatron"])) in r.err for f in lost[:4]), repr(r)
        assert ("and 2 others" in r.err) == (n == 6) and not harness.steps(tmp_path / "ckpt"), repr(r)
        r = run("tp-ckpt", "verify", tmp_path / "x", "--config", bf16.config)
        assert r.rc == 1 and lost[0].name in r.out and "\ndamaged: " in r.out, repr(r)
        found = json.loads(run("tp-ckpt", "verify", tmp_path / "x", "--config", bf16.config, "--json").out)
        assert not found["ok"] and lost[0].name in found["findings"][0], found
    assert run("tp-ckpt", "verify", tmp_path / "x", "--config", tmp_path / "absent.json").rc == 2


# ---- torch.compile ----

def compiled(name, kind):
    """A name in the state dict of a model that is compiled as a whole, by layers, or both."""
    whole, layers = kind in ("whole", "both"), kind in ("layers", "both")
    head, found, tail = name.partition(".layers.")
    if found and layers:
        number, _, rest = tail.partition(".")
        name = head + found + number + "._orig_mod." + rest
    return ("_orig_mod." if whole else "") + name


def rename(state, change):
    return {g: {change(k): v for k, v in t.items()} for g, t in groups_of(state).items()}


@pytest.mark.parametrize("kind", ["whole", "layers", "both"])
@pytest.mark.parametrize("fmt", ["bin", "safetensors", "dcp", "zero1", "zero3", "universal"])
def test_names_of_a_compiled_model_are_those_of_the_model(fmt, kind, bf16, tmp_path):
    groups, folder = rename(bf16, lambda name: compiled(name, kind)), tmp_path / "x"
    if fmt == "bin":
        torch_files.save(folder / "pytorch_model.bin", tensors_of(groups["param"]))
    elif fmt == "safetensors":
        write_safetensors(folder / "model.safetensors", groups["param"])
    elif fmt == "dcp":
        torch_files.dcp(folder, {"model." + k: (v, torch_files.rows(v, 2)) for k, v in groups["master"].items()} | {
            "optim.state.%s.%s" % (k, g): (v, torch_files.rows(v, 2)) for g in GROUPS for k, v in groups[g].items()} | {
            "optim.state.%s.step" % k: (np.array(3, np.float32), [((), ())]) for k in groups["param"]})
    else:
        OWN_ADAM[fmt](folder, groups, 3)
    more = ["--dtype", "bf16"] if fmt == "dcp" else []
    r = imported(bf16, folder, tmp_path / "ckpt", "--layout", "tp2", *more)
    want = bf16.digests("param") if fmt in ("bin", "safetensors") else digests(bf16.root)
    assert digests(tmp_path / "ckpt") == want and "_orig_mod" not in r.out
    found = ok("tp-ckpt", "show", folder, "--json").out
    assert "_orig_mod" not in found.split('"tensors"')[1]


@pytest.mark.parametrize("fmt", ["bin", "safetensors", "dcp"])
def test_a_tensor_that_is_stored_compiled_and_not_is_refused(fmt, f32, tmp_path):
    weights, name = dict(f32.group("param")), "model.norm.weight"
    weights["_orig_mod." + name] = weights[name]
    if fmt == "bin":
        torch_files.save(tmp_path / "x/pytorch_model.bin", tensors_of(weights))
    elif fmt == "safetensors":
        write_safetensors(tmp_path / "x/model.safetensors", weights)
    else:
        torch_files.dcp(tmp_path / "x", {k: (v, torch_files.rows(v, 1)) for k, v in weights.items()})
    r = import_(f32, tmp_path / "x", tmp_path / "ckpt")
    assert r.rc == 3 and name in r.err and len(r.lines) == 1 and not harness.steps(tmp_path / "ckpt"), repr(r)


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": {"f32": "F32", "bf16": "BF16"}[torch_files.kind_of(array)], "shape": array.shape,
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))


# ---- other verbs ----

@pytest.fixture(scope="module")
def written(tmp_path_factory, f32, deep):
    """{format: (folder, state)}."""
    folder = tmp_path_factory.mktemp("written")
    torch_files.dcp(folder / "dcp", dcp_tensors(f32, 3), {"optim.param_groups.0.lr": 0.1})
    foreign_files.Megatron(config_of(deep), 2, 2).legacy(folder / "megatron", groups_of(deep), 3)
    foreign_files.zero1(folder / "deepspeed", groups_of(deep), 3, 2)
    ok("tp-ckpt", "export", deep.root, "-o", folder / "safetensors", "--max-shard-size", "200K")
    return {"safetensors": (folder / "safetensors", deep),
            "dcp": (folder / "dcp", f32), "megatron": (folder / "megatron", deep), "deepspeed": (folder / "deepspeed", deep)}


@pytest.mark.parametrize("kind", ["dcp", "megatron", "deepspeed"])
def test_other_verbs_read_it(kind, written):
    folder, state = written[kind]
    config = ["--config", state.config]
    assert ok("tp-ckpt", "digest", folder, *config).out.splitlines()[:-1] == digests(state.root)
    listed = json.loads(ok("tp-ckpt", "ls", folder, *config, "--json").out)
    assert [(e["format"], e["step"], e["tensors"]) for e in listed] == [(kind, 3, len(state.tensors))]
    shown = json.loads(ok("tp-ckpt", "show", folder, *config, "--json").out)
    assert {t["group"] + "/" + t["name"] for t in shown["tensors"]} == set(state.tensors)
    verified = json.loads(ok("tp-ckpt", "verify", folder, *config, "--json").out)
    assert verified["ok"] and verified["bytes_checked"] and not verified["bytes_without_checksum"]
    text = ok("tp-ckpt", "verify", folder, *config).out
    assert "each element once" in text
    unproved = {"dcp": ".metadata, which has no checksum", "megatron": "in flat buffers", "deepspeed": "are of one save"}[kind]
    assert "\nnot proved: " in text and unproved in text and any(unproved in t for t in verified["not_proved"])
    assert "the model has no other tensors" in text and "the model has no other tensors" in verified["not_proved"][-1]


@pytest.mark.parametrize("kind", ["dcp", "megatron", "deepspeed"])
def test_show_says_where_the_elements_are(kind, written):
    folder, state = written[kind]
    name = "model.layers.1.self_attn.k_proj.weight"
    shown = json.loads(ok("tp-ckpt", "show", folder, "exp_avg/" + name, "--config", state.config, "--json").out)
    found = np.zeros(shown["shape"], np.float32)
    for piece in shown["pieces"]:
        data = np.fromfile(piece["file"], np.uint8)[piece["byte"]:]
        count = 1 + sum((n - 1) * s for n, s in zip(piece["shape"], piece["strides"]))
        elements = np.frombuffer(data[:4 * count].tobytes(), np.float32)
        box = tuple(slice(a, a + n) for a, n in zip(piece["offset"], piece["shape"]))
        found[box] = np.lib.stride_tricks.as_strided(elements, piece["shape"], [4 * s for s in piece["strides"]])
    assert found.tobytes() == state.group("exp_avg")[name].tobytes()
    r = run("tp-ckpt", "show", folder, "absent", "--config", state.config)
    assert r.rc == 2 and "absent" in r.err, repr(r)


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "deepspeed"])
def test_verify_compares_names_and_shapes_with_config_json(kind, written, tmp_path):
    state = written[kind][1]
    folder, config = shutil.copytree(written[kind][0], tmp_path / kind), config_of(state)

    def verify(**changes):
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        r = run("tp-ckpt", "verify", folder, "--json")
        assert r.rc in (0, 1), repr(r)
        return json.loads(r.out)

    shapes = "shapes are those of a config.json"
    right, wrong, unknown = verify(), verify(intermediate_size=128), verify(architectures=["Other"], model_type="other")
    more = verify(num_hidden_layers=config["num_hidden_layers"] + 1)
    assert right["ok"] and not any(shapes in x for x in right["not_proved"])
    assert unknown["ok"] and any(shapes in x for x in unknown["not_proved"])
    assert not more["ok"] and "is missing, and so are 8 more" in more["findings"][0], more
    assert not wrong["ok"] and "config.json says" in wrong["findings"][0] and "_proj.weight is " in wrong["findings"][0]


def test_safetensors_are_read_by_the_same_verbs(written, tmp_path):
    folder, state = written["safetensors"]
    assert ok("tp-ckpt", "digest", folder).out.splitlines()[:-1] == state.digests("param")
    assert [e["format"] for e in json.loads(ok("tp-ckpt", "ls", folder, "--json").out)] == ["safetensors"]
    shown = json.loads(ok("tp-ckpt", "show", folder, "--json").out)["tensors"]
    assert {t["name"] for t in shown} == set(state.group("param")) and len(list(folder.glob("*.safetensors"))) > 1
    verified = json.loads(ok("tp-ckpt", "verify", folder, "--json").out)
    assert verified["ok"] and not verified["bytes_checked"] and verified["bytes_without_checksum"]
    assert "no bit changed" in verified["not_proved"][0]
    name = "model.layers.2.mlp.up_proj.weight"
    piece, = json.loads(ok("tp-ckpt", "show", folder, name, "--json").out)["pieces"]
    data = pathlib.Path(piece["file"]).read_bytes()[piece["byte"]:]
    assert data.startswith(state.group("param")[name].tobytes())
    one = pathlib.Path(piece["file"])
    assert len(ok("tp-ckpt", "digest", one).out.splitlines()) < len(shown)  # a file alone
    copy = harness.copy(folder, tmp_path / "copy")
    (copy / one.name).write_bytes(one.read_bytes()[:-3])
    r = run("tp-ckpt", "verify", copy)
    assert r.rc == 1 and one.name in r.out, repr(r)


# ---- diff ----

@pytest.mark.parametrize("kind", ["dcp", "megatron", "deepspeed", "safetensors"])
def test_diff_across_formats(kind, written, tmp_path):
    folder, state = written[kind]
    more = ["--config", state.config, *(["--group", "param"] if kind == "safetensors" else [])]
    ok("tp-reshard", state.root, "--to", "tp2pp2", "-o", tmp_path / "tp2pp2")
    for a, b in ((folder, tmp_path / "tp2pp2"), (state.root, folder), (folder, folder)):
        r = ok("tp-ckpt", "diff", a, b, *more)
        assert r.out.startswith("equal: ") and r.out != "equal: 0 tensors\n", repr(r)


def test_diff_names_tensor_rank_and_file(written, deep, tmp_path):
    name = "model.layers.3.mlp.down_proj.weight"
    changed = groups_of(deep)
    changed["exp_avg"] = {**changed["exp_avg"], name: changed["exp_avg"][name].copy()}
    changed["exp_avg"][name][2, -1] += 1
    foreign_files.Megatron(config_of(deep), 2, 2).legacy(tmp_path / "m", changed, 3)
    ok("tp-reshard", deep.root, "--to", "tp2pp2", "-o", tmp_path / "ours")
    r = run("tp-ckpt", "diff", tmp_path / "ours", tmp_path / "m", "--config", deep.config)
    at = [2, deep.group("param")[name].shape[1] - 1]
    assert r.rc == 1 and "exp_avg/%s: 1 of " % name in r.out and "first at [%d, %d]" % tuple(at) in r.out, repr(r)
    assert "rank-00003.h5 (rank 3)" in r.out and "mp_rank_01_001" in r.out and "different: 1 tensor" in r.out, repr(r)
    found, = json.loads(run("tp-ckpt", "diff", tmp_path / "ours", tmp_path / "m", "--config", deep.config, "--json").out)["differences"]
    assert found["name"] == name and found["a"]["rank"] == 3 and found["b"]["rank"] is None
    assert "mp_rank_01_001" in found["b"]["file"]
    ok("tp-ckpt", "diff", tmp_path / "ours", tmp_path / "m", "--config", deep.config, "--atol", "1.5")
    ok("tp-ckpt", "diff", tmp_path / "ours", tmp_path / "m", "--config", deep.config, "--group", "param")
    r = run("tp-ckpt", "diff", tmp_path / "ours", tmp_path / "m", "--config", deep.config, "--group", "params")
    assert r.rc == 2 and "params" in r.err, repr(r)


def test_diff_does_not_trust_damaged_files(written, tmp_path):
    folder, state = written["megatron"]
    copy = harness.copy(folder, tmp_path / "m")
    file = copy / "iter_0000003/mp_rank_00_001/model_optim_rng.pt"
    data = bytearray(file.read_bytes())
    data[data.find(state.group("exp_avg")["model.norm.weight"].tobytes()) + 5] ^= 1
    file.write_bytes(data)
    r = run("tp-ckpt", "diff", state.root, copy, "--config", state.config)
    assert r.rc == 3 and "CRC-32" in r.err and "mp_rank_00_001" in r.err, repr(r)


def test_verify_finds_damage(written, tmp_path):
    folder, state = written["megatron"]
    copy = harness.copy(folder, tmp_path / "m")
    file = copy / "iter_0000003/mp_rank_00_001/model_optim_rng.pt"
    data = bytearray(file.read_bytes())
    data[data.find(state.group("exp_avg")["model.norm.weight"].tobytes()) + 5] ^= 1
    file.write_bytes(data)
    r = run("tp-ckpt", "verify", copy, "--config", state.config)
    assert r.rc == 1 and "CRC-32" in r.out and "mp_rank_00_001" in r.out and "damaged" in r.out, repr(r)
    assert run("tp-ckpt", "digest", copy, "--config", state.config).rc == 3
    file.write_bytes(data[:-100])
    r = run("tp-ckpt", "verify", copy, "--config", state.config, "--json")
    assert r.rc == 1 and not json.loads(r.out)["ok"] and "mp_rank_00_001" in json.loads(r.out)["findings"][0], repr(r)


# ---- real files ----

FOREIGN = os.environ.get("TP_FOREIGN")
REAL = ["dcp_fsdp2", "dcp_tp4", "megatron_legacy_tp4pp2", "megatron_legacy_distopt_tp2pp2dp2",
        "megatron_torch_dist_tp2pp2", *("megatron_torch_dist_distopt_tp2pp2dp2/ckpt_" + k for k in ("fully_reshardable", "dp_reshardable", "dp_zero_gather_scatter")),
        "deepspeed_zero1_fp32", "deepspeed_zero3_bf16_dp3", "deepspeed_universal"]


def read_safetensors(path):
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    kinds = {"F32": np.float32, "BF16": np.uint16, "F16": np.float16, "I64": np.int64}
    return {k: np.frombuffer(data[8 + n:][slice(*v["data_offsets"])], kinds[v["dtype"]]).reshape(v["shape"])
            for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


@pytest.mark.skipif(not FOREIGN, reason="TP_FOREIGN is not set: no folder of real checkpoints")
@pytest.mark.parametrize("case", REAL)
def test_real_checkpoints(case, tmp_path):
    name, _, folder = case.partition("/")
    path = pathlib.Path(FOREIGN) / name
    ok("tp-ckpt", "import", path / (folder or "ckpt"), "--config", path / "config.json", "-o", tmp_path / "ckpt",
       "--layout", "tp2", "--mem", MEMORY)
    subprocess.run([sys.executable, harness.REPO / "tests/reader/read_ckpt.py", harness.steps(tmp_path / "ckpt")[0],
                    tmp_path / "all.npz"], check=True, stdout=subprocess.DEVNULL)
    found = dict(np.load(tmp_path / "all.npz"))
    want = {"param/" + k: v for k, v in read_safetensors(path / "truth.safetensors").items()}
    for key, value in read_safetensors(path / "truth_optim.safetensors").items():
        tensor, group = key.rsplit(".", 1)
        if group != "step":
            want[group + "/" + tensor] = value
    if json.loads((path / "config.json").read_text())["tie_word_embeddings"]:
        want = {k: v for k, v in want.items() if not k.endswith("/lm_head.weight")}
    assert sorted(found) == sorted(want)
    for key, value in want.items():
        assert found[key].tobytes() == value.tobytes(), key
