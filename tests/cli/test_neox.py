"""tp-ckpt import of DeepSpeed's checkpoints with tensor and pipeline parallelism, as GPT-NeoX and Megatron-DeepSpeed save them: of
random sizes of the job, with the tensors of a file of ZeRO-1 without them; and what is missing or of another save. Ranks have
other copies of norms and biases, whose mean, or sum, is the model's. tests/clients/test_neox.py asks DeepSpeed itself.

needs: tp-ckpt tp-reshard
covers: reshard/formats/deepspeed/model_parallel reshard/formats/deepspeed/parallel_param reshard/formats/deepspeed/layer_name reshard/formats/deepspeed/rank_copies
"""
import json
import random
import shutil

import numpy as np
import pytest

import foreign_files
import harness
import neox_files
import object_store
import torch_files
from harness import ok, run
from object_store import ObjectStore
from state import digests

FAMILIES = json.loads((harness.REPO / "tests/fixture/families.json").read_text())
GQA = {"num_key_value_heads": 4, "hidden_size": 48}
# the model, the names, with a pipeline, what is changed in config.json
CASES = {"neox": ("gpt-neox", "neox", True, {}), "neox-serial": ("gpt-neox", "neox", True, {"use_parallel_residual": False}),
         "neox-sequential": ("gpt-neox", "neox", False, {}), "neox-llama": ("llama", "neox", True, {}), "neox-gqa": ("llama", "neox", True, GQA),
         "megatron-gqa": ("llama", "megatron", True, GQA), "megatron-nested": ("llama", "megatron", False, GQA), "megatron-gpt2": ("gpt2", "megatron", True, {}),
         "megatron-gpt2-nested": ("gpt2", "megatron", False, {})}
STEP = 3


class Made:
    """Random tensors of a family. Vectors are multiples of 1/8, so that means and sums of copies are exact."""

    def __init__(self, family, folder, seed, fp16=False, **changes):
        self.config = {**FAMILIES[family]["config"], **changes}
        self.path = folder / "config.json"
        self.path.write_text(json.dumps(self.config))
        numbers = np.random.default_rng(seed)
        shapes = {k: [24, 48] if "num_key_value_heads" in changes and k.split(".")[-2] in ("k_proj", "v_proj") else s
                  for k, s in FAMILIES[family]["tensors"].items()}

        def make(name, shape):
            vector = len(shape) == 1 or "wpe" in name
            return numbers.integers(-80, 80, shape).astype(np.float32) / 8 if vector else numbers.standard_normal(shape).astype(np.float32)

        self.state = {g: {k: make(k, s) for k, s in shapes.items()} for g in ("master", "exp_avg", "exp_avg_sq")}
        self.state["param"] = {k: make(k, s).astype(np.float16) if fp16 else (make(k, s).view(np.uint32) >> 16).astype(np.uint16)
                               for k, s in shapes.items()}

    def import_(self, source, root, *more):
        return run("tp-ckpt", "import", source, "--config", self.path, "-o", root, *more)

    def plain(self, folder):
        """The digests of the same without model parallelism."""
        foreign_files.zero1(folder / "plain", self.state, STEP, 1)
        assert self.import_(folder / "plain", folder / "of-plain").rc == 0
        return digests(folder / "of-plain")


def sizes(seed, pipeline=True):
    pick = random.Random(seed)
    return pick.choice([1, 2, 4]), pick.choice([1, 2, 3]) if pipeline else 1, pick.choice([1, 2, 3])


@pytest.mark.parametrize("case", CASES)
def test_ranks_of_tensor_and_pipeline_parallelism_are_one_model(case, tmp_path):
    family, names, pipeline, changes = CASES[case]
    seed = random.randrange(10 ** 6)
    made = Made(family, tmp_path, seed, **changes)
    want = made.plain(tmp_path)
    for more in range(3):
        tp, pp, dp = sizes(seed + more, pipeline) if more else (2, 2 if pipeline else 1, 2)
        print("seed %d, tp%d pp%d dp%d" % (seed + more, tp, pp, dp))
        folder = tmp_path / ("ds%d" % more)
        neox_files.Save(made.config, made.state, tp, pp, dp, names, pipeline).write(folder, STEP)
        r = made.import_(folder, tmp_path / ("ckpt%d" % more))
        assert r.rc == 0 and "every checksum of the source" in r.out, repr(r)
        assert digests(tmp_path / ("ckpt%d" % more)) == want


