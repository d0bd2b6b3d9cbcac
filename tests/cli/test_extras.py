"""What tp-reshard carries along, unchanged, from Megatron to Megatron: arguments, schedule and counters;
from DCP to DCP: objects.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/megatron_extras reshard/formats/torch/dcp_extras torch/pickle_copy
"""
import struct

import numpy as np
import pytest

import foreign_files
import torch_files
from harness import ok, run
from test_import_formats import config_of, dcp_tensors, digests, groups_of

SCHEDULE = {"max_lr": 0.02, "lr_warmup_steps": 10, "num_steps": 640, "lr_decay_style": "cosine", "end_wd": 0.1, "start_wd": None}
ARGS = {"consumed_train_samples": 12345, "seed": 7, "data_path": ["a", "b"], "blend": (0.5, {"x": -3}), "train_iters": 10 ** 12,
        "bias_swiglu_fusion": True, "world_size": 64, "rank": 63, "num_layers": 2}
GROUP = {"wd_mult": 1.0, "lr": 0.004, "max_lr": 0.02, "min_lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.3}


@pytest.fixture(scope="module")
def megatron(bf16):
    found = foreign_files.Megatron(config_of(bf16), 2)
    found.param_groups = [{"wd_mult": 0, "lr": 9.0}, GROUP]
    found.more_root = {"opt_param_scheduler": SCHEDULE, "num_floating_point_operations_so_far": 1e20, "tokens": [3, 2 ** 40],
                       "rerun_state": foreign_files._opaque("megatron_state", "State")()}
    found.more_args.update(ARGS, params_dtype=torch_files.torch.bfloat16)
    return found


def root_of(folder, kind):
    inside = folder / "iter_0000003"
    return torch_files.load((inside / ("common.pt" if kind == "torch_dist" else "mp_rank_00_001/model_optim_rng.pt")).read_bytes())


@pytest.mark.parametrize("kind,to", [("megatron", "megatron"), ("torch_dist", "torch_dist"), ("megatron", "torch_dist")])
def test_what_does_not_depend_on_the_layout_is_carried(kind, to, megatron, bf16, tmp_path):
    (megatron.torch_dist if kind == "torch_dist" else megatron.legacy)(tmp_path / "m", groups_of(bf16), 3)
    r = ok("tp-reshard", tmp_path / "m", "--to", "pp2", "--format", to, "--config", bf16.config, "-o", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(bf16.root)
    root = root_of(tmp_path / "out", to)
    for name in ("opt_param_scheduler", "num_floating_point_operations_so_far", "tokens"):
        assert root[name] == megatron.more_root[name], name
    args = vars(root["args"])
    for name in ("consumed_train_samples", "seed", "data_path", "blend", "train_iters", "bias_swiglu_fusion"):
        assert args[name] == ARGS[name], name
    assert args["pipeline_model_parallel_size"] == 2 and args["tensor_model_parallel_size"] == 1
    assert not {"world_size", "rank", "params_dtype"} & set(args)
    group = root["optimizer"]["optimizer"]["param_groups"][0]
    assert {k: group[k] for k in GROUP} == GROUP
    left = {"megatron": "left out args.params_dtype, rng_state, rerun_state", "torch_dist": "left out args.params_dtype, rerun_state, rng_state/shard"}
    assert left[kind] in r.out, repr(r)


def test_a_rate_that_a_source_of_megatron_does_not_have_is_not_invented(bf16, tmp_path):
    """Megatron-core 0.19 finds groups by their rates: None, of a program without --min-lr, is None again."""
    megatron = foreign_files.Megatron(config_of(bf16), 2)
    megatron.param_groups = [{**GROUP, "min_lr": None}]
    megatron.torch_dist(tmp_path / "m", groups_of(bf16), 3)
    r = ok("tp-reshard", tmp_path / "m", "--to", "pp2", "--config", bf16.config, "-o", tmp_path / "out")
    for group in root_of(tmp_path / "out", "torch_dist")["optimizer"]["optimizer"]["param_groups"]:
        assert group["max_lr"] == GROUP["max_lr"] and group.get("min_lr") is None, group
    assert "--min-lr" not in r.err, repr(r)


@pytest.mark.parametrize("options,rates", [((), (0.001, 0.001)), (("--lr", "0.02"), (0.02, 0)), (("--lr", "3e-4", "--min-lr", "3e-5"), (3e-4, 3e-5))],
                         ids=["none", "lr", "both"])
@pytest.mark.parametrize("kind", ["torch_dist", "megatron"])
def test_the_rates_of_a_schedule_are_those_that_are_chosen(options, rates, kind, bf16, tmp_path):
    r = ok("tp-ckpt", "export", bf16.root, "--format", kind, "--layout", "pp2", "-o", tmp_path / "out", *options)
    root = root_of(tmp_path / "out", kind)
    groups = root["optimizer"]["optimizer"]["param_groups"]
    assert groups and all((g["max_lr"], g["min_lr"]) == rates for g in groups), groups
    assert tuple(root["opt_param_scheduler"][k] for k in ("max_lr", "min_lr")) == rates
    assert ("give its --lr and --min-lr here too" in r.err) == (not options), repr(r)


def test_rates_that_are_none_are_refused(bf16, tmp_path):
    for options, word in ((("--lr", "x"), "such as 3e-4"), (("--min-lr", "-1"), "such as 3e-5"), (("--lr", "1e-4", "--min-lr", "1e-3"), "is above"),
                          (("--lr", "1", "--no-optim"), "exclude each other"), (("--lr", "1", "--format", "dcp"), "not dcp")):
        r = run("tp-ckpt", "export", bf16.root, "--format", "torch_dist", "-o", tmp_path / "out", *options)
        assert r.rc == 2 and word in r.err and not (tmp_path / "out").exists(), repr(r)


@pytest.mark.parametrize("kind", ["torch_dist", "dp_reshardable", "megatron"])
def test_another_optimizer_is_refused_by_its_name(kind, bf16, tmp_path):
    megatron = foreign_files.Megatron(config_of(bf16), 2)
    megatron.more_args["optimizer"] = "muon"
    if kind == "megatron":
        megatron.legacy(tmp_path / "m", groups_of(bf16), 3)
    else:
        megatron.torch_dist(tmp_path / "m", groups_of(bf16), 3, *[] if kind == "torch_dist" else [kind])
    r = run("tp-ckpt", "import", tmp_path / "m", "--config", bf16.config, "-o", tmp_path / "ckpt")
    assert r.rc == 2 and "--optimizer muon" in r.err and "--no-optim" in r.err and not (tmp_path / "ckpt").exists(), repr(r)
    ok("tp-ckpt", "import", tmp_path / "m", "--config", bf16.config, "--no-optim", "-o", tmp_path / "ckpt")


def test_another_format_and_weights_alone_get_nothing(megatron, bf16, tmp_path):
    megatron.legacy(tmp_path / "m", groups_of(bf16), 3)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp1", "--format", "deepspeed", "--config", bf16.config, "-o", tmp_path / "other")
    assert "left out args.params_dtype, args, rng_state, opt_param_scheduler, " in r.out, repr(r)
    group = torch_files.load(next((tmp_path / "other").rglob("optimizer_state.pt")).read_bytes())["param_groups"][0]
    assert (group["lr"], group["betas"]) == (0.004, (0.9, 0.95))  # which every optimizer has
    ok("tp-reshard", tmp_path / "m", "--to", "pp2", "--no-optim", "--config", bf16.config, "-o", tmp_path / "weights")
    root = torch_files.load((tmp_path / "weights/iter_0000000/mp_rank_00_001/model_optim_rng.pt").read_bytes())
    assert "opt_param_scheduler" not in root and vars(root["args"])["consumed_train_samples"] == 0


def test_a_value_that_contains_one_value_many_times_is_not_carried(bf16, tmp_path):
    bomb = []
    for _ in range(90):
        bomb = [bomb, bomb]
    megatron = foreign_files.Megatron(config_of(bf16))
    megatron.more_root = {"bomb": bomb}
    megatron.legacy(tmp_path / "m", groups_of(bf16), 3)
    r = ok("tp-reshard", tmp_path / "m", "--to", "tp2", "--config", bf16.config, "-o", tmp_path / "out")
    assert "bomb" in r.out


OBJECTS = {"scheduler.last_epoch": 640, "loader.0": {"seen": [1, 2]}, "optim.param_groups.0.lr": 0.004,
           "optim.param_groups.0.betas": (0.9, 0.95), "optim.param_groups.0.params": ["a"], "noted/odd.x": "text"}
PATHS = {"scheduler.last_epoch": ("scheduler", "last_epoch"), "loader.0": ("loader", "0"), "noted/odd.x": ("noted/odd.x",)}


@pytest.mark.parametrize("tail", ["optim.state.", "app.optimizer.state."])
def test_objects_of_dcp_are_carried(tail, f32, tmp_path):
    head = tail.replace("state.", "")
    objects = {k.replace("optim.", head): v for k, v in OBJECTS.items()}
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2, tail=tail), {**objects, "optim.param_groups.layers.0.weight.lr": 1.0}, paths=PATHS)
    r = ok("tp-reshard", tmp_path / "dcp", "--to", "tp2", "--config", f32.config, "-o", tmp_path / "out")
    assert "left out optim.param_groups.layers.*.weight.lr" in r.out, repr(r)
    found, paths = torch_files.load_dcp(tmp_path / "out")
    assert {k: v for k, v in found.items() if not isinstance(v, np.ndarray)} == OBJECTS
    assert {k: tuple(paths[k]) for k in PATHS} == PATHS and tuple(paths["optim.param_groups.0.lr"]) == ("optim", "param_groups", 0, "lr")
    assert digests(tmp_path / "out") == digests(f32.root)
    r = ok("tp-reshard", tmp_path / "dcp", "--to", "tp2", "--format", "megatron", "--config", f32.config, "-o", tmp_path / "m")
    assert ".params" in r.out and "param_groups.*.lr" not in r.out and ".betas" not in r.out, "they are not left out: %r" % r
    group = torch_files.load((tmp_path / "m/iter_0000003/mp_rank_01/model_optim_rng.pt").read_bytes())["optimizer"]["param_groups"][0]
    assert (group["lr"], group["betas"]) == (0.004, (0.9, 0.95))


