"""Every kind of parallelism and its combinations have the curve of the oracle, and their checkpoints
resume at any other layout.

needs: tp-train tp-reshard tp-ckpt
covers: trainer/process_groups trainer/context/ring_attention trainer/data_parallel/fsdp_units
    trainer/data_parallel/grad_reduction trainer/data_parallel/params
    trainer/data_parallel/params_partition trainer/data_parallel/params_storage
    trainer/data_parallel/bucket_transfer trainer/model/attention_block
    trainer/model/mlp_block trainer/model/network trainer/model/residual trainer/model/stage
    trainer/pipeline/schedule_diagram trainer/tensor/linear_product trainer/tensor/parallel_linear
    trainer/model/vocab_parallel_embedding trainer/model/vocab_parallel_loss
"""
import itertools
import re
import struct
import xml.etree.ElementTree as xml

import pytest

import curves
import harness
from curves import assert_same as assert_same_curve, oracle
from harness import TEXT, ok, read_log, run

LLAMA = dict(harness.TINY, hidden_size=32, intermediate_size=64, num_attention_heads=8,
             num_key_value_heads=2, head_dim=8)
MODELS = {
    # no number of stages divides five layers; fewer KV heads than ranks at tp4 and tp8
    "untied": dict(LLAMA, num_hidden_layers=5),
    # a vocabulary of 259 rows; the tied head's gradient comes from the last stage
    "tied": dict(LLAMA, num_hidden_layers=6, num_key_value_heads=8, vocab_size=259,
                 tie_word_embeddings=True),
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 257,
             "n_embd": 32, "n_head": 8, "n_layer": 5, "n_positions": 40,
             "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "attn_pdrop": 0.0,
             "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    # enough parameters for several buckets of gradients
    "wide": dict(LLAMA, hidden_size=128, intermediate_size=256, num_hidden_layers=4),
    "wide tied": dict(LLAMA, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
                      tie_word_embeddings=True),
}
SEED, BATCH = 99, 16
OPTIONS = {name: dict(batch=BATCH, seq=32, lr=3e-3, steps=curves.STEPS) for name in MODELS}
for _name in ("wide", "wide tied"):  # the oracle needs a second per step for these
    OPTIONS[_name]["steps"] = 6

# Each axis alone, every pair, some triples, all together (test_the_matrix_has_every_pair); up to 16 ranks.
# The number is --micro.
LAYOUTS = [
    ("tp2", 0), ("pp2", 4), ("pp5", 2), ("dp2", 0), ("dp4zero1", 0), ("dp2zero1", 2),
    ("pp2vpp2", 4), ("tp4", 0), ("tp8", 4), ("tp2sp", 0), ("tp8sp", 2),
    ("tp2pp2", 4), ("tp2dp2", 4), ("tp4dp2zero1", 2), ("pp2dp2", 2), ("pp3dp2zero1", 4),
    ("tp2pp2vpp2", 2), ("pp2vpp2dp2", 2), ("tp2pp2sp", 4), ("tp4dp2sp", 4), ("pp2vpp2dp2zero1", 4),
    ("tp2pp2dp2", 2), ("tp2pp2dp2zero1", 2), ("tp4pp2dp2", 4), ("tp4pp2dp2zero1", 2),
    ("tp2pp3dp2", 2), ("tp2pp2vpp2dp2", 2), ("tp2dp4spzero1", 2), ("tp2pp2dp2sp", 4),
    ("tp8pp2", 2), ("tp8dp2zero1", 4), ("tp2pp2vpp2dp2spzero1", 2), ("tp4pp2vpp2dp2spzero1", 2),
    # context parallelism: alone, with each other axis, with several, with all axes
    ("cp2", 0), ("cp4", 4), ("cp8", 8), ("cp16", 16), ("tp2cp2", 4), ("tp8cp2", 8),
    ("tp4cp2sp", 4), ("pp2cp2", 4), ("pp5cp2", 8), ("pp2vpp2cp2", 4), ("cp2dp2", 4),
    ("cp2dp2zero1", 4), ("cp4dp2zero1", 2), ("tp2pp2cp2", 2), ("tp2cp2dp2zero1", 2),
    ("tp2pp2cp2dp2", 2), ("tp2pp2vpp2cp2dp2spzero1", 2),
    # zero3: 257 and 259 rows over 2, 4 and 8 ranks; some ranks own few rows or none
    ("dp2zero3", 0), ("dp4zero3", 2), ("tp2dp2zero3", 4), ("pp2dp2zero3", 4),
    ("pp2vpp2dp2zero3", 2), ("tp2dp4zero3", 2), ("tp4dp4zero3", 2), ("tp8dp2zero3", 8),
    ("tp2pp2dp2spzero3", 2), ("tp2pp2vpp2dp2spzero3", 2), ("dp16zero3", 0), ("pp3dp4zero3", 2),
    ("cp2dp2zero3", 4), ("tp2pp2cp2dp2spzero3", 2), ("tp2dp2spzero3", 4),
    ("tp2pp2vpp2sp", 4), ("tp2pp2vpp2cp2dp2spzero3", 2),
]
SEVERAL_BUCKETS = [("wide", "dp4zero1", 2), ("wide", "tp4dp2sp", 4), ("wide", "pp2vpp2dp2", 4),
                   ("wide tied", "pp2dp2zero1", 4)]
