"""A thousand triples of layouts A, B, C. A to B to A gives A bit for bit; A to C gives the same as A to
B to C; all digests are equal; and an independent resharder cuts the same shards from whole tensors.

One process does the conversions (tests/fixture/reshard_triples.c). It uses the engine and the endpoints of
tp-reshard, real files, and buffers that may have only a few bytes. numpy checks the results. Each test
prints its seed; TP_SEED sets it.

needs: reshard_triples
"""
import filecmp
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests/oracle"))
import naive_reshard  # noqa: E402

SEED = int(os.environ.get("TP_SEED", random.SystemRandom().randrange(10 ** 9)))
DRIVER = harness.built("reshard_triples")
BATCHES, CASES = (80, 125) if harness.LONG else (8, 125) if not harness.SANITIZE else (2, 25)
AT_ONCE = 25  # conversions whose files exist at the same time


def random_model(rng):
    """A config.json with small, mostly odd sizes, few KV heads and a few layers."""
    if rng.random() < 0.01:  # so large that columns are stored in blocks and boxes in chunks
        return {"num_attention_heads": 8, "num_key_value_heads": rng.choice([2, 8]), "head_dim": 96,
                "hidden_size": 16 * rng.randint(14, 17), "intermediate_size": 8 * rng.randint(1, 9),
                "vocab_size": rng.randint(1, 30), "num_hidden_layers": 1}
    heads, head_dim = rng.choice([1, 2, 2, 3, 4, 4, 6, 8]), 2 * rng.randint(1, 2)
    layers, vocab = rng.choice([1, 1, 1, 2, 2, 2, 3, 4, 5]), rng.randint(1, 30)
    if rng.random() < 0.3:
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": vocab,
                "n_embd": heads * head_dim, "n_head": heads, "n_layer": layers,
                "n_inner": heads * rng.randint(1, 4), "n_positions": rng.randint(1, 9),
                "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
                **{key: None for key in harness.TINY if key not in ("architectures", "model_type",
                                                                   "vocab_size")}}
    shared = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    return {"num_attention_heads": heads, "num_key_value_heads": heads // shared,
            "head_dim": head_dim, "hidden_size": rng.randint(1, 15),
            "intermediate_size": heads * rng.randint(1, 3), "vocab_size": vocab,
            "num_hidden_layers": layers, "tie_word_embeddings": rng.random() < 0.5}


def random_spec(rng, config, most=16):
    """A layout with any axes that fit the model, of at most `most` ranks."""
    heads = config.get("n_head") or config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    layers = config.get("n_layer") or config["num_hidden_layers"]
    while True:
        tp = rng.choice([t for t in range(1, heads + 1)
                         if heads % t == 0 and (kv % t == 0 or t % kv == 0)])
        pp = rng.choice([1, 2, layers, rng.randint(1, layers)])
        pp = min(pp, layers)
        vpp = rng.randint(1, layers // pp) if pp > 1 else 1
        dp, cp = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 1, 2])
        if tp * pp * dp * cp <= most:
            return "tp%dpp%dvpp%ddp%dcp%dzero%d%s" % (tp, pp, vpp, dp, cp, rng.choice([0, 1, 3]),
                                                    rng.choice(["", "sp"]))