ORDERED = [("llama", True), ("llama", False), ("gpt2", True), ("gpt2", False)]
ARGS = {"hidden_size": 48, "ffn_hidden_size": 192, "num_key_value_heads": 8, "kv_channels": 6, "num_experts": [1], "layernorm_epsilon": 1e-5,
        "normalization": "layernorm", "add_position_embedding": True, "use_rotary_position_embeddings": False, "max_position_embeddings": 32,
        "add_bias_linear": True, "untie_embeddings_and_output_weights": False, "padded_vocab_size": 144, "vocab_size": 130,
        "tokenizer_type": "NullTokenizer", "make_vocab_size_divisible_by": 8, "bias_gelu_fusion": True}


@pytest.mark.parametrize("family,pipeline", ORDERED)
def test_a_rank_has_its_queries_then_its_keys_then_its_values(family, pipeline, tmp_path):
    """As Megatron-DeepSpeed has them since it has FPDT."""
    made = Made(family, tmp_path, 7)
    want = made.plain(tmp_path)
    for tp in (1, 2, 4):
        neox_files.Save(made.config, made.state, tp, 2 if pipeline else 1, 2, "megatron", pipeline, qkv_ranks=tp).write(tmp_path / ("ds%d" % tp), STEP)
        r = made.import_(tmp_path / ("ds%d" % tp), tmp_path / ("ckpt%d" % tp))
        assert r.rc == 0, repr(r)
        assert digests(tmp_path / ("ckpt%d" % tp)) == want


@pytest.mark.parametrize("family,pipeline", ORDERED)
@pytest.mark.parametrize("ranks", [0, 1, 4])
def test_universal_has_the_order_of_the_ranks_that_saved(family, pipeline, ranks, tmp_path):
    made = Made(family, tmp_path, 8)
    neox_files.Save(made.config, made.state, 1, 1, 1, "megatron", pipeline, qkv_ranks=ranks).write_universal(tmp_path / "ds", STEP)
    r = made.import_(tmp_path / "ds", tmp_path / "ckpt")
    assert r.rc == 0, repr(r)
    assert [d for d in digests(tmp_path / "ckpt") if "param/" not in d] == [d for d in made.plain(tmp_path) if "param/" not in d]


@pytest.mark.parametrize("kind", ["zero", "universal"])
def test_megatron_deepspeeds_arguments_say_what_the_model_is(kind, tmp_path):
    made = Made("gpt2", tmp_path, 10)
    save = neox_files.Save(made.config, made.state, 2 if kind == "zero" else 1, 1, 1, "megatron", qkv_ranks=2, **ARGS)
    save.write(tmp_path / "ds", STEP) if kind == "zero" else save.write_universal(tmp_path / "ds", STEP)
    r = run("tp-ckpt", "import", tmp_path / "ds", "-o", tmp_path / "ckpt")
    assert r.rc == 0 and "GPT2LMHeadModel, with a vocabulary of 131, without the 13 rows of padding" in r.err, repr(r)
    assert made.import_(tmp_path / "ds", tmp_path / "named").rc == 0
    assert digests(tmp_path / "ckpt") == digests(tmp_path / "named")
    r = run("tp-ckpt", "digest", tmp_path / "ds")
    assert r.rc == 0 and "GPT2LMHeadModel" in r.err, repr(r)
    assert [d for d in r.out.splitlines()[:-1] if "param/" not in d] == [d for d in digests(tmp_path / "ckpt") if "param/" not in d]
    r = ok("tp-reshard", tmp_path / "ds", "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert {k: config[k] for k in ("n_embd", "n_head", "n_layer", "n_positions", "vocab_size", "activation_function")} == {
        k: made.config[k] for k in ("n_embd", "n_head", "n_layer", "n_positions", "vocab_size", "activation_function")}


