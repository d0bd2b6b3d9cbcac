"""--same-bits N: losses, gradient norms and checkpoints are the same bits at every layout.

needs: tp-train tp-reshard tp-ckpt
"""
import json
import sys

import pytest

import harness
from harness import TEXT, ok, run

sys.path.insert(0, str(harness.REPO / "tests" / "oracle"))
import oracle_numpy as oracle  # noqa: E402

LOSS_WITHIN, NORM_WITHIN = 5e-6, 2e-6

# widths that fill no vector, so that a sum or a rest that is taken otherwise somewhere shows
LLAMA = dict(harness.TINY, hidden_size=40, intermediate_size=88, num_attention_heads=8,
             num_key_value_heads=2, head_dim=6, num_hidden_layers=5)
MODELS = {
    # five layers; KV heads are fewer than the shards, which hold copies of them
    "untied": LLAMA,
    # 259 rows do not divide: the last shard is short
    "tied": dict(LLAMA, num_key_value_heads=8, vocab_size=259, tie_word_embeddings=True),
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 257,
             "n_embd": 40, "n_head": 8, "n_layer": 5, "n_positions": 40,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "attn_pdrop": 0.0,
             "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}
OPTIONS = dict(batch=8, seq=32, lr=3e-3, steps=20)


class Runs:
    """Models on disk, and what runs of them gave."""

    def __init__(self, folder):
        self.folder, self.models, self.traces, self.results = folder, {}, {}, {}

    def model(self, name):
        if name not in self.models:
            self.models[name] = self.folder / name
            oracle.save_model(self.models[name], MODELS[name], self.weights(name))
        return self.models[name]

    def weights(self, name):
        return oracle.random_weights(MODELS[name], seed=99)

    def trace(self, name):
        """The oracle's losses and norms."""
        if name not in self.traces:
            self.traces[name], _ = oracle.train(MODELS[name], self.weights(name),
                                                open(TEXT, "rb").read(), **OPTIONS)
        return self.traces[name]

    def argv(self, name, layout, out, *more, **options):
        argv = ["tp-train", "--quiet", "--model", self.model(name), "--data", TEXT, "--layout",
                layout, "--ckpt", out / "ckpt", "--log", out / "log"]
        for key, value in {"same-bits": 8, **OPTIONS, **options}.items():
            argv += ["--" + key, value]
        return argv + list(more)

    def result(self, name, layout, out, *more, **options):
        """What must be equal: [(loss, norm)] as they are logged, and the digest of everything."""
        ok(*self.argv(name, layout, out, *more, **options))
        return curve(out / "log"), harness.digest(out / "ckpt")

    def reference(self, name, **options):
        """The same at tp1, computed once."""
        key = name, tuple(options.items())
        if key not in self.results:
            out = self.folder / ("reference-%d" % len(self.results))
            out.mkdir()
            self.results[key] = self.result(name, "tp1", out, "--threads", 1, **options)
        return self.results[key]


def curve(log):
    lines = [json.loads(line) for line in open(log)]
    return [(x["loss"], x["grad_norm"]) for x in lines]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("samebits"))


# layout, threads of a rank
LAYOUTS = [
    ("tp1", 2), ("tp2", 1), ("tp4sp", 1), ("tp8", 2), ("pp5", 1), ("pp2vpp2", 1), ("dp4", 1),
    ("dp8zero1", 1), ("dp2zero3", 1), ("tp2dp2zero1", 1), ("tp2pp2dp2spzero3", 1),
    ("tp4pp2dp2spzero1", 1),
    # when there is time
    ("tp4", 2), ("tp8sp", 1), ("dp8", 1), ("tp2pp2vpp2", 1), ("dp4zero3", 1), ("tp2dp4zero3", 1),
    ("tp2pp2vpp2dp2spzero1", 1), ("tp8dp2zero3", 1),
]
QUICK = 12


def cases():
    """A dozen layouts for one model; the others have every fourth, unless there is time."""
    for k, name in enumerate(MODELS):
        for i, (layout, threads) in enumerate(LAYOUTS):
            if harness.LONG or (i < QUICK and (k == 0 or i % 4 == k)):
                yield name, layout, threads


@pytest.mark.parametrize("name, layout, threads", cases())
def test_every_layout_has_the_bits_of_tp1(runs, name, layout, threads, tmp_path):
    assert runs.result(name, layout, tmp_path, "--threads", threads) == runs.reference(name)


@pytest.mark.parametrize("name", MODELS)
def test_they_are_the_oracles_losses_and_norms(runs, name):
    log = [dict(step=i, loss=loss, grad_norm=norm)
           for i, (loss, norm) in enumerate(runs.reference(name)[0])]
    dloss, dnorm = oracle.deviation(log, runs.trace(name))
    print("%s: |dloss| %.1e, relative dnorm %.1e" % (name, dloss, dnorm))
    assert dloss <= LOSS_WITHIN and dnorm <= NORM_WITHIN


