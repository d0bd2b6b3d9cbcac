"""tp-ckpt import and export of GPT-2 in Megatron's formats: its matrices are transposed, and query, key and value of each head
gathered. foreign_files.py says what Megatron's ranks have; tests/clients/test_megatron.py asks Megatron itself.

needs: tp-train tp-ckpt tp-reshard fault/shim.so
covers: reshard/formats/pieces/piece_target reshard/formats/pieces/piece_resume
"""
import itertools

import numpy as np
import pytest

import foreign_files
import torch_files
from harness import LONG, ok
from test_convert_resume import Job
from test_export_formats import modules_of
from test_import_formats import GROUPS, MEMORY, config_of, digests, groups_of, import_, imported
from test_megatron_experts import make_state, named


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return make_state(tmp_path_factory.mktemp("gpt2"), "gpt2", n_layer=4)


@pytest.mark.parametrize("tp,pp,vpp,distributed", [(2, 2, 1, False), (1, 2, 2, True)] + [(1, 1, 1, False), (4, 1, 1, True)] * LONG)
def test_gpt2_of_megatrons_ranks(tp, pp, vpp, distributed, gpt2, tmp_path):
    foreign_files.MegatronGpt2(config_of(gpt2), tp, pp, vpp).legacy(tmp_path / "m", groups_of(gpt2), 3, distributed)
    imported(gpt2, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2pp2")
    assert digests(tmp_path / "ckpt") == digests(gpt2.root)


@pytest.mark.parametrize("tp,pp,kind", [(2, 1, None), (2, 2, "dp_reshardable"), (1, 1, "dp_zero_gather_scatter")])
def test_gpt2_of_torch_dist(tp, pp, kind, gpt2, tmp_path):
    foreign_files.MegatronGpt2(config_of(gpt2), tp, pp, dp=3).torch_dist(tmp_path / "m", groups_of(gpt2), 3, kind)
    imported(gpt2, tmp_path / "m", tmp_path / "ckpt", "--layout", "tp2")
    assert digests(tmp_path / "ckpt") == digests(gpt2.root)


def test_weights_of_fp16_are_copies_of_masters_that_fp16_hardly_has(gpt2, tmp_path):
    """After the first steps of a warm-up biases are as small as the learning rate; fp16 has multiples of 6e-8 there."""
    state, rng = groups_of(gpt2), np.random.Generator(np.random.Philox(9))
    for name, master in state["master"].items():
        if name.endswith(".bias"):
            state["master"][name] = rng.uniform(-3e-7, 3e-7, master.shape).astype(np.float32)
    state["param"] = {k: v.astype(np.float16) for k, v in state["master"].items()}
    megatron = foreign_files.MegatronGpt2(config_of(gpt2), 2)
    megatron.legacy(tmp_path / "m", state, 3, distributed=True)
    imported(gpt2, tmp_path / "m", tmp_path / "ckpt")
    a, b = ("transformer.h.%d.mlp.c_fc.weight" % i for i in (1, 2))
    state["master"][a], state["master"][b] = state["master"][b], state["master"][a]
    megatron.legacy(tmp_path / "other", state, 3, distributed=True)
    r = import_(gpt2, tmp_path / "other", tmp_path / "no")
    assert r.rc == 3 and "masters of " + a in r.err, repr(r)


@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
def test_a_longer_table_of_positions_is_refused(kind, gpt2, tmp_path):
    megatron, state = foreign_files.MegatronGpt2(config_of(gpt2), 1), groups_of(gpt2)
    state = {g: {**t, "transformer.wpe.weight": t["transformer.wpe.weight"].repeat(2, 0)} for g, t in state.items()}
    getattr(megatron, kind)(tmp_path / "m", state, 3)
    r = import_(gpt2, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 3 and "position_embeddings.weight has another shape" in r.err and not (tmp_path / "ckpt").exists(), repr(r)


@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
@pytest.mark.parametrize("tp,pp,vpp", [(2, 2, 1), (1, 2, 2)] + [(4, 1, 1)] * LONG)
def test_megatrons_ranks_get_their_gpt2(tp, pp, vpp, engine, gpt2, tmp_path):
    layout = "tp%dpp%d" % (tp, pp) + ("vpp%d" % vpp if vpp > 1 else "")
    ok("tp-ckpt", "export", gpt2.root, "-o", tmp_path / "m", "--format", "megatron", "--layout", layout, "--mem", MEMORY,
       *modules_of(engine))
    reference = foreign_files.MegatronGpt2(config_of(gpt2), tp, pp, vpp, padding=128, engine=engine)
    reference.fill = foreign_files.LAST_ROW
    for place in itertools.product(range(tp), range(pp)):
        file = tmp_path / "m/iter_0000003" / reference.folder(*place, 0) / "model_optim_rng.pt"
        root, chunks = torch_files.load(file.read_bytes()), reference.chunks(groups_of(gpt2), *place)
        for c, chunk in enumerate(chunks):
            model = {k: v for k, v in root["model%d" % c if vpp > 1 else "model"].items() if "_extra_state" not in k}
            assert list(model) == list(chunk["param"])
            states = {k for k in root["model%d" % c if vpp > 1 else "model"] if "_extra_state" in k}
            assert states == reference.extra_states(chunk["param"])
            for name, want in chunk["param"].items():
                named(model[name], want, name)
        want = reference.ordinary(chunks, 3)
        for number, moments in want["optimizer"]["state"].items():
            for group in GROUPS:
                named(root["optimizer"]["optimizer"]["state"][number][group],
                      moments[group].storage.reshape(moments[group].shape), group, number)
        for group, masters in zip(root["optimizer"]["fp32_from_fp16_params"], want["fp32_from_fp16_params"], strict=True):
            for x, master in zip(group, masters, strict=True):
                named(x, master.storage.reshape(master.shape), "master")


def test_gpt2_from_one_format_of_megatron_to_the_other(gpt2, tmp_path):
    at = gpt2.root
    for i, (fmt, layout) in enumerate((("torch_dist", "tp2pp2"), ("megatron", "tp4"), ("torch_dist", "tp1"))):
        ok("tp-reshard", at, "--to", layout, "--format", fmt, "-o", tmp_path / str(i), "--mem", MEMORY)
        at = tmp_path / str(i)
        assert "intact" in ok("tp-ckpt", "verify", at).out
        assert digests(at) == digests(gpt2.root)


def test_what_a_killed_run_wrote_transposed_is_kept(gpt2, tmp_path):
    job = Job(tmp_path, {"tp": gpt2.root}, ("tp", "megatron", "tp2pp2"))
    job.kill_late(job.points())
    resumed, err = job.finish()
    assert resumed and "damaged" not in err, err
