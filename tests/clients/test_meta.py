"""Meta's own Llama, by llama-models on one rank and two (meta_ranks.py): it loads what is exported and computes the logits of
transformers, and what it saves is imported, bit for bit as by transformers' own conversion script."""
import json
import pathlib
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import frameworks  # noqa: E402
import harness  # noqa: E402

VERSION = (frameworks.HERE / "requirements-meta.txt").read_text().split("llama-models==")[1].split()[0]
TOKENS = torch.arange(3, 35).reshape(2, 16) * 7 % 250  # of meta_ranks.py
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SIZES = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=8, intermediate_size=192)
WRITTEN = {"llama31": dict(SIZES, rope_theta=500000.0, rope_scaling=SCALED), "tied": dict(SIZES, tie_word_embeddings=True),
           "llama2": dict(SIZES, num_key_value_heads=8, vocab_size=32000)}
# (ranks that files are for, ranks that load them): Meta's own resharding knows the newer embedding alone; with 4 ranks there are
# fewer heads of keys and values
LOADED = {"llama31": [(1, 1), (2, 2), (2, 1), (4, 4)], "tied": [(2, 2)], "llama2": [(1, 1), (2, 2)]}
# (params.json, ranks, whether the embedding is that of Llama 2, transformers' --llama_version)
SAVED = {"llama3": (dict(dim=64, n_layers=2, n_heads=8, n_kv_heads=4, vocab_size=256, multiple_of=32, ffn_dim_multiplier=1.3,
                         norm_eps=1e-5, rope_theta=500000.0, use_scaled_rope=True), 2, False, "3.1"),
         "llama2": (dict(dim=48, n_layers=2, n_heads=4, vocab_size=300, multiple_of=16, norm_eps=1e-6), 2, True, "2"),
         "one": (dict(dim=48, n_layers=1, n_heads=4, n_kv_heads=1, vocab_size=300, multiple_of=16, norm_eps=1e-5, rope_theta=1e6),
                 1, False, "3")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder in which all jobs have run: NAME/hf of a checkpoint, NAME/tpN exported for N ranks, NAME/tpN-M.pt the logits of M
    ranks that load it; saved-NAME and its logits, saved-NAME.pt."""
    folder, jobs = tmp_path_factory.mktemp("meta"), []
    for name, changes in WRITTEN.items():
        config = harness.write_config(folder / name / "model", **changes)
        harness.train(config, folder / name / "ckpt", steps=1, layout="tp2pp2", data="bytes:" + harness.TEXT)
        harness.ok("tp-ckpt", "export", folder / name / "ckpt", "-o", folder / name / "hf")
        for tp in (1, 2, 4):
            harness.ok("tp-ckpt", "export", folder / name / "ckpt", "-o", folder / name / ("tp%d" % tp), "--format", "meta", "--layout",
                       "tp%d" % tp)
        for tp, ranks in LOADED[name]:
            jobs.append(dict(ranks=ranks, load=str(folder / name / ("tp%d" % tp)), old=name == "llama2",
                             out=str(folder / name / ("tp%d-%d.pt" % (tp, ranks)))))
    for name, (params, ranks, old, _) in SAVED.items():
        save = folder / ("saved-" + name)
        save.mkdir()
        (save / "params.json").write_text(json.dumps(params))
        jobs.append(dict(ranks=ranks, load=None, save=str(save), old=old, out=str(folder / ("saved-%s.pt" % name))))
    (folder / "jobs.json").write_text(json.dumps(jobs))
    frameworks.run("meta_ranks.py", folder / "jobs.json", meta=VERSION)
    return folder


def logits(hf):
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)(TOKENS).logits


def assert_close(found, want):
    assert want.abs().max() > 0.1 and (found - want).abs().max() < 1e-4 * want.abs().max()


@pytest.mark.parametrize("name", WRITTEN)
def test_metas_llama_loads_the_export(name, ran):
    want = logits(ran / name / "hf")
    for sizes in LOADED[name]:
        assert_close(torch.load(ran / name / ("tp%d-%d.pt" % sizes)), want)


@pytest.fixture(scope="module")
def converted(ran):
    """The folder that has NAME of SAVED as transformers' script has converted it."""
    calls = [dict(model_path=str(ran / "converted" / name), input_base_path=str(ran / ("saved-" + name)), llama_version=version,
                  num_shards=ranks, vocab_size=params["vocab_size"]) for name, (params, ranks, _, version) in SAVED.items()]
    (ran / "calls.json").write_text(json.dumps(calls))
    frameworks.run("meta_convert.py", ran / "calls.json", transformers="4.46.3")
    return ran / "converted"


@pytest.mark.parametrize("name", SAVED)
def test_what_metas_llama_saves_is_imported(name, ran, converted, tmp_path):
    """Its logits, and the tensors of transformers' script."""
    harness.ok("tp-reshard", ran / ("saved-" + name), "--to", "tp1", "--format", "safetensors", "-o", tmp_path / "hf")
    assert_close(torch.load(ran / ("saved-%s.pt" % name)), logits(tmp_path / "hf"))
    ours, theirs = load_file(tmp_path / "hf/model.safetensors"), load_file(converted / name / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, x in theirs.items():
        assert torch.equal(ours[key], x), key
    mine, other = (json.loads((x / "config.json").read_text()) for x in (tmp_path / "hf", converted / name))
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
                "rms_norm_eps", "rope_theta", "tie_word_embeddings", "rope_scaling"):
        assert mine.get(key) == other[key], key