LOOKS = (("ls", "--json"), ("show",), ("digest",), ("verify",))


@pytest.mark.parametrize("place", ["arguments", "folder"])
def test_every_verb_finds_the_model_as_an_import_does(place, tmp_path):
    made = Made("gpt2", tmp_path, 11)
    neox_files.Save(made.config, made.state, 2, 2, 1, "megatron", qkv_ranks=2, **ARGS if place == "arguments" else {}).write(tmp_path / "ds", STEP)
    step = tmp_path / "ds/global_step3"
    if place == "folder":
        (step / "config.json").write_text(made.path.read_text())
    for look, *more in LOOKS:
        found = ok("tp-ckpt", look, step, *more).out.replace(" that shapes are those of a config.json;", "")
        assert found == ok("tp-ckpt", look, step, *more, "--config", made.path).out
    assert "equal" in ok("tp-ckpt", "diff", step, step).out


def test_what_the_arguments_lack_is_said_of_every_verb(tmp_path):
    made = Made("gpt2", tmp_path, 12)
    neox_files.Save(made.config, made.state, 2, 1, 1, "megatron", qkv_ranks=2, **{**ARGS, "multi_latent_attention": True}).write(tmp_path / "ds", STEP)
    for look, *more in LOOKS:
        r = run("tp-ckpt", look, tmp_path / "ds", *more)
        assert r.rc == 2 and "multi_latent_attention" in r.err and len(r.err.splitlines()) == 1, repr(r)


def test_gpt_neoxs_arguments_do_not(saved, tmp_path):
    r = run("tp-ckpt", "import", saved, "-o", tmp_path / "no")
    assert r.rc in (2, 3) and "has no config.json" in r.err and "--config" in r.err and len(r.lines) == 1 and not (tmp_path / "no").exists(), repr(r)


@pytest.mark.parametrize("ranks", [3, 16])
def test_ranks_that_do_not_divide_the_heads_are_refused(ranks, tmp_path):
    made = Made("gpt2", tmp_path, 9)
    save = neox_files.Save(made.config, made.state, 1, 1, 1, "megatron", qkv_ranks=1)
    save.args["tensor_model_parallel_size"] = ranks
    save.write_universal(tmp_path / "ds", STEP)
    refused(made, tmp_path / "ds", tmp_path, "%d tensor-parallel ranks" % ranks, "heads")


def test_weights_in_fp16_are_joined_too(tmp_path):
    made = Made("gpt-neox", tmp_path, 3, fp16=True)
    neox_files.Save(made.config, made.state, 2, 2, 1).write(tmp_path / "ds", STEP)
    assert made.import_(tmp_path / "ds", tmp_path / "ckpt").rc == 0
    assert digests(tmp_path / "ckpt") == made.plain(tmp_path)
    shown = json.loads(ok("tp-ckpt", "show", tmp_path / "ckpt", "--json").out)["tensors"]
    assert {t["dtype"] for t in shown if t["group"] == "param"} == {"f16"}


# ---- what is damaged, or is not read ----

@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Made("gpt-neox", tmp_path_factory.mktemp("small"), 5)


@pytest.fixture
def saved(small, tmp_path):
    """The folder of the step of tp2pp2dp2."""
    neox_files.Save(small.config, small.state, 2, 2, 2).write(tmp_path / "ds", STEP)
    return tmp_path / "ds/global_step3"


def rank_state(small, tmp_path, **more):
    """Files of the same job, of another save."""
    neox_files.Save(small.config, small.state, 2, 2, 2).write(tmp_path / "other", more.pop("step", STEP), **more)
    return next(p for p in (tmp_path / "other").iterdir() if p.is_dir())


def refused(small, folder, tmp_path, *words, rc=3, more=()):
    r = small.import_(folder, tmp_path / "no", *more)
    assert r.rc == rc and all(w in r.err for w in words) and len(r.lines) == 1 and not (tmp_path / "no").exists(), repr(r)


@pytest.mark.parametrize("name", ["layer_03-model_01-model_states.pt", "layer_00-model_00-model_states.pt", "mp_rank_03_model_states.pt",
                                  "zero_pp_rank_1_mp_rank_02_optim_states.pt", "zero_pp_rank_0_mp_rank_03_optim_states.pt"])