RECOMPUTED = [("tp1", 4), ("tp2sp", 0), ("pp2vpp2", 4), ("tp2pp2dp2spzero1", 2),
              ("tp2pp2dp2spzero3", 2), ("tp2cp2sp", 4), ("tp2", 4), ("pp2", 4), ("cp2", 4),
              ("dp2", 4), ("dp2zero1", 4), ("dp2zero3", 4)]


def cases():
    every_nth = {"untied": 1, "gpt2": 2, "tied": 3}  # untied runs at all layouts, the other models at some
    for name, every in every_nth.items():
        for i, (layout, micro) in enumerate(LAYOUTS):
            if i % every == 0 and (layout != "cp16" or name == "untied"):  # cp16 needs ten seconds
                yield name, layout, micro, ()
    for name, layout, micro in SEVERAL_BUCKETS:
        yield name, layout, micro, ()
    for name, (layout, micro) in itertools.product(("untied", "gpt2"), RECOMPUTED):
        yield name, layout, micro, ("--recompute", "full")
        yield name, layout, micro, ("--recompute", "selective")
    yield "tied", "tp2pp2dp2spzero1", 2, ("--recompute", "full")
    yield "tied", "pp2cp2dp2zero3", 2, ("--recompute", "selective")


AXES = ("tp", "pp", "vpp", "cp", "dp", "sp", "zero1", "zero3", "full", "selective")
NEEDS = {"vpp": "pp", "sp": "tp", "zero1": "dp", "zero3": "dp"}
EXCLUSIVE = [{"zero1", "zero3"}, {"full", "selective"}]


def axes_of(layout, more):
    """The axes that a run uses."""
    used = {a for a, n in re.findall(r"(vpp|tp|pp|cp|dp)(\d+)", layout) if int(n) > 1}
    return frozenset(used | set(re.findall(r"zero[13]|sp", layout)) | set(more[1:]))


def needed_by(*axes):
    return frozenset(axes) | {NEEDS[a] for a in axes if a in NEEDS}


def test_the_matrix_has_every_pair():
    """The matrix is as docs/parallelism describes it: each axis and each pair alone on Llama, each pair on
    GPT-2, triples, everything at once; up to 16 ranks, and at least 40 layouts."""
    seen = {name: {axes_of(layout, more) for n, layout, _, more in cases() if n == name}
            for name in MODELS}
    pairs = [set(p) for p in itertools.combinations(AXES, 2) if set(p) not in EXCLUSIVE]
    for axes in [{a} for a in AXES] + pairs:
        assert needed_by(*axes) in seen["untied"], "no layout has exactly %s" % sorted(axes)
    for pair in pairs:
        assert any(pair <= used for used in seen["gpt2"]), "GPT-2: %s" % sorted(pair)
    for axis in AXES:
        assert any(axis in used for used in seen["tied"]), "tied: " + axis
    triples = [u for u in seen["untied"] if len(u - set(NEEDS.values())) >= 2 and len(u) >= 3]
    assert len(triples) >= 15
    for zero in ("zero1", "zero3"):
        assert set(AXES[:6]) | {zero} in seen["untied"]
    worlds = {layout: ranks_of(layout) for _, layout, _, _ in cases()}
    assert len(worlds) >= 40 and max(worlds.values()) == 16


