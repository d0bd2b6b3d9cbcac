"""tp-train has the losses and gradient norms of PyTorch for the same model, at any layout."""
import json
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402
import oracle_torch  # noqa: E402

# Both sides use fp32. PyTorch's errors are at most 7e-7 in losses and 6e-8 in norms.
LOSS_WITHIN, NORM_WITHIN = 5e-6, 2e-6

MODELS = {
    "small": dict(),
    "eight heads, tied, vocabulary 260": dict(
        vocab_size=260, hidden_size=128, intermediate_size=344, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True),
    "own head_dim and rope_theta, vocabulary 259": dict(
        vocab_size=259, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=8, head_dim=10,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
}
BATCH = {"small": 8, "eight heads, tied, vocabulary 260": 16,
         "own head_dim and rope_theta, vocabulary 259": 8}
CASES = [
    ("small", "tp1", {}), ("small", "tp2", {}), ("small", "tp4", {}), ("small", "dp2", {}),
    ("small", "dp4", {}), ("small", "tp2dp2", {}), ("small", "tp2", {"micro": 2}),
    ("small", "dp2", {"micro": 1}),
    ("eight heads, tied, vocabulary 260", "tp1", {}), ("eight heads, tied, vocabulary 260", "tp4", {}),
    ("eight heads, tied, vocabulary 260", "tp8", {}), ("eight heads, tied, vocabulary 260", "tp8dp2", {}),
    ("eight heads, tied, vocabulary 260", "tp4dp2", {"micro": 4}),
    ("own head_dim and rope_theta, vocabulary 259", "tp1", {}),
    ("own head_dim and rope_theta, vocabulary 259", "tp8", {}),
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """name -> (model folder, PyTorch's trace), each computed once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            oracle_torch.make_model(folder, seed=1234, **MODELS[name])
            made[name] = folder, oracle_torch.train(folder, harness.TEXT, batch=BATCH[name])
        return made[name]
    return get


def tp_train(folder, name, log, layout, *more, **options):
    argv = ["tp-train", "--model", folder, "--data", harness.TEXT, "--steps", 20, "--batch",
            BATCH[name], "--seq", 64, "--layout", layout, "--log", log, *more]
    for key, value in options.items():
        argv += ["--" + key, value]
    return argv


def assert_same(got, want, figure=lambda name, value: None):
    assert [r["step"] for r in got] == [r["step"] for r in want]
    loss = max(abs(g["loss"] - w["loss"]) for g, w in zip(got, want))
    norm = max(abs(g["grad_norm"] / w["grad_norm"] - 1) for g, w in zip(got, want))
    rate = max(abs(g["lr"] / w["lr"] - 1) for g, w in zip(got, want))
    figure("largest difference from PyTorch", "loss %.1e, norm %.1e relative" % (loss, norm))
    assert loss <= LOSS_WITHIN and norm <= NORM_WITHIN and rate < 1e-8, (loss, norm, rate)


@pytest.mark.parametrize("name,layout,options", CASES,
                         ids=["%s-%s%s" % (n.split(",")[0], l, "-micro" if o else "")
                              for n, l, o in CASES])
def test_losses_and_norms_are_pytorchs(name, layout, options, oracle, tmp_path, figure):
    folder, want = oracle(name)
    log = tmp_path / "log"
    harness.ok(*tp_train(folder, name, log, layout, **options))
    assert_same(harness.read_log(log), want, figure)


def test_a_run_resharded_from_tp8_to_tp4_has_pytorchs_curve(oracle, tmp_path, figure):
    name = "eight heads, tied, vocabulary 260"
    folder, want = oracle(name)
    log, root = tmp_path / "log", tmp_path / "ckpt"
    r = harness.run(*tp_train(folder, name, log, "tp8", "--exit-step", 10, "--ckpt", root))
    assert r.rc == 75, repr(r)
    harness.ok("tp-reshard", "ckpt", "--from", "tp8", "--to", "tp4", cwd=tmp_path)
    harness.ok(*tp_train(folder, name, log, "tp4", "--resume=must", "--ckpt", tmp_path / "ckpt-tp4"))
    assert_same(harness.read_log(log), want, figure)


def test_bf16_follows_the_fp32_curve(oracle, tmp_path, figure):
    folder, want = oracle("small")
    log = tmp_path / "log"
    harness.ok(*tp_train(folder, "small", log, "tp2", dtype="bf16"))
    worst = max(abs(g["loss"] - w["loss"]) for g, w in zip(harness.read_log(log), want))
    figure("largest difference from fp32", "%.1e" % worst)
    assert worst <= 2e-2


def test_the_tolerances_find_a_wrong_rule(oracle, tmp_path):
    """A weight decay with an error of 10 % gives differences above the tolerances."""
    folder, want = oracle("small")
    log = tmp_path / "log"
    harness.ok(*tp_train(folder, "small", log, "tp1", **{"weight-decay": 0.09}))
    with pytest.raises(AssertionError):
        assert_same(harness.read_log(log), want)


def test_the_oracle_runs_as_a_program(oracle):
    folder, want = oracle("small")
    out = subprocess.check_output([sys.executable, oracle_torch.__file__, folder, harness.TEXT],
                                  text=True)
    assert [json.loads(line) for line in out.splitlines()] == want
