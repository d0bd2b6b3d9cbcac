"""--same-bits N: losses, gradient norms and checkpoints are the same bits at every layout.

needs: tp-train tp-reshard tp-ckpt
covers: trainer/data_parallel/pairwise_sum
"""
import pytest

import curves
import harness
from curves import oracle
from harness import ok, run

# No width is a multiple of a SIMD vector's, so that a different order of sums changes bits.
LLAMA = dict(harness.TINY, hidden_size=40, intermediate_size=88, num_attention_heads=8,
             num_key_value_heads=2, head_dim=6, num_hidden_layers=5)
MODELS = {
    # five layers; fewer KV heads than emulated shards, so shards hold copies of them
    "untied": LLAMA,
    # a vocabulary of 259 rows, so the last shard is shorter
    "tied": dict(LLAMA, num_key_value_heads=8, vocab_size=259, tie_word_embeddings=True),
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 257,
             "n_embd": 40, "n_head": 8, "n_layer": 5, "n_positions": 40,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "attn_pdrop": 0.0,
             "embd_pdrop": 0.0, "resid_pdrop": 0.0},
}
SEED = 99
OPTIONS = dict(batch=8, seq=32, lr=3e-3, steps=curves.STEPS)


class Runs:
    """Runs with --same-bits 8, and their results at tp1."""

    def __init__(self, reference):
        self.reference, self.results = reference, {}

    def argv(self, name, layout, out, *more, **options):
        flags = [word for key, value in {"same-bits": 8, **options}.items()
                 for word in ("--" + key, value)]
        return self.reference.argv(name, layout, out / "log", "--quiet", "--ckpt", out / "ckpt",
                                   *flags, *more)

    def result(self, name, layout, out, *more, **options):
        """Returns what must be equal: [(loss, norm)] of the log, and the digest of all tensors."""
        ok(*self.argv(name, layout, out, *more, **options))
        return losses_and_norms(out / "log"), harness.digest(out / "ckpt")

    def at_tp1(self, name, **options):
        """The result at tp1, computed once."""
        key = name, tuple(options.items())
        if key not in self.results:
            out = self.reference.folder / ("tp1-%d" % len(self.results))
            out.mkdir()
            self.results[key] = self.result(name, "tp1", out, "--threads", 1, **options)
        return self.results[key]


def losses_and_norms(log):
    return [(x["loss"], x["grad_norm"]) for x in harness.read_log(log)]


@pytest.fixture(scope="module")
def runs(reference):
    return Runs(reference)


# Layouts, and the threads per rank.
LAYOUTS = [
    ("tp1", 2), ("tp2", 1), ("tp4sp", 1), ("tp8", 2), ("pp5", 1), ("pp2vpp2", 1), ("dp4", 1),
    ("dp8zero1", 1), ("dp2zero3", 1), ("tp2dp2zero1", 1), ("tp2pp2dp2spzero3", 1),
    ("tp4pp2dp2spzero1", 1),
    # only in `make test-long`
    ("tp4", 2), ("tp8sp", 1), ("dp8", 1), ("tp2pp2vpp2", 1), ("dp4zero3", 1), ("tp2dp4zero3", 1),
    ("tp2pp2vpp2dp2spzero1", 1), ("tp8dp2zero3", 1),
]
QUICK = 12


def cases():
    """A dozen layouts for the first model and every fourth for the others; all in `make test-long`."""
    for k, name in enumerate(MODELS):
        for i, (layout, threads) in enumerate(LAYOUTS):
            if harness.LONG or (i < QUICK and (k == 0 or i % 4 == k)):
                yield name, layout, threads


@pytest.mark.sanitized(2)
@pytest.mark.parametrize("name, layout, threads", cases())
def test_every_layout_has_the_bits_of_tp1(runs, name, layout, threads, tmp_path):
    assert runs.result(name, layout, tmp_path, "--threads", threads) == runs.at_tp1(name)


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_norms_are_the_oracles(runs, name):
    log = [dict(step=i, loss=loss, grad_norm=norm)
           for i, (loss, norm) in enumerate(runs.at_tp1(name)[0])]
    curves.assert_same(log, runs.reference.trace(name), name)