def ranks_of(layout):
    ranks = 1
    for degree in re.findall(r"(?<!v)(?:tp|pp|dp|cp)(\d+)", layout):
        ranks *= int(degree)
    return ranks


def test_the_matrix_has_every_axis_that_tp_train_knows():
    def listed(pattern, *more):
        r = run("tp-train", "--model", "x", "--data", "x", "--steps", 1, *more)
        return set(re.search(pattern, r.err).group(1).split()) - {"or"}

    axes = listed(r"axes: ([a-z ]+);", "--layout", "nonsense") - {"zero"}
    axes -= {"ep"}  # needs experts: test_family_training.py
    kinds = listed(r"--recompute is none, ([a-z ]+),", "--recompute", "nonsense")
    assert axes | {"zero1", "zero3"} | kinds == set(AXES)


@pytest.mark.sanitized(9)
@pytest.mark.parametrize("name, layout, micro, more", cases(),
                         ids=lambda x: "-".join(x) if isinstance(x, tuple) else str(x))
def test_losses_and_norms_are_the_oracles(reference, name, layout, micro, more, tmp_path):
    _, log, trace = reference.train(name, layout, tmp_path / "log", "--micro", micro, *more)
    assert_same_curve(log, trace, name + " " + layout)


@pytest.mark.parametrize("layout, host_ranks", [
    ("cp4", "1"), ("tp2cp2dp2zero1", "8")])  # only messages; shared memory
def test_under_mpirun_context_parallelism_gives_the_same_curve(reference, layout, host_ranks, tmp_path):
    argv = reference.argv("untied", layout, tmp_path / "log", "--micro", 8)
    ok("mpirun", "-n", ranks_of(layout), *argv, env={"TP_HOST_RANKS": host_ranks})
    assert_same_curve(read_log(tmp_path / "log"), reference.trace("untied"), layout + " under mpirun")


@pytest.mark.sanitized(5)
@pytest.mark.parametrize("layout", ["tp2pp2vpp2dp2spzero1", "tp2pp2vpp2dp2spzero3",
                                    "tp2pp2vpp2cp2spzero1", "cp4"])
@pytest.mark.parametrize("name", MODELS)
def test_bf16_follows_the_curve_at_every_axis(reference, name, layout, tmp_path):
    _, log, trace = reference.train(name, layout, tmp_path / "log", "--micro", 2,
                                    "--dtype", "bf16", "--recompute", "full")
    dloss, _ = oracle.deviation(log, trace)
    assert 1e-6 < dloss <= 2e-2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name, layout, zeros", [("untied", "tp2dp2", ("zero1", "zero3")),
                                                 ("gpt2", "tp4dp2", ("zero1",)),
                                                 ("untied", "tp2pp2dp2", ("zero3",))])
def test_partitioning_state_over_dp_changes_no_bit(reference, name, layout, zeros, dtype, tmp_path):
    """With several microbatches the sums over ranks and over microbatches would have another order, so there
    is one. zero3 sums over dp first, so its models have no tied head and no shared KV heads."""
    digests = set()
    for zero in ("",) + zeros:
        run(*reference.argv(name, layout + zero, tmp_path / "log", "--dtype", dtype, "--ckpt",
                            tmp_path / ("as" + zero), "--exit-step", 3))
        digests.add(str(harness.digest(tmp_path / ("as" + zero))))
    assert len(digests) == 1