def test_a_file_that_is_missing_is_named(name, small, saved, tmp_path):
    (saved / name).unlink()
    refused(small, saved, tmp_path, name, "no such file")


def test_a_file_that_is_missing_has_the_name_of_its_type(small, saved, tmp_path):
    for path in saved.glob("zero_*"):
        path.rename(saved / ("bf16_" + path.name))
    ok("tp-ckpt", "verify", saved, "--config", small.path)
    (saved / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt").unlink()
    refused(small, saved, tmp_path, "/bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", "no such file")


@pytest.mark.parametrize("name", ["mp_rank_02_model_states.pt", "zero_pp_rank_1_mp_rank_02_optim_states.pt"])
def test_ranks_of_different_steps_are_no_checkpoint(name, small, saved, tmp_path):
    other = rank_state(small, tmp_path, step=4)
    (saved / name).write_bytes((other / name).read_bytes())
    refused(small, saved, tmp_path, name, "3", "4")


def test_ranks_with_other_parameters_are_no_checkpoint(small, saved, tmp_path):
    name = "mp_rank_%02d_model_states.pt"
    (saved / (name % 3)).write_bytes((saved / (name % 0)).read_bytes())
    refused(small, saved, tmp_path, name % 3, "other parameters than rank 2")


def test_a_partition_of_another_length_is_no_partition(small, saved, tmp_path):
    neox_files.Save(small.config, small.state, 2, 2, 3).write(tmp_path / "other", STEP)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (saved / name).write_bytes((tmp_path / "other/global_step3" / name).read_bytes())
    r = small.import_(saved, tmp_path / "no")
    assert r.rc == 3 and len(r.lines) == 1 and not (tmp_path / "no").exists(), repr(r)


def test_copies_that_are_not_whole_are_refused(small, saved, tmp_path):
    """The rank has fewer partitions than its model states say, of vectors that each rank has."""
    states = neox_files.Save({**small.config, "hidden_size": 32}, {g: {k: v[:32] if v.ndim == 1 and "norm" in k else v for k, v in t.items()}
                                                                  for g, t in small.state.items()}, 2, 2, 2)
    states.write(tmp_path / "other", STEP)
    for path in (tmp_path / "other/global_step3").glob("*mp_rank_01*"):
        (saved / path.name).write_bytes(path.read_bytes())
    refused(small, saved, tmp_path, "input_layernorm", "another shape", "rank 1 of 2")


def test_bytes_of_copies_are_compared_with_their_checksum(small, saved, tmp_path):
    """Of the second rank too, although all are read as one tensor."""
    path = saved / "layer_02-model_01-model_states.pt"
    data = bytearray(path.read_bytes())
    array = neox_files.Save(small.config, small.state, 2, 2, 2).layer(small.state["param"], "param", 0)["input_layernorm.weight"][1]
    at = data.index(array.tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    refused(small, saved, tmp_path, path.name, "CRC-32")
    r = run("tp-ckpt", "verify", saved, "--config", small.path)
    assert r.rc == 1 and path.name in r.out and "damaged" in r.out, repr(r)


@pytest.mark.parametrize("changes,word", [({"num_hidden_layers": 3}, "layers"), ({"num_attention_heads": 4}, "num_attention_heads 8"),
                                          ({"hidden_size": 32}, "it is [72, 64], and gpt_neox.embed_in.weight is [131, 32]"), ({"vocab_size": 200}, "embed")])
def test_the_model_must_be_that_of_the_files(changes, word, small, saved, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**small.config, **changes}))
    r = run("tp-ckpt", "import", saved, "--config", tmp_path / "config.json", "-o", tmp_path / "no")
    assert r.rc in (2, 3) and word in r.err and len(r.lines) == 1 and not (tmp_path / "no").exists(), repr(r)