def flip(folder, pattern):
    """Flip a bit of the only place in FOLDER that has these bytes."""
    (file,) = [p for p in folder.rglob("*") if p.is_file() and pattern in p.read_bytes()]
    data = bytearray(file.read_bytes())
    assert data.count(pattern) == 1
    data[data.find(pattern) + 2] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize("name,to", [("optim.param_groups.0.lr", "dcp"), ("optim.param_groups.0.lr", "deepspeed"), ("schedule.base", "dcp"),
                                     ("schedule.base", "deepspeed")])
def test_a_flipped_bit_in_an_object_that_is_carried_is_found(name, to, f32, tmp_path):
    """By its CRC-32. Its value would be taken for another one, or the damage would be copied."""
    values = {"optim.param_groups.0.lr": 0.2512345, "schedule.base": 0.7654321}
    torch_files.dcp(tmp_path / "dcp", dcp_tensors(f32, 2), values)
    flip(tmp_path / "dcp", struct.pack(">d", values[name]))
    r = run("tp-reshard", tmp_path / "dcp", "--to", "tp1", "--format", to, "--config", f32.config, "-o", tmp_path / "out")
    if (name, to) == ("schedule.base", "deepspeed"):  # which has no place for it
        assert r.rc == 0 and "left out " + name in r.out, repr(r)
    else:
        assert r.rc == 3 and name + ": " in r.err and "data.pkl has CRC-32" in r.err and not (tmp_path / "out").exists(), repr(r)


def test_a_flipped_bit_in_a_step_is_found(bf16, tmp_path):
    """The optimizer's step in common.pt is in one place only."""
    megatron = foreign_files.Megatron(config_of(bf16), 1)
    megatron.common_step = torch_files.Tensor(np.array(1234567, np.float32))
    megatron.torch_dist(tmp_path / "m", groups_of(bf16), 1234567)
    ok("tp-ckpt", "import", tmp_path / "m", "--config", bf16.config, "-o", tmp_path / "ckpt")
    flip(tmp_path / "m", np.float32(1234567).tobytes())
    r = run("tp-ckpt", "import", tmp_path / "m", "--config", bf16.config, "-o", tmp_path / "ckpt", "--force")
    assert r.rc == 3 and "common.pt" in r.err and "has CRC-32" in r.err, repr(r)