class Case:
    def __init__(self, seed, folder):
        rng = random.Random(seed)
        self.seed, self.folder = seed, folder
        self.config = random_model(rng)
        most = rng.choice([8, 16, 16, 24])
        self.specs = [random_spec(rng, self.config, most) for _ in "abc"]
        self.dtype = rng.choice(["bf16", "fp32"])
        # all groups are cut in the same way, so most cases have only one of them, to save time
        group = rng.choice(["master" if self.dtype == "bf16" else "exp_avg", "exp_avg",
                            "exp_avg_sq"])
        group = "all" if rng.random() < (1 if harness.LONG else 0.125) else group
        memory = rng.choice([64, 500, 4000, 1 << 16]) * (64 if self.is_large() else 1)
        self.line = [harness.write_config(folder, **self.config), self.dtype, group, seed,
                     *self.specs, rng.randint(1, 2), memory, folder]

    def __repr__(self):
        return "TP_SEED=%d: %s, %s of %s" % (self.seed, " -> ".join(self.specs), self.dtype,
                                             self.config)

    def is_large(self):
        return (self.config.get("hidden_size") or 0) > 200

    def step(self, name):
        return self.folder / name / "step-00000005"

    def check(self):
        """Compare the five checkpoints with each other and with the naive resharder."""
        a, b, c = (naive_reshard.Step(self.step(x), by_index=True) for x in ("a", "b", "c"))
        want = a.whole()
        naive_reshard.check_places(a, self.specs[0])
        for step, spec in ((b, self.specs[1]), (c, self.specs[2])):
            naive_reshard.check_same(a, step, want)
            naive_reshard.check_places(step, spec)
            assert step.sums == a.sums, "digests"
        key = min(want, key=lambda k: (want[k].size, k))
        assert naive_reshard.digest(want[key]) == a.sums[key], key
        assert self.same_files("a", "back"), "A to B to A is not A"
        assert self.same_files("c", "direct"), "A to C is not A to B to C"

    def same_files(self, x, y):
        """Whether two steps have the same shards. Their manifests differ in the save id."""
        x, y = self.step(x), self.step(y)
        names = sorted(p.name for p in x.glob("rank-*"))
        return names == sorted(p.name for p in y.glob("rank-*")) and all(
            filecmp.cmp(x / n, y / n, shallow=False) for n in names)


def convert(cases):
    lines = "\n".join(" ".join(map(str, case.line)) for case in cases)
    r = subprocess.run([str(DRIVER)], input=lines, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr


@pytest.fixture
def folder(tmp_path):
    """A folder in memory if possible, because every shard is synced."""
    shm = pathlib.Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    path = tempfile.mkdtemp(dir=shm, prefix="tp-triples-")
    yield pathlib.Path(path)
    shutil.rmtree(path)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_conversions_over_any_layouts_give_the_same_tensors(batch, folder, figure):
    first = SEED + batch * CASES
    print("TP_SEED=%d" % first)
    for n in range(first, first + CASES, AT_ONCE):
        seeds = range(n, min(n + AT_ONCE, first + CASES))
        cases = [Case(seed, folder / str(seed)) for seed in seeds]
        convert(cases)
        for case in cases:
            try:
                case.check()
            except (AssertionError, naive_reshard.Differs) as e:
                pytest.fail("%r: %s" % (case, e))
            shutil.rmtree(case.folder)
    figure("triples of random layouts: A to B to A is A", "%d of %d" % (CASES, CASES))


def test_the_check_finds_wrong_results(folder):
    """A wrong bit, a wrong rank, a missing shard: errors that a resharder could make."""
    def spoilt(change):
        cases = [Case(seed, folder / str(seed)) for seed in range(12)]
        convert(cases)
        seen = 0
        for case in cases:
            change(case)
            try:
                case.check()
            except (AssertionError, naive_reshard.Differs):
                seen += 1
            shutil.rmtree(case.folder)
        return seen, len(cases)

    def shards(case, name):
        return sorted(case.step(name).glob("rank-*"))

    def flip(case):  # the first bit of the first payload, in a step that only numpy checks
        path = shards(case, "b")[0]
        step = naive_reshard.Step(case.step("b"), by_index=True)
        shard = step.manifest["shards"][0]
        data = bytearray(path.read_bytes())
        row = naive_reshard.np.frombuffer(data, naive_reshard.ROW, 1, shard["index_offset"])[0]
        data[row["offset"]] ^= 1
        path.write_bytes(data)

    def elsewhere(case):
        case.specs[1] = "tp1" if parts(case.specs[1]) > 1 else "tp1pp99"

    def back(case):
        path = shards(case, "back")[-1]
        path.write_bytes(path.read_bytes()[:-1])

    def parts(text):
        spec = naive_reshard.parse_spec(text)
        return spec["tp"] * spec["pp"] * (spec["dp"] if spec["zero"] else 1)

    for change in (flip, back):
        seen, n = spoilt(change)
        assert seen == n, change.__name__
    assert spoilt(elsewhere)[0] >= 6  # by chance another layout can have the same boxes