def test_a_head_that_config_json_says_is_tied_is_not_lost(tmp_path):
    made = Made("llama", tmp_path, 7, tie_word_embeddings=True)
    neox_files.Save({**made.config, "tie_word_embeddings": False}, made.state, 2, 2, 1).write(tmp_path / "ds", STEP)
    refused(made, tmp_path / "ds", tmp_path, "lm_head.weight differs", "tie_word_embeddings", rc=2)
    r = made.import_(tmp_path / "ds", tmp_path / "ckpt", "--ignore", "lm_head.weight")
    assert r.rc == 0 and "master/lm_head.weight" in r.out and not any("lm_head" in d for d in digests(tmp_path / "ckpt")), repr(r)


def test_a_copy_that_a_rank_has_twice_is_refused(small, saved, tmp_path):
    """GPT-NeoX calls the weights of a norm "weight", or "scale". With both, that rank would count twice in the mean."""
    path = saved / "layer_02-model_01-model_states.pt"
    layer = neox_files.Save(small.config, small.state, 2, 2, 2).layer(small.state["param"], "param", 0)
    tensors = {k: torch_files.Tensor(v[1]) for k, v in layer.items()}
    torch_files.save(path, {**tensors, "input_layernorm.scale": tensors["input_layernorm.weight"]})
    refused(small, saved, tmp_path, path.name, "input_layernorm.weight twice")


@pytest.mark.parametrize("shape", [[2 ** 63 - 1, 2], [2 ** 62, 64], [2 ** 63 - 1, 0]])
def test_shapes_that_no_tensor_has_are_refused(shape, small, tmp_path, monkeypatch):
    states = foreign_files._model_states

    def hostile(*args):
        out = states(*args)
        return {**out, "param_shapes": [{k: foreign_files._size(shape) if k.endswith("_embeddings.weight") else v for k, v in g.items()}
                                        for g in out["param_shapes"]]}

    monkeypatch.setattr(foreign_files, "_model_states", hostile)
    neox_files.Save(small.config, small.state, 2, 1, 1).write(tmp_path / "ds", STEP)
    refused(small, tmp_path / "ds", tmp_path, "mp_rank_00_model_states.pt", "param_shapes has a shape that is wrong")


class Renamed(neox_files.Save):
    """With names of parameters as rename(name)."""

    rename = None

    def name(self, module, key, last):
        return self.rename(super().name(module, key, last))


def test_a_module_far_behind_the_layers_is_refused(small, tmp_path):
    """And not looked for."""
    save = Renamed(small.config, small.state, 2, 1, 1)
    save.rename = lambda name: name.replace("5.norm", "1048576.norm")
    save.write(tmp_path / "ds", STEP)
    refused(small, tmp_path / "ds", tmp_path, "modules 2 to 3", "1048576")


def test_names_of_compiled_modules_are_read(small, tmp_path):
    save = Renamed(small.config, small.state, 2, 1, 2, pipeline=False)
    save.rename = lambda name: "_orig_mod." + name
    save.write(tmp_path / "ds", STEP)
    assert small.import_(tmp_path / "ds", tmp_path / "ckpt").rc == 0
    assert digests(tmp_path / "ckpt") == small.plain(tmp_path)


def test_without_the_model_nothing_is_read(saved, tmp_path):
    r = run("tp-ckpt", "ls", saved)
    assert r.rc == 2 and "--config" in r.err and len(r.lines) == 1, repr(r)


def test_a_type_that_is_not_read_is_named(small, saved, tmp_path):
    for rank in range(2):
        layer = neox_files.Save(small.config, small.state, 2, 2, 2).layer(small.state["param"], "param", 0)
        torch_files.save(saved / ("layer_02-model_%02d-model_states.pt" % rank),
                         {k: torch_files.Tensor(v[rank].astype(np.int8) if v[rank].ndim == 2 else v[rank]) for k, v in layer.items()})
    refused(small, saved, tmp_path, "layer_02-model_00-model_states.pt", "dtype that is not supported")


def test_other_names_are_not_read(small, tmp_path):
    for rank in range(2):
        foreign_files.zero1(tmp_path / "ds", {g: {k: v for k, v in t.items()} for g, t in small.state.items()}, STEP, 1, mp_rank=rank, mp_world_size=2)
    refused(small, tmp_path / "ds", tmp_path, "GPT-NeoX and Megatron-DeepSpeed", rc=2)


