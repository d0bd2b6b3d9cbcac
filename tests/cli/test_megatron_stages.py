"""tp-ckpt import of Megatron's checkpoints whose pipeline stages have unequal numbers of layers.

needs: tp-train tp-ckpt
covers: reshard/formats/megatron/megatron_stages reshard/formats/megatron/pipeline_layout
"""
import pytest

import foreign_files
import harness
from test_import_formats import State, config_of, digests, groups_of, import_, imported

FIRST, LAST = ("decoder_%s_pipeline_num_layers" % x for x in ("first", "last"))
LAYOUT = "pipeline_model_parallel_layout"
SPLIT = {"account_for_%s_in_pipeline_split" % x: True for x in ("embedding", "loss")}
# pp, vpp, arguments, layers of the stages' first chunks, then of the second: as megatron-core 0.16.1's
# get_num_layers_to_build and get_transformer_layer_offset say
STAGES = [(2, 1, {FIRST: 4}, [4, 2]), (2, 1, {LAST: 5}, [1, 5]), (3, 1, {FIRST: 1, LAST: 1}, [1, 4, 1]),
          (2, 2, {FIRST: 4}, [2, 1, 2, 1]), (4, 1, SPLIT, [1, 2, 2, 1]), (2, 2, SPLIT, [1, 2, 2, 1]),
          (2, 1, {LAYOUT: "Et*4|t*2L"}, [4, 2]), (2, 2, {LAYOUT: "E|ttt|(tt|)*1tL"}, [0, 3, 2, 1])]


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """Six layers in bf16."""
    folder = tmp_path_factory.mktemp("six")
    return State(folder, harness.write_config(folder / "model", num_hidden_layers=6, vocab_size=259), dtype="bf16")


@pytest.mark.parametrize("pp,vpp,args,counts", STAGES)
def test_stages_have_the_layers_of_their_arguments(pp, vpp, args, counts, six, tmp_path):
    for kind in ("ordinary", "distributed", "dp_reshardable") if harness.LONG or vpp > 1 or len(counts) > 2 else ("ordinary",):
        megatron = foreign_files.Megatron(config_of(six), 1, pp, vpp)
        megatron.counts = counts
        megatron.more_args.update(args)
        if kind == "dp_reshardable":
            megatron.torch_dist(tmp_path / kind, groups_of(six), 3, kind)
        else:
            megatron.legacy(tmp_path / kind, groups_of(six), 3, kind == "distributed")
        imported(six, tmp_path / kind, tmp_path / (kind + "-ckpt"))
        assert digests(tmp_path / (kind + "-ckpt")) == digests(six.root)


@pytest.mark.parametrize("pp,args,word", [(3, {FIRST: 5}, "num_layers 5"), (2, {FIRST: 4, LAST: 4}, "2 stages"), (2, {FIRST: 7}, "2 stages"),
                                          (4, {}, "4 stages"), (2, {LAYOUT: "E|t*4|t*2L"}, "3 stages are not a multiple"),
                                          (2, {LAYOUT: "Et*4|tL"}, "has 5 layers, the model has 6"), (2, {LAYOUT: "Et*6|mL"}, "multi-token"),
                                          (2, {LAYOUT: [["decoder"]]}, "is not text")])
def test_stages_that_arguments_do_not_tell_are_refused(pp, args, word, six, tmp_path):
    megatron = foreign_files.Megatron(config_of(six), 1, pp)
    megatron.more_args.update(args)
    megatron.legacy(tmp_path / "m", groups_of(six), 3)
    r = import_(six, tmp_path / "m", tmp_path / "ckpt")
    assert r.rc == 2 and word in r.err and not (tmp_path / "ckpt").exists(), repr(r)
