"""Which modules' names a folder for each rank of Megatron-LM is written with: those that are chosen, those of a source of
Megatron's, or Transformer Engine's.

needs: tp-train tp-ckpt tp-reshard
covers: reshard/formats/megatron/megatron_impl reshard/export_options
"""
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_import_formats import State, config_of, digests, groups_of
from test_megatron_experts import make_state

IMPLS = {False: "local", True: "transformer_engine"}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    return State(folder, harness.write_config(folder / "model", vocab_size=259), dtype="bf16")


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    return make_state(tmp_path_factory.mktemp("mixtral"), "mixtral", head_dim=6)


def modules_of(folder):
    """(--transformer-impl, --moe-grouped-gemm) of the names in a folder; its arguments must say the same."""
    root = torch_files.load(min(folder.rglob("model_optim_rng.pt")).read_bytes())
    args, names = root["args"], list(root["model"])
    engine = any("linear_qkv.layer_norm_weight" in name for name in names)
    assert engine != any("input_layernorm" in name for name in names)
    assert args.transformer_impl == IMPLS[engine]
    grouped = any(name.endswith("experts.linear_fc2.weight0") for name in names)
    assert getattr(args, "moe_grouped_gemm", False) is grouped
    return IMPLS[engine], grouped


def test_transformer_engine_is_the_default_and_a_note_says_which_options_load_it(dense, mixtral, tmp_path):
    for i, (state, argv, want, options) in enumerate((
            (dense, [], ("transformer_engine", False), "--transformer-impl transformer_engine: load"),
            (dense, ["--transformer-impl", "local"], ("local", False), "--transformer-impl local: load"),
            (mixtral, [], ("transformer_engine", True), "--transformer-impl transformer_engine with --moe-grouped-gemm: load"),
            (mixtral, ["--moe-experts", "sequential"], ("transformer_engine", False),
             "--transformer-impl transformer_engine without --moe-grouped-gemm: load"),
            (mixtral, ["--transformer-impl", "local"], ("local", False), "--transformer-impl local without --moe-grouped-gemm: load"))):
        for program in (["tp-ckpt", "export", state.root], ["tp-reshard", state.root, "--to", "tp1"]):
            out = tmp_path / (program[0] + str(i))
            r = ok(*program, "--format", "megatron", *argv, "-o", out)
            assert modules_of(out) == want and options in r.err, repr(r)
            assert digests(out) == digests(state.root)


@pytest.mark.parametrize("more", [[], ["--no-optim"]], ids=["all", "weights"])
@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
def test_a_source_of_megatron_keeps_its_modules_unless_others_are_chosen(engine, kind, more, dense, tmp_path):
    getattr(foreign_files.Megatron(config_of(dense), 2, engine=engine), kind)(tmp_path / "m", groups_of(dense), 3)
    argv = ["tp-reshard", tmp_path / "m", "--to", "tp1", "--format", "megatron", "--config", dense.config, *more, "-o"]
    ok(*argv, tmp_path / "kept")
    assert modules_of(tmp_path / "kept") == (IMPLS[engine], False)
    ok(*argv, tmp_path / "other", "--transformer-impl", IMPLS[not engine])
    assert modules_of(tmp_path / "other") == (IMPLS[not engine], False)
    assert digests(tmp_path / "kept") == digests(tmp_path / "other")


@pytest.mark.parametrize("said", [None, False, True], ids=["nothing", "local", "engine"])
@pytest.mark.parametrize("engine", [False, True], ids=["local", "engine"])
def test_names_prove_the_modules_whatever_the_arguments_say(engine, said, dense, tmp_path):
    megatron = foreign_files.Megatron(config_of(dense), 1, 2, engine=engine)
    megatron.more_args["transformer_impl"] = IMPLS.get(said)
    megatron.legacy(tmp_path / "m", groups_of(dense), 3)
    ok("tp-reshard", tmp_path / "m", "--to", "tp1", "--config", dense.config, "-o", tmp_path / "kept")
    assert modules_of(tmp_path / "kept") == (IMPLS[engine], False)