def test_orders_of_before_version_2_are_not_read(small, tmp_path):
    refused(small, rank_state(small, tmp_path, checkpoint_version=1.0), tmp_path, "checkpoint_version", rc=2)


@pytest.mark.parametrize("args", [{"apply_layernorm_1p": True}, {"hidden_size": 32}, {"ffn_hidden_size": 100}])
def test_arguments_of_another_model_are_refused(args, small, tmp_path):
    """Norms that are centred at zero multiply by 1 + weight, and shapes do not say so."""
    key = next(iter(args))
    neox_files.Save(small.config, small.state, 2, 1, 1, **args).write(tmp_path / "ds", STEP)
    refused(small, tmp_path / "ds", tmp_path, "mp_rank_00_model_states.pt: was saved with " + key, rc=2)


def test_weights_alone_are_read_without_the_optimizer(small, saved, tmp_path):
    for path in saved.glob("zero_*"):
        path.unlink()
    refused(small, saved, tmp_path, "optim_states.pt", "--no-optim", rc=2)
    assert small.import_(saved, tmp_path / "ckpt", "--no-optim").rc == 0
    assert digests(tmp_path / "ckpt") == [d for d in small.plain(tmp_path) if d.split()[1].startswith("param/")]


@pytest.mark.parametrize("public", [True, False])
def test_weights_alone_are_read_from_servers(public, small, saved, tmp_path):
    """Which show no folders, so Universal is not told by zero/."""
    for path in saved.glob("zero_*"):
        path.unlink()
    assert small.import_(saved, tmp_path / "ckpt", "--no-optim").rc == 0
    with ObjectStore(public=public) as store:
        store.add_tree("bucket/ds", saved.parent)
        url = store.url + "/bucket/ds" if public else "s3://bucket/ds"
        r = object_store.run(store, "tp-ckpt", "import", url, "--config", small.path, "--no-optim", "-o", tmp_path / "there")
        assert r.rc == 0 and digests(tmp_path / "there") == digests(tmp_path / "ckpt"), repr(r)


# ---- where it goes ----

def test_it_is_listed_and_compared(small, saved, tmp_path):
    config = ("--config", small.path)
    want = small.plain(tmp_path)
    assert ok("tp-ckpt", "digest", saved, *config).out.splitlines()[:-1] == want
    assert "DeepSpeed" in ok("tp-ckpt", "ls", saved, *config).out
    assert "0 B have no checksum" in ok("tp-ckpt", "verify", saved, *config).out
    for name, rule in (("attention.dense.bias", "sum"), ("input_layernorm.bias", "mean")):
        argv = ["tp-ckpt", "show", saved, "gpt_neox.layers.1." + name, *config]
        assert "it is the %s of the copies of 2 tensor-parallel ranks" % rule in ok(*argv).out
        assert rule in json.loads(ok(*argv, "--json").out)["joined"]
    assert "equal" in ok("tp-ckpt", "diff", saved, tmp_path / "of-plain", *config).out
    shutil.copy(small.path, saved)
    assert ok("tp-ckpt", "digest", saved).out.splitlines()[:-1] == want  # with the config.json beside the files


@pytest.mark.parametrize("form", ["deepspeed", "safetensors", "dcp", "trainer"])
def test_it_becomes_other_formats(form, small, saved, tmp_path):
    """The Universal checkpoint has Hugging Face's names, and is imported again."""
    ok("tp-reshard", saved, "--to", "tp1", "--format", form, "--config", small.path, "-o", tmp_path / "out")
    assert small.import_(tmp_path / "out", tmp_path / "ckpt").rc == 0
    want = small.plain(tmp_path)
    if form == "deepspeed":  # which makes weights of the masters
        want = [d for d in want if "param/" not in d]
        assert [d for d in digests(tmp_path / "ckpt") if "param/" not in d] == want
    elif form == "safetensors":
        assert digests(tmp_path / "ckpt") == [d for d in want if "param/" in d]
    else:
        assert [d for d in digests(tmp_path / "ckpt") if "exp_avg" in d] == [d for d in want if "exp_avg" in d]