def test_without_it_two_layouts_differ(runs, tmp_path):
    """So that the tests above can fail."""
    results = []
    for layout in ("tp1", "tp2"):
        (tmp_path / layout).mkdir()
        results.append(runs.result("untied", layout, tmp_path / layout,
                                   **{"same-bits": 0, "steps": 4}))
    assert results[0][1] != results[1][1]


KINDS = [
    ({"dtype": "bf16"}, ["tp2dp2zero1", "tp4sp", "tp2dp2zero3"]),
    ({"micro": 2}, ["tp8sp", "dp4"]),         # leaves of two sequences
    ({"batch": 12}, ["dp4zero1", "tp2pp2"]),  # leaves of three microbatches
    ({"same-bits": 2}, ["tp2sp", "dp2"]),
    ({"recompute": "full"}, ["tp2pp2", "dp2zero3"]),
]


@pytest.mark.parametrize("options, layouts", KINDS,
                         ids=["-".join(map(str, *options.items())) for options, _ in KINDS])
@pytest.mark.parametrize("name", MODELS if harness.LONG else ["gpt2"])
def test_whatever_the_run_is_like(runs, name, options, layouts, tmp_path):
    options = {"steps": 6, **options}
    layouts = layouts if harness.LONG else layouts[:1]
    for layout in layouts:
        (tmp_path / layout).mkdir()
        result = runs.result(name, layout, tmp_path / layout, **options)
        assert result == runs.reference(name, **options), layout


def test_recomputation_changes_no_bit(runs):
    again = {"steps": 6, "recompute": "full"}
    assert runs.reference("gpt2", **again) == runs.reference("gpt2", steps=6)


HOPS = ["tp2pp2dp2zero1", "dp8", "tp8sp", "pp5", "tp4dp2zero1"]


@pytest.mark.parametrize("name", MODELS if harness.LONG else ["tied"])
def test_a_run_that_hops_through_five_layouts_has_the_same_bits(runs, name, tmp_path):
    for i, layout in enumerate(HOPS):
        more = ["--resume=must"] * (i > 0) + ["--exit-step", 4 * (i + 1)] * (i < 4)
        r = run(*runs.argv(name, layout, tmp_path, *more))
        assert r.rc == (75 if i < 4 else 0), r.err
    assert (curve(tmp_path / "log"), harness.digest(tmp_path / "ckpt")) == runs.reference(name)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")


def test_its_checkpoints_are_resharded_as_any_others(runs, tmp_path):
    runs.result("tied", "tp2dp2zero1", tmp_path, steps=2)
    for spec in ("tp4pp1dp1zero0", "tp8dp2zero3"):
        ok("tp-reshard", tmp_path / "ckpt", "--to", spec, "-o", tmp_path / spec)
        assert harness.digest(tmp_path / spec) == harness.digest(tmp_path / "ckpt")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"] if harness.LONG else ["fp32"])
def test_large_matrices_too(dtype, tmp_path):
    """Shapes at which products are cut into blocks and packed."""
    model = harness.write_config(tmp_path, hidden_size=512, intermediate_size=1376,
                                 num_key_value_heads=4, head_dim=64, max_position_embeddings=128)
    digests = {}
    for layout, threads in ("tp1", 2), ("tp2sp", 1), ("dp2zero1", 1), ("tp8", 1):
        if layout == "tp8" and not harness.LONG:
            continue
        harness.train(model, tmp_path / layout, layout=layout, steps=3, seq=128, batch=2,
                      threads=threads, same_bits=8, dtype=dtype)
        digests[layout] = harness.digest(tmp_path / layout)
    assert len(set(digests.values())) == 1, digests


def test_logits_are_in_their_places(runs, tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    ok(*runs.argv("tied", "tp2", tmp_path, "--logits", files[0], steps=1))
    harness.train(runs.model("tied"), layout="tp1", steps=1, seq=32, batch=8, logits=files[1])
    a, b = (oracle.load_safetensors(x) for x in files)
    assert (a["input_ids"] == b["input_ids"]).all()
    assert abs(a["logits"] - b["logits"]).max() < 1e-4 < abs(b["logits"]).max()


@pytest.mark.parametrize("layout, more, says", [
    ("tp1", {"same-bits": 6}, "nearest: 4"),
    ("tp1", {"same-bits": 512}, "nearest: 256"),
    ("tp1", {"same-bits": 16}, "8 attention heads do not divide among them; --same-bits 8 would work"),
    ("tp8", {"same-bits": 4}, "nearest that would run: tp4"),
    ("cp2", {}, "does not work with cp (2)"),
    ("dp4zero3", {"batch": 12}, "12 microbatches of a step"),
    ("tp1", {"seq": 31}, "blocks: 31 tokens"),
    ("dp3", {"batch": 9}, "power of two, not 3"),
    ("tp1", {"micro": 3}, "--micro 3"),
])
def test_what_it_cannot_keep_is_refused(runs, layout, more, says, tmp_path):
    r = run(*runs.argv("untied", layout, tmp_path, **more))
    assert r.rc == 2 and says in r.err and len(r.err.strip().splitlines()) == 1, r.err
    assert not (tmp_path / "ckpt").exists()