def test_without_same_bits_two_layouts_differ(runs, tmp_path):
    """This shows that the tests above can fail."""
    results = []
    for layout in ("tp1", "tp2"):
        (tmp_path / layout).mkdir()
        results.append(runs.result("untied", layout, tmp_path / layout,
                                   **{"same-bits": 0, "steps": 4}))
    assert results[0][1] != results[1][1]


KINDS = [
    ({"dtype": "bf16"}, ["tp2dp2zero1", "tp4sp", "tp2dp2zero3"]),
    ({"micro": 2}, ["tp8sp", "dp4"]),         # microbatches of two sequences
    ({"batch": 12}, ["dp4zero1", "tp2pp2"]),  # gradient groups of three microbatches
    ({"same-bits": 2}, ["tp2sp", "dp2"]),
    ({"recompute": "full"}, ["tp2pp2", "dp2zero3"]),
]


@pytest.mark.parametrize("options, layouts", KINDS,
                         ids=["-".join(map(str, *options.items())) for options, _ in KINDS])
@pytest.mark.parametrize("name", MODELS if harness.LONG else ["gpt2"])
def test_bits_are_the_same_with_other_options(runs, name, options, layouts, tmp_path):
    options = {"steps": 6, **options}
    layouts = layouts if harness.LONG else layouts[:1]
    for layout in layouts:
        (tmp_path / layout).mkdir()
        result = runs.result(name, layout, tmp_path / layout, **options)
        assert result == runs.at_tp1(name, **options), layout


def test_recomputation_changes_no_bit(runs):
    again = {"steps": 6, "recompute": "full"}
    assert runs.at_tp1("gpt2", **again) == runs.at_tp1("gpt2", steps=6)


LAYOUTS_IN_TURN = ["tp2pp2dp2zero1", "dp8", "tp8sp", "pp5", "tp4dp2zero1"]


@pytest.mark.parametrize("name", MODELS if harness.LONG else ["tied"])
def test_a_run_that_resumes_at_five_layouts_has_the_same_bits(runs, name, tmp_path):
    for i, layout in enumerate(LAYOUTS_IN_TURN):
        more = ["--resume=must"] * (i > 0) + ["--exit-step", curves.STEPS * (i + 1) // 5] * (i < 4)
        r = run(*runs.argv(name, layout, tmp_path, *more))
        assert r.rc == (75 if i < 4 else 0), r.err
    assert (losses_and_norms(tmp_path / "log"), harness.digest(tmp_path / "ckpt")) == runs.at_tp1(name)
    ok("tp-ckpt", "verify", tmp_path / "ckpt")


def test_checkpoints_of_same_bits_can_be_resharded(runs, tmp_path):
    runs.result("tied", "tp2dp2zero1", tmp_path, steps=2)
    for spec in ("tp4pp1dp1zero0", "tp8dp2zero3"):
        ok("tp-reshard", tmp_path / "ckpt", "--to", spec, "-o", tmp_path / spec)
        assert harness.digest(tmp_path / spec) == harness.digest(tmp_path / "ckpt")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"] if harness.LONG else ["fp32"])
def test_large_matrices_have_the_same_bits(dtype, tmp_path):
    """At these sizes matrix products work in blocks and pack their operands."""
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


def test_logits_are_those_of_a_run_without_same_bits(runs, tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    ok(*runs.argv("tied", "tp2", tmp_path, "--logits", files[0], steps=1))
    harness.train(runs.reference.model("tied"), layout="tp1", steps=1, seq=32, batch=8, logits=files[1])
    a, b = (oracle.load_safetensors(x) for x in files)
    assert (a["input_ids"] == b["input_ids"]).all()
    assert abs(a["logits"] - b["logits"]).max() < 1e-4 < abs(b["logits"]).max()


@pytest.mark.parametrize("layout, more, message", [
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
def test_settings_that_would_change_bits_are_refused(runs, layout, more, message, tmp_path):
    r = run(*runs.argv("untied", layout, tmp_path, **more))
    assert r.rc == 2 and message in r.err and len(r.err.strip().splitlines()) == 1, r.err
    assert not (tmp_path / "ckpt").exists()