@pytest.mark.parametrize("impl", [None, "inference_optimized"])
def test_torch_dist_whose_arguments_do_not_tell_becomes_transformer_engine(impl, dense, tmp_path):
    megatron = foreign_files.Megatron(config_of(dense), 1)
    megatron.more_args["transformer_impl"] = impl
    megatron.torch_dist(tmp_path / "m", groups_of(dense), 3)
    ok("tp-reshard", tmp_path / "m", "--to", "tp1", "--format", "megatron", "--config", dense.config, "-o", tmp_path / "out")
    assert modules_of(tmp_path / "out") == ("transformer_engine", False)


def test_torch_dist_says_the_modules_of_its_source_so_that_they_come_back(dense, tmp_path):
    foreign_files.Megatron(config_of(dense), 2).legacy(tmp_path / "m", groups_of(dense), 3)
    ok("tp-reshard", tmp_path / "m", "--to", "tp1", "--format", "torch_dist", "--config", dense.config, "-o", tmp_path / "t")
    ok("tp-reshard", tmp_path / "t", "--to", "tp1", "--format", "megatron", "-o", tmp_path / "back")
    assert modules_of(tmp_path / "back") == ("local", False)


# arguments of the source, options, what becomes of it
EXPERTS = [(dict(engine=True), [], ("transformer_engine", True)), (dict(engine=True, sequential=True), [], ("transformer_engine", False)),
           (dict(engine=True, sequential=True), ["--moe-experts", "grouped"], ("transformer_engine", True)),
           (dict(engine=True), ["--transformer-impl", "local"], ("local", False)),
           (dict(), ["--transformer-impl", "transformer_engine"], ("transformer_engine", True)), (dict(stacked=True), [], ("local", False)),
           (dict(stacked=True), ["--transformer-impl", "transformer_engine"], ("transformer_engine", True))]


@pytest.mark.parametrize("kind", ["legacy", "torch_dist"])
@pytest.mark.parametrize("source,argv,want", EXPERTS)
def test_experts_stay_as_they_are_where_the_modules_do(source, argv, want, kind, mixtral, tmp_path):
    getattr(foreign_files.Megatron(config_of(mixtral), 1, 2, ep=2, **source), kind)(tmp_path / "m", groups_of(mixtral), 3)
    ok("tp-reshard", tmp_path / "m", "--to", "tp2", "--format", "megatron", "--config", mixtral.config, *argv, "-o", tmp_path / "out")
    assert modules_of(tmp_path / "out") == want and digests(tmp_path / "out") == digests(mixtral.root)


WRONG = [(["megatron", "--transformer-impl", "te"], "--transformer-impl takes local or transformer_engine, not 'te'"),
         (["megatron", "--moe-experts", "many"], "--moe-experts takes grouped or sequential, not 'many'"),
         (["megatron", "--moe-experts", "grouped"], "has no experts"),
         (["torch_dist", "--transformer-impl", "local"],
          "--transformer-impl is for --format megatron, not torch_dist, which has the same names for all"),
         (["dcp", "--transformer-impl", "local"], "--transformer-impl is for --format megatron, not dcp"),
         (["safetensors", "--moe-experts", "grouped"], "--moe-experts is for --format megatron, not safetensors")]


@pytest.mark.parametrize("argv,says", WRONG)
def test_options_that_mean_nothing_are_refused(argv, says, dense, tmp_path):
    for program in (["tp-ckpt", "export", dense.root], ["tp-reshard", dense.root, "--to", "tp1"]):
        r = run(*program, "--format", *argv, "-o", tmp_path / "no")
        assert r.rc == 2 and len(r.lines) == 1 and says in r.err and not (tmp_path / "no").exists(), repr(r)


def test_what_megatron_cannot_have_or_a_checkpoint_has_not_is_refused(dense, mixtral, tmp_path):
    r = run("tp-ckpt", "export", mixtral.root, "--format", "megatron", "--transformer-impl", "local", "--moe-experts", "grouped",
            "-o", tmp_path / "no")
    assert r.rc == 2 and len(r.lines) == 1 and "GroupedMLP, which is not written" in r.err and not (tmp_path / "no").exists(), repr(r)
    for option in (["--transformer-impl", "local"], ["--moe-experts", "grouped"]):
        r = run("tp-reshard", dense.root, "--to", "tp1", "-o", tmp_path / "no", *option)
        assert r.rc == 2 and option[0] + " is for --format megatron" in r.err and not (tmp_path / "no").exists(), repr(r)
