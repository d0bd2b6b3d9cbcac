"""FSDP checkpoints of verl are read, of FSDP2 and FSDP1, with the optimizer: tensors have the digests of the checkpoint that they were made
from. tp-reshard writes FSDP2's for other numbers of ranks: what Python's pickle finds in them is what verl_files.py writes. Damaged and incomplete folders are errors that name the file. tests/clients/test_verl.py has files of real FSDP.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/verl/verl_target reshard/formats/verl/verl_flat reshard/formats/verl/verl_form reshard/formats/verl/verl reshard/formats/verl/verl_folder reshard/formats/verl/verl_tensor reshard/formats/verl/verl_units
    reshard/formats/verl/verl_optimizer reshard/formats/verl/verl_extra
"""
import pathlib
import shutil

import numpy as np
import pytest

import harness
import torch_files
from harness import ok, run
from state import State, digests
from verl_files import _PLACES, Save, _make

NORM = "model.norm.weight"


def made(folder, **changes):
    return State(folder, harness.write_config(folder / "model", vocab_size=257, hidden_size=40, num_attention_heads=4, num_key_value_heads=2,
                                              head_dim=10, intermediate_size=9, **changes), dtype="fp32")


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """Sizes that no number of ranks divides, and 9 rows."""
    return made(tmp_path_factory.mktemp("verl"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return made(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


def groups_of(state):
    return {g: state.group(g) for g in ("param", "exp_avg", "exp_avg_sq")}


def save(state, ranks, *args, **more):
    return Save(groups_of(state), ranks, *args, **more)


def config_of(state):
    return pathlib.Path(state.config)


CASES = {
    "fsdp2": dict(ranks=4), "2.11": dict(ranks=4, form="2.11"), "2.15": dict(ranks=4, form="2.15"),
    "one": dict(ranks=1), "one-2.15": dict(ranks=1, form="2.15"),
    "hsdp": dict(ranks=6, replicas=2), "hsdp-2.11": dict(ranks=6, replicas=3, form="2.11"), "hsdp-2.15": dict(ranks=6, replicas=3, form="2.15"),
    "dims": dict(ranks=3, dims={"lm_head.weight": 1, "model.layers.0.mlp.up_proj.weight": 1}),
    "fsdp1": dict(ranks=3, kind="fsdp1"), "fsdp1-hsdp": dict(ranks=6, replicas=2, kind="fsdp1"),
    "sharded": dict(ranks=4, kind="sharded"), "orig": dict(ranks=3, kind="orig"), "orig-hsdp": dict(ranks=4, replicas=2, kind="orig"),
}


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_together_have_every_tensor(case, state, tmp_path):
    folder = save(state, **CASES[case]).write(tmp_path / "actor", config_of(state))
    r = ok("tp-ckpt", "import", folder, "--layout", "pp2", "-o", tmp_path / "ckpt")
    assert "step 3" in r.out and "actor/huggingface/config.json" in r.err, repr(r)
    assert digests(tmp_path / "ckpt") == digests(state.root)
    assert "proved" in ok("tp-ckpt", "verify", folder).out


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "orig"])
def test_a_tied_head_has_no_number_in_the_optimizer(kind, tied, tmp_path):
    folder = save(tied, 3, kind=kind, tied=True).write(tmp_path / "actor", config_of(tied))
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(tied.root)


def test_the_folders_above_are_found(state, tmp_path):
    """global_step_N/actor of the RL trainer, global_step_N of the SFT trainer, and the tracker above both."""
    for number, below in (7, "actor"), (8, "."):
        top = tmp_path / ("top%d" % number)
        step = top / ("global_step_%d" % number)
        save(state, 2).write(step / below, config_of(state))
        (top / "latest_checkpointed_iteration.txt").write_text(str(number))
        for path in step, top:
            assert ok("tp-ckpt", "digest", path).out == ok("tp-ckpt", "digest", step / below).out
    (tmp_path / "top8/latest_checkpointed_iteration.txt").write_text("9")
    r = run("tp-ckpt", "verify", tmp_path / "top8")
    assert r.rc and "global_step_8" in r.err and len(r.lines) == 1, repr(r)


def test_weights_alone_are_read_too(state, tmp_path):
    folder = save(state, 2).write(tmp_path / "actor", config_of(state))
    ok("tp-ckpt", "import", folder, "--no-optim", "-o", tmp_path / "without")
    for path in [*folder.glob("optim*"), *folder.glob("extra*")]:
        path.unlink()
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(tmp_path / "without") == state.digests("param")


def test_without_fsdp_config_the_names_say_how_many_ranks_there_are(state, tmp_path):
    """Before verl 0.4.1."""
    folder = save(state, 3).write(tmp_path / "actor", config_of(state), says_world=False)
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(state.root)


def test_files_of_another_number_of_ranks_beside_them_do_not_count(state, tmp_path):
    """verl resumes at another number of ranks only from weights, and saves into the same folder."""
    folder = save(state, 2).write(tmp_path / "actor", config_of(state))
    other = {g: {k: v + 1 for k, v in t.items()} for g, t in groups_of(state).items()}
    Save(other, 3).write_rank(folder, 0)
    ok("tp-ckpt", "import", folder, "-o", tmp_path / "ckpt")
    assert digests(tmp_path / "ckpt") == digests(state.root)


# ---- writing ----

def plain(v):
    """What a pickle contains, with the objects of other classes as tuples; arrays as lists. Hashes are not compared."""
    if isinstance(v, np.ndarray):
        return v.shape, v.astype(np.float64).tobytes()
    if isinstance(v, torch_files._Named):
        return "object", plain(getattr(v, "args", ())), plain(getattr(v, "state", None))
    if isinstance(v, dict):
        return [(k, plain(x)) for k, x in v.items() if k != "_hash"]
    return tuple(map(plain, v)) if isinstance(v, (list, tuple)) else v


def hashes(v):
    """All values of keys _hash."""
    if isinstance(v, torch_files._Named):
        return hashes(getattr(v, "args", ())) | hashes(getattr(v, "state", None))
    if isinstance(v, dict):
        return {x for k, x in v.items() if k == "_hash"}.union(*map(hashes, v.values()))
    return set().union(*map(hashes, v)) if isinstance(v, (list, tuple)) else set()


def assert_same_files(found, want):
    assert sorted(p.name for p in found.glob("*.pt")) == sorted(p.name for p in want.glob("*.pt"))
    for path in want.glob("*.pt"):
        a, b = (torch_files.load((d / path.name).read_bytes()) for d in (found, want))
        if path.name.startswith("extra"):
            assert b.pop("rng")
        assert plain(a) == plain(b), path.name
        assert hashes(a) == {None} if path.name.startswith("model") else hashes(a) <= {None}


WRITTEN = {"%d to %d, %s" % (a, b, form): (dict(ranks=a, form=form), dict(ranks=b, form=form))
           for a, b, form in ((4, 3, "2.8"), (4, 2, "2.6"), (2, 5, "2.11"), (3, 2, "2.15"), (3, 1, "2.15"), (1, 2, "2.8"))}
WRITTEN.update({"hsdp, " + form: (dict(ranks=4, replicas=2, form=form), dict(ranks=6, replicas=3, form=form)) for form in ("2.6", "2.8", "2.11", "2.15")})
for _form in "2.6", "2.15":
    WRITTEN["fsdp1, " + _form] = dict(ranks=4, kind="fsdp1", form=_form), dict(ranks=3, kind="fsdp1", form=_form)
    WRITTEN["fsdp1, hsdp, " + _form] = tuple(dict(ranks=n, replicas=n // 2, kind="fsdp1", form=_form) for n in (4, 6))
WRITTEN["fsdp1, more"] = dict(ranks=2, kind="fsdp1"), dict(ranks=7, kind="fsdp1")
# of verl 0.6 and 0.7: the first axis that divides
WRITTEN["dims"] = dict(ranks=3, dims="3"), dict(ranks=4, dims="4")


def dims_of(state, how):
    """get_shard_placement_fn of verl."""
    if "dims" not in how:
        return how
    dims = {n: next((d for d, size in enumerate(v.shape) if size % int(how["dims"]) == 0), 0) for n, v in state.group("param").items()}
    assert set(dims.values()) == {0, 1}
    return {**how, "dims": dims}


# Both rules cut the source alike, and the target not.
NOTED = {"1 to 2, 2.8"}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written_for_other_ranks_is_what_they_would_save(case, state, tmp_path):
    before, after = (dims_of(state, how) for how in WRITTEN[case])
    folder = save(state, **before).write(tmp_path / "actor", config_of(state))
    (folder / "huggingface/tokenizer.json").write_text("{}")
    r = ok("tp-reshard", folder, "--to", "dp%d" % after["ranks"], "-o", tmp_path / "to", "--mem", "64M")
    assert "left out rng" in r.out and ("verl 0.6" in r.err) == (case in NOTED), repr(r)
    assert_same_files(tmp_path / "to", save(state, **after).write(tmp_path / "want"))
    assert (tmp_path / "to/fsdp_config.json").read_text() == '{\n    "FSDP_version": %d,\n    "world_size": %d\n}' % (
        1 if "kind" in after else 2, after["ranks"])
    assert sorted(p.name for p in (tmp_path / "to/huggingface").iterdir()) == ["config.json", "tokenizer.json"]
    ok("tp-ckpt", "diff", folder, tmp_path / "to")
    ok("tp-ckpt", "verify", tmp_path / "to")
    r = run("tp-reshard", folder, "--to", "dp2", "-o", tmp_path / "to", "--force")
    assert before.get("replicas") or r.rc == 0, repr(r)


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1"])
def test_a_tied_head_is_written_under_both_names(kind, tied, tmp_path):
    folder = save(tied, 3, kind=kind, tied=True).write(tmp_path / "actor", config_of(tied))
    ok("tp-reshard", folder, "--to", "dp2", "-o", tmp_path / "to")
    assert_same_files(tmp_path / "to", save(tied, 2, kind=kind, tied=True).write(tmp_path / "want"))


def test_weights_alone_are_written_too(state, tmp_path):
    folder = save(state, 3).write(tmp_path / "actor", config_of(state))
    for path in [*folder.glob("optim*"), *folder.glob("extra*")]:
        path.unlink()
    ok("tp-reshard", folder, "--to", "dp2", "-o", tmp_path / "to")
    assert {p.name for p in (tmp_path / "to").glob("*.pt")} == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}


def test_where_cuts_may_be_those_of_two_versions_a_note_says_so(state, tmp_path):
    folder = save(state, 1).write(tmp_path / "actor", config_of(state))
    assert "verl 0.6 and 0.7" in ok("tp-reshard", folder, "--to", "dp4", "-o", tmp_path / "to").err
    flat = save(state, 4, kind="fsdp1").write(tmp_path / "flat", config_of(state))  # FSDP1 cuts the first axis in all versions
    assert "verl 0.6" not in ok("tp-reshard", flat, "--to", "dp3", "-o", tmp_path / "flat3").err


# ---- damage ----

def refused(folder, state, *words):
    r = run("tp-ckpt", "import", folder, "--config", state.config, "-o", folder.parent / "no")
    assert r.rc == 3 and all(w in r.err for w in words) and len(r.lines) == 1, repr(r)
    assert not (folder.parent / "no").exists()
    return r


@pytest.mark.parametrize("kind", ["model", "optim", "extra_state"])
def test_files_that_are_missing_are_named(kind, state, tmp_path):
    s = save(state, 5)
    folder = s.write(tmp_path / "actor")
    s.path(folder, kind, 2).unlink()
    refused(folder, state, "%s_world_size_5_rank_2.pt" % kind, "no such file")
    s.path(folder, kind, 4).unlink()
    refused(folder, state, "%s_world_size_5_rank_2.pt" % kind, "%s_world_size_5_rank_4.pt" % kind, "2 ")


def test_a_copy_without_all_nodes_is_no_smaller_checkpoint(state, tmp_path):
    """Without fsdp_config.json, too."""
    for says in True, False:
        s = save(state, 4)
        folder = s.write(tmp_path / ("actor%d" % says), says_world=says)
        for rank in 0, 1:
            for kind in "model", "optim", "extra_state":
                s.path(folder, kind, rank).unlink()
        refused(folder, state, "model_world_size_4_rank_0.pt")


def test_another_number_of_ranks_is_noticed(state, tmp_path):
    folder = save(state, 4).write(tmp_path / "actor")
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 8}')
    refused(folder, state, "fsdp_config.json", "says 8 ranks", "say 4")
    for text in '{"world_size": 0}', '{"world_size": "4"}', "[" * 200, "{}":
        (folder / "fsdp_config.json").write_text(text)
        refused(folder, state, "fsdp_config.json", "world_size")
    (folder / "fsdp_config.json").unlink()
    save(state, 2).write_rank(folder, 0)
    refused(folder, state, "files of", "ranks")
    # a name that is not that of the save
    other, s = tmp_path / "other/actor", save(state, 2)
    s.write(tmp_path / "two")
    other.mkdir(parents=True)
    for rank in range(4):
        for kind in "model", "optim", "extra_state":
            shutil.copy(s.path(tmp_path / "two", kind, rank % 2), other / ("%s_world_size_4_rank_%d.pt" % (kind, rank)))
    refused(other, state, "model_world_size_4_rank_0.pt", "mesh of 2 ranks", "says 4")


@pytest.mark.parametrize("form", ["2.8", "2.15"])
def test_exchanged_files_are_noticed(form, state, tmp_path):
    s = save(state, 4, form=form)
    folder = s.write(tmp_path / "actor")
    for kind in "model", "optim":
        s.write(folder)
        a, b = (s.path(folder, kind, r) for r in (1, 2))
        a.rename(folder / "x"), b.rename(a), (folder / "x").rename(b)
        refused(folder, state, "%s_world_size_4_rank_1.pt" % kind, "place 2", "renamed")


def test_ranks_of_different_saves_are_noticed(state, tmp_path):
    s, later = save(state, 3), save(state, 3, step=4)
    folder = s.write(tmp_path / "actor")
    for kind in "optim", "extra_state":
        later.write_rank(folder, 1, [kind])
        refused(folder, state, "3", "4", *(["extra_state_world_size_3_rank_1.pt", "schedule"] if kind == "extra_state" else ["step"]))
        s.write_rank(folder, 1, [kind])
    less = groups_of(state)
    less = {g: {k: v for k, v in t.items() if k != NORM} for g, t in less.items()}
    Save(less, 3).write_rank(folder, 2, ["model"])
    refused(folder, state, "model_world_size_3_rank_2.pt", "different saves")
    shorter = {g: {k: v[:-1] if k == NORM else v for k, v in t.items()} for g, t in groups_of(state).items()}
    Save(shorter, 3).write_rank(folder, 2, ["model"])
    refused(folder, state, "model_world_size_3_rank_2.pt", NORM, "different saves")


class Changed(Save):
    """A save whose pickles a test changes."""

    def __init__(self, state, change, ranks=2, **more):
        super().__init__(groups_of(state), ranks, **more)
        self.change = change

    def mesh(self, rank):
        mesh = super().mesh(rank)
        if "mesh" in self.change:
            self.change["mesh"](mesh)
        return mesh

    def placements(self, name):
        return self.change["placements"](super().placements(name)) if "placements" in self.change else super().placements(name)

    def optimizer(self, rank):
        found = super().optimizer(rank)
        if "optimizer" in self.change:
            self.change["optimizer"](found)
        return found


def _set(obj, **attributes):
    obj.__dict__.update(attributes)


HOSTILE = {
    "partial": ("Partial", dict(placements=lambda p: (_make(_PLACES.Partial),))),
    "strided": ("_StridedShard", dict(placements=lambda p: (_make(_PLACES._StridedShard, dim=0, split_factor=2),))),
    "no placement": ("one placement", dict(placements=lambda p: ())),
    "placement of text": ("unknown class", dict(placements=lambda p: ("Shard",))),
    "axis": ("does not have", dict(placements=lambda p: (_make(_PLACES.Shard, dim=7),))),
    "negative axis": ("does not have", dict(placements=lambda p: (_make(_PLACES.Shard, dim=-1),))),
    "replicated": ("part of shape", dict(placements=lambda p: (_make(_PLACES.Replicate),))),
    "order": ("0, 1, 2", dict(mesh=lambda m: _set(m, _flatten_mesh_list=(1, 0)))),
    "no mesh": ("unknown form", dict(mesh=lambda m: _set(m, mesh=None))),
    "large mesh": ("mesh of 1000000", dict(mesh=lambda m: _set(m, mesh=torch_files.Tensor(np.arange(1000000))))),
    "groups": ("2 groups", dict(optimizer=lambda o: o["param_groups"].append(o["param_groups"][0]))),
    "no state": ("state_dict", dict(optimizer=lambda o: o.pop("state"))),
    "fewer": ("numbers 4", dict(optimizer=lambda o: o["param_groups"][0].update(params=[0, 1, 2, 3]))),
    "number": ("no parameter's", dict(optimizer=lambda o: o["state"].update({999: {}}))),
    "order of numbers": ("not the shape", dict(optimizer=lambda o: o["state"].update({0: o["state"][1], 1: o["state"][0]}))),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_damaged_or_not_supported_is_refused(case, state, tmp_path):
    words, change = HOSTILE[case]
    folder = Changed(state, change).write(tmp_path / "actor")
    r = run("tp-ckpt", "import", folder, "--config", state.config, "-o", tmp_path / "no")
    assert r.rc in (2, 3) and words in r.err and len(r.lines) == 1, repr(r)
    assert not (tmp_path / "no").exists()


def test_a_flat_parameter_of_another_length_is_refused(state, tmp_path):
    s = save(state, 3, kind="fsdp1")
    folder = s.write(tmp_path / "actor")
    found = s.optimizer(1)
    found["state"][1]["exp_avg"] = torch_files.Tensor(found["state"][1]["exp_avg"].storage[:-1])
    torch_files.save(s.path(folder, "optim", 1), found)
    refused(folder, state, "optim_world_size_3_rank_1.pt", "number 1")


class Evil:
    """A call that a form does not have."""

    def __reduce__(self):
        return print, ("called",)


NOT_WRITTEN = {
    "pp": ("only dp", "pp2", {}, {}),
    "orig": ("use_orig_params", "dp2", dict(kind="orig"), {}),
    "fsdp1 on one rank": ("on one rank", "dp1", dict(kind="fsdp1"), {}),
    "sharded": ("not a DTensor", "dp2", dict(kind="sharded"), {}),
    "replicas": ("multiples of 2", "dp3", dict(ranks=4, replicas=2), {}),
    "one replica": ("multiples of 2", "dp2", dict(ranks=4, replicas=2), {}),
    "call": ("form of torch", "dp2", {}, dict(mesh=lambda m: _set(m, _new=Evil()))),
    "call in a placement": ("form of torch", "dp2", {}, dict(placements=lambda p: (_make(_PLACES.Shard, dim=0, more=Evil()),))),
    "options": ("plain values", "dp2", {}, dict(optimizer=lambda o: o["param_groups"][0].update(lr=Evil()))),
    "amsgrad": ("max_exp_avg_sq", "dp2", {}, dict(optimizer=lambda o: o["state"][0].update(max_exp_avg_sq=o["state"][0]["exp_avg"]))),
}


@pytest.mark.parametrize("case", NOT_WRITTEN)
def test_what_cannot_be_written_is_refused(case, state, tmp_path):
    words, to, how, change = NOT_WRITTEN[case]
    folder = Changed(state, change, **{"ranks": 4, **how}).write(tmp_path / "actor", config_of(state))
    r = run("tp-reshard", folder, "--to", to, "-o", tmp_path / "no")
    assert r.rc == 2 and words in r.err and "called" not in r.out + r.err, repr(r)
    assert not (tmp_path / "no").exists()


def test_verl_is_written_only_from_verl(state, tmp_path):
    folder = save(state, 4).write(tmp_path / "actor", config_of(state))
    for argv in (["tp-reshard", folder, "--to", "dp2", "--no-optim"], ["tp-ckpt", "export", state.root, "--format", "verl", "--layout", "dp2"],
                 ["tp-reshard", folder, "--to", "dp2", "--dtype", "bf16"]):
        r = run(*argv, "-o", tmp_path / "no")
        assert r.rc == 2 and ("only from files of verl" in r.err or "loads the types" in r.err), repr(r)
        assert not (tmp_path / "no").exists()
    r = run("tp-reshard", folder, "--to", "dp2", "-o", "s3://bucket/prefix")
    assert r.rc == 2 and "not to a store" in r.err, repr(r)