@pytest.mark.parametrize("name, dp, micros", [("untied", 2, 2), ("untied", 4, 1), ("gpt2", 2, 4)])
def test_zero3_sends_the_weights_twice_and_the_gradients_once_per_microbatch(
        reference, name, dp, micros, tmp_path):
    """Calls and bytes of gathers and reductions are as in docs/parallelism/data.md, if all rows divide."""
    config = dict(MODELS[name], vocab_size=256, hidden_size=32)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    weights = oracle.random_weights(config, seed=1)
    oracle.save_model(tmp_path / "m", config, weights)
    sizes = {k: x.size for k, x in weights.items()}
    of_layers = sum(n for k, n in sizes.items() if re.search(r"\.\d+\.", k))
    r = ok(*reference.argv(name, "dp%dzero3" % dp, tmp_path / "log", "--steps", 1, "--micro",
                           BATCH // dp // micros, model=tmp_path / "m"))
    calls, number, unit = re.search(r"(\d+) of gradients and weights over dp \(([\d.]+) (\w+)\)",
                                    r.err).groups()
    # untied: the embedding and the head are sent once in each pass; tied: together, twice
    ends = (sum(sizes.values()) - of_layers) * (2 if name == "untied" else 4)
    assert int(calls) == micros * (3 * layers + 4)
    printed = float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]
    assert printed == pytest.approx(4 * micros * (3 * of_layers + ends) / dp, rel=6e-3)


def test_the_gpt2_oracles_gradient_agrees_with_finite_differences():
    curves.assert_gradient_is_slope(oracle.GPT2, dict(MODELS["gpt2"], vocab_size=11, n_layer=2), scale=3)


# ---- checkpoints between layouts ------------------------------------------------------------------

LAYOUTS_IN_TURN = {
    "untied": ["tp2pp2dp2zero1", "cp4dp2zero1", "tp8", "pp2cp2dp2zero3", "tp4dp2sp"],
    "gpt2": ["pp2vpp2", "tp2dp2spzero1", "cp8", "tp2pp2dp2zero3", "dp2"],
    "tied": ["pp3dp2zero3", "tp8", "tp2pp2cp2sp", "dp2zero1", "tp2pp2vpp2"],
}


@pytest.mark.parametrize("name", LAYOUTS_IN_TURN)
def test_a_run_that_resumes_at_five_layouts_has_the_same_curve(reference, name, tmp_path):
    ckpt, log = tmp_path / "ckpt", tmp_path / "log"
    for i, layout in enumerate(LAYOUTS_IN_TURN[name]):
        more = ["--resume=must"] * (i > 0) + ["--exit-step", curves.STEPS * (i + 1) // 5] * (i < 4)
        r = run(*reference.argv(name, layout, log, "--micro", 2, "--ckpt", ckpt, *more))
        assert r.rc == (75 if i < 4 else 0), r.err
    assert_same_curve(read_log(log), reference.trace(name), name + " at five layouts")
    ok("tp-ckpt", "verify", ckpt)


@pytest.mark.parametrize("name", LAYOUTS_IN_TURN)
def test_resharding_there_and_back_keeps_every_bit(reference, name, tmp_path):
    layouts = LAYOUTS_IN_TURN[name]
    at = tmp_path / "0"
    run(*reference.argv(name, layouts[0], tmp_path / "log", "--micro", 2, "--ckpt", at,
                        "--exit-step", 3))
    first = harness.digest(at)
    for i, layout in enumerate(layouts[1:] + layouts[:1]):
        spec = with_every_axis(layout)
        ok("tp-reshard", at, "--to", spec, "-o", tmp_path / str(i + 1))
        at = tmp_path / str(i + 1)
        assert harness.digest(at) == first, layout


def with_every_axis(layout):
    """The same layout with all axes named, because --to keeps the source's degree of any other axis."""
    named = dict(re.findall(r"(vpp|tp|pp|cp|dp|zero)(\d+)", layout))
    return "".join("%s%s" % (k, named.get(k, 0 if k == "zero" else 1))
                   for k in ("tp", "pp", "vpp", "cp", "dp", "zero"))


def test_gpt2_is_read_with_and_without_the_prefix_of_its_names(reference, tmp_path):
    weights = oracle.load_safetensors(reference.model("gpt2") / "model.safetensors")
    bare = {k.replace("transformer.", "", 1): x for k, x in weights.items()}
    oracle.save_model(tmp_path / "m", MODELS["gpt2"], bare)
    _, log, trace = reference.train("gpt2", "tp2", tmp_path / "log", model=tmp_path / "m")
    assert_same_curve(log, trace, "names without prefix")
    ok("tp-ckpt", "import", tmp_path / "m", "--layout", "tp2pp2", "-o", tmp_path / "ckpt")
    ok("tp-ckpt", "export", tmp_path / "ckpt", "--format", "safetensors", "-o", tmp_path / "out")
    out = oracle.load_safetensors(tmp_path / "out" / "model.safetensors")
    assert out.keys() == weights.keys()
    assert all((out[k] == weights[k]).all() for k in out)


# ---- plan, schedule, data -------------------------------------------------------------------------


def test_a_plan_for_other_names_trains_to_the_same_curve(reference, tmp_path):
    folder = reference.model("untied")
    text = ok("tp-train", "--model", folder, "--print-plan").out
    weights = oracle.load_safetensors(folder / "model.safetensors")

    def other(name):
        return name.replace("model.layers.", "blocks.").replace("_proj.", ".").replace("self_", "")

    oracle.save_model(tmp_path / "m", MODELS["untied"], {other(k): x for k, x in weights.items()})
    plan = tmp_path / "other.plan"
    # the MLP is not cut
    lines = [other(line) for line in text.splitlines()]
    plan.write_text("\n".join(re.sub(r"(mlp\.(?:gate|up|down) +\S+ +).*", r"\1replicated", line)
                              for line in lines))
    _, log, trace = reference.train("untied", "tp4pp2", tmp_path / "log", "--micro", 4, "--plan", plan,
                                    model=tmp_path / "m")
    assert_same_curve(log, trace, "plan")
    r = run(*reference.argv("untied", "tp2", tmp_path / "log2", "--plan", plan))
    assert r.rc == 2 and "model.layers.*.mlp.down_proj.weight (5)" in r.err  # the model's file has other names


@pytest.mark.parametrize("role, layout", [("embedding", "tp4"), ("head", "tp4"),
                                          ("embedding", "tp2pp2dp2spzero3"), ("head", "tp2pp2")])
def test_a_plan_that_cuts_only_the_embedding_or_the_head(role, layout, reference, tmp_path):
    text = ok("tp-train", "--model", reference.model("untied"), "--print-plan").out
    plan = tmp_path / "half.plan"
    plan.write_text(re.sub(rf"(?m)^({role} +\S+ +)vocabulary", r"\1replicated", text))
    more = ["--plan", plan, "--micro", 4]
    if "sp" in layout:  # sp needs both cut
        r = run(*reference.argv("untied", layout, tmp_path / "log", *more))
        assert "is replicated" in r.err
        layout = layout.replace("sp", "")
    _, log, trace = reference.train("untied", layout, tmp_path / "log", *more)
    assert_same_curve(log, trace, role)


def test_a_plan_with_names_that_no_shard_can_store_is_refused(reference, tmp_path):
    text = ok("tp-train", "--model", reference.model("untied"), "--print-plan").out
    plan = tmp_path / "names.plan"
    for name in ("self/attn.q", "self_attn@q"):
        plan.write_text(text.replace("self_attn.q_proj.weight", name))
        r = run(*reference.argv("untied", "tp1", tmp_path / "log", "--plan", plan))
        assert r.rc == 2 and r.out == "" and f"layers.*.{name}" in r.err


def test_a_plan_whose_cuts_do_not_fit_together_is_refused(reference, tmp_path):
    folder = reference.model("untied")
    text = ok("tp-train", "--model", folder, "--print-plan").out
    plan = tmp_path / "bad.plan"
    plan.write_text(re.sub(r"(o_proj.weight +)row +head", r"\1replicated", text))
    r = run("tp-train", "--model", folder, "--print-plan", "--plan", plan)
    assert r.rc == 2 and "column-parallel" in r.err and "o_proj" in r.err and "row" in r.err


def test_the_schedule_is_printed_as_text_and_as_a_picture(reference):
    argv = ["tp-train", "--model", reference.model("untied"), "--layout", "pp2vpp2", "--batch", 8, "--micro", 1]
    text = ok(*argv, "--print-schedule").out
    assert "bubble 0.0625 of the ideal time" in text  # the formula (p - 1) / (v m)
    assert "48 messages" in text  # 2 m (p v - 1)
    root = xml.fromstring(ok(*argv, "--print-schedule=svg").out)
    titles = [x.text for x in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 2 * 8 * 2  # forward and backward, virtual stages, microbatches, ranks
    short = xml.fromstring(ok(*argv[:-1], 4, "--print-schedule=svg").out)
    for note in short.iter("{http://www.w3.org/2000/svg}text"):
        if note.get("class") == "note":  # a letter of size 12 px is about 6.3 px wide
            assert int(note.get("x")) + 6.5 * len(note.text) <= int(short.get("width"))


def write_pair(prefix, tokens, sizes):
    """PREFIX.bin and PREFIX.idx of unsigned 16-bit tokens, as Megatron-LM writes them."""
    pointers = [2 * sum(sizes[:i]) for i in range(len(sizes))]
    with open(str(prefix) + ".bin", "wb") as f:
        f.write(struct.pack("<%dH" % len(tokens), *tokens))
    with open(str(prefix) + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        f.write(struct.pack("<%di" % len(sizes), *sizes))
        f.write(struct.pack("<%dq" % len(sizes), *pointers))
        f.write(struct.pack("<%dq" % (len(sizes) + 1), *range(len(sizes) + 1)))


def test_megatrons_token_files_train_a_large_vocabulary(tmp_path):
    config = dict(MODELS["gpt2"], vocab_size=5003, n_layer=2)
    weights = oracle.random_weights(config, seed=5)
    oracle.save_model(tmp_path / "m", config, weights)
    text = open(TEXT, "rb").read(20000)
    tokens = [(a * 256 + b) % 5003 for a, b in zip(text, text[1:])]
    write_pair(tmp_path / "words", tokens, [7000, 1, 0, len(tokens) - 7001])
    options = dict(OPTIONS["gpt2"], steps=6, batch=4)
    trace, _ = oracle.train(config, weights, tokens, **options)
    argv = ["tp-train", "--model", tmp_path / "m", "--data", tmp_path / "words", "--layout",
            "tp4pp2", "--micro", 2, "--log", tmp_path / "log"]
    for key, value in options.items():
        argv += ["--" + key, value]
    ok(*argv)
    assert_same_curve(read_log(tmp_path / "log"), trace, "tokens")
    r = run(*argv[:2], harness.write_config(tmp_path, **harness.TINY), *argv[3:])
    assert r.rc == 2 and "tokenized for another model" in r.err


# ---- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout, more, message", [
    ("cp3", (), "--seq 30 would; nearest that would run: tp1cp2"),
    ("cp32", (), "nearest that would run: tp1cp16"),
    ("tp8cp2sp", ("--micro", 1, "--seq", 12), "6 (--micro 1 x --seq 12 / cp 2) are not divisible by"),
    ("pp6", (), "its 5 layers are fewer than its 6 stages"),
    ("vpp2", (), "vpp needs pp"),
    ("pp2vpp2", ("--micro", 16), "in groups of pp (2), but a step has 1,"),
    ("tp8sp", ("--micro", 1, "--seq", 31), "are not divisible by tp 8"),
    ("tp3pp2", (), "tp 3"),
])
def test_a_layout_that_cannot_run_is_refused_with_a_sentence(reference, layout, more, message, tmp_path):
    r = run(*reference.argv("untied", layout, tmp_path / "log", *more))
    assert r.rc == 2 and message in r.err and len(r.err.strip().splitlines()) == 1, r.err
    assert not (tmp_path / "log").exists()
