"""The rows after a vocabulary with which Megatron fills up its embedding and head, and whose logits its loss counts.

A source has 272 rows, of which 259 are the vocabulary: what a model of 272 has is the truth.

needs: tp-train tp-ckpt tp-reshard
"""
import numpy as np
import pytest

import foreign_files
import harness
import torch_files
from harness import ok, run
from test_export_formats import same
from test_import_formats import State, config_of, digests, groups_of

VOCAB, ROWS, DIVISOR = 259, 272, 8  # at tp2; at tp1 264 rows, at tp4 288


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("padding")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=2, vocab_size=ROWS), dtype="bf16")


def source(state, folder, kind, **args):
    """What Megatron saves at tp2, and the config.json of its vocabulary."""
    megatron = foreign_files.Megatron(config_of(state), 2, padding=DIVISOR)
    megatron.more_args.update({"padded_vocab_size": ROWS, "make_vocab_size_divisible_by": DIVISOR, **args})
    getattr(megatron, "legacy" if kind == "megatron" else "torch_dist")(folder / "m", groups_of(state), 3)
    return harness.write_config(folder / "model", num_hidden_layers=2, vocab_size=VOCAB)


def of_vocabulary(groups, rows):
    """{group: {name: all rows of a tensor of the vocabulary}}, when so many are written."""
    out = {}
    for group, tensors in groups.items():
        for name, array in tensors.items():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                repeated = np.repeat(array[-1:], max(rows - len(array), 0), 0)
                out.setdefault(group, {})[name] = np.concatenate([array, repeated])[:rows]
    return out


def found_in(folder, kind, tp):
    names = {"embedding.word_embeddings.weight": "model.embed_tokens.weight", "output_layer.weight": "lm_head.weight"}
    inside = folder / "iter_0000003"
    if kind == "torch_dist":
        heads = {"param": "", "master": "optimizer.state.fp32_param.", "exp_avg": "optimizer.state.exp_avg.",
                 "exp_avg_sq": "optimizer.state.exp_avg_sq."}
        found, _ = torch_files.load_dcp(inside)
        return {g: {ours: found[head + theirs] for theirs, ours in names.items()} for g, head in heads.items()}
    ranks = [torch_files.load((inside / ("mp_rank_%02d" % r) / "model_optim_rng.pt").read_bytes()) for r in range(tp)]
    out = {"param": {ours: np.concatenate([r["model"][theirs] for r in ranks]) for theirs, ours in names.items()}}
    matrices = [k for k, v in ranks[0]["model"].items() if isinstance(v, np.ndarray) and v.ndim == 2]
    for theirs, ours in names.items():
        number = matrices.index(theirs)
        parts = {"master": [r["optimizer"]["fp32_from_fp16_params"][0][number] for r in ranks],
                 **{g: [r["optimizer"]["optimizer"]["state"][number][g] for r in ranks] for g in ("exp_avg", "exp_avg_sq")}}
        for group, arrays in parts.items():
            out.setdefault(group, {})[ours] = np.concatenate(arrays)
    return out


def args_of(folder, kind, tp):
    name = "common.pt" if kind == "torch_dist" else "mp_rank_00/model_optim_rng.pt"
    args = torch_files.load((folder / "iter_0000003" / name).read_bytes())["args"]
    assert args.tensor_model_parallel_size == tp
    return args


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
@pytest.mark.parametrize("tp, rows", [(1, 264), (2, 272), (4, 288)])
def test_padding_goes_along_as_far_as_the_new_layout_has_it(kind, tp, rows, state, tmp_path):
    config = source(state, tmp_path, kind)
    ok("tp-reshard", tmp_path / "m", "--to", "tp%d" % tp, "--config", config, "-o", tmp_path / "there")
    found, want = found_in(tmp_path / "there", kind, tp), of_vocabulary(groups_of(state), rows)
    assert found.keys() == want.keys()
    for group, tensors in want.items():
        for name, array in tensors.items():
            assert same(found[group][name], array), (group, name)
    args = args_of(tmp_path / "there", kind, tp)
    assert (args.vocab_size, args.padded_vocab_size, args.make_vocab_size_divisible_by) == (VOCAB, rows, DIVISOR)
    ok("tp-reshard", tmp_path / "there", "--to", "tp2", "-o", tmp_path / "back")  # its config.json says 259
    for name in ("there", "back"):
        ok("tp-ckpt", "import", tmp_path / name, "-o", tmp_path / ("ckpt-" + name), "--config", config)
    ok("tp-ckpt", "import", tmp_path / "m", "-o", tmp_path / "ckpt", "--config", config)
    assert digests(tmp_path / "ckpt-there") == digests(tmp_path / "ckpt-back") == digests(tmp_path / "ckpt")
    if rows >= ROWS:
        back = found_in(tmp_path / "back", kind, 2)
        assert all(same(back[g][n], a) for g, tensors in of_vocabulary(groups_of(state), ROWS).items() for n, a in tensors.items())


@pytest.mark.parametrize("kind", ["megatron", "torch_dist"])
def test_the_tensors_say_how_much_padding_there_is(kind, state, tmp_path):
    config = source(state, tmp_path, kind, padded_vocab_size=1000, make_vocab_size_divisible_by=None)
    ok("tp-reshard", tmp_path / "m", "--to", "tp4", "--config", config, "-o", tmp_path / "there")
    found = found_in(tmp_path / "there", kind, 4)
    assert all(same(found[g][n], a) for g, tensors in of_vocabulary(groups_of(state), 512).items() for n, a in tensors.items())


def test_null_tokenizers_end_of_document_is_not_counted_twice(state, tmp_path):
    config = source(state, tmp_path, "torch_dist", tokenizer_type="NullTokenizer")
    ok("tp-reshard", tmp_path / "m", "--to", "tp4", "--config", config, "-o", tmp_path / "there")
    assert args_of(tmp_path / "there", "torch_dist", 4).vocab_size == VOCAB - 1


@pytest.mark.parametrize("divisor, rc, message", [
    (0, 3, "no valid make_vocab_size_divisible_by"), (-8, 3, "no valid"), ("many", 3, "no valid"), (2 ** 40, 3, "no valid"),
    # each row of padding needs memory for its place
    (2 ** 29, 2, "make_vocab_size_divisible_by 536870912 at tp4 would pad the vocabulary of 259 rows by 2147483389")])
def test_a_divisor_that_cannot_be_is_an_error(divisor, rc, message, state, tmp_path):
    config = source(state, tmp_path, "torch_dist", make_vocab_size_divisible_by=divisor)
    r = run("tp-reshard", tmp_path / "m", "--to", "tp4", "--config", config, "-o", tmp_path / "there")
    assert r.rc == rc and message in r.err and not (tmp_path / "there").exists(), repr(r)
