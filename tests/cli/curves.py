"""Runs of tp-train beside the numpy oracle's: the same model, data and options, the same curve."""
import json
import pathlib
import sys

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "oracle"))
import oracle_numpy as oracle  # noqa: E402

LOSS_WITHIN, NORM_WITHIN = 5e-6, 2e-6
FLAGS = {"wd": "weight-decay"}  # of options that are called otherwise


class Known:
    """Models by name, each made once, with the oracle's trace of its training.

    models: name -> config.json; options: name -> the oracle's options, or one for all.
    known(name) is (model folder, trace).
    """

    def __init__(self, tmp_path_factory, models, options, seed):
        self.tmp, self.models, self.seed, self.done = tmp_path_factory, models, seed, {}
        self.options = options if set(options) == set(models) else dict.fromkeys(models, options)

    def __call__(self, name):
        folder, _, trace = self.made(name)
        return folder, trace

    def data(self, name):
        return self.made(name)[1]

    def made(self, name):
        if name not in self.done:
            folder, config = self.tmp.mktemp("model"), self.models[name]
            weights = oracle.random_weights(config, seed=self.seed)
            oracle.save_model(folder, config, weights)
            data = pathlib.Path(harness.TEXT)
            if config["vocab_size"] < 256:
                text = data.read_bytes()
                data = folder / "few-words"
                data.write_bytes(bytes(b % config["vocab_size"] for b in text))
            trace, _ = oracle.train(config, weights, data.read_bytes(), **self.options[name])
            self.done[name] = folder, data, trace
        return self.done[name]

    def argv(self, name, layout, log, *more):
        folder, data, _ = self.made(name)
        argv = ["tp-train", "--model", folder, "--data", data, "--layout", layout, "--log", log]
        for key, value in {"steps": 20, **self.options[name]}.items():
            argv += ["--" + FLAGS.get(key, key).replace("_", "-"), value]
        return argv + list(more)

    def train(self, name, layout, log, *more):
        """(what the program said, its log, the oracle's trace)."""
        r = harness.ok(*self.argv(name, layout, log, *more))
        return r, [json.loads(line) for line in open(log)], self(name)[1]


def assert_same(log, trace, what):
    dloss, dnorm = oracle.deviation(log, trace)
    print("%s: |dloss| %.1e, relative dnorm %.1e" % (what, dloss, dnorm))
    assert dloss <= LOSS_WITHIN and dnorm <= NORM_WITHIN


def assert_gradient_is_slope(kind, config, scale):
    """The oracle's backward pass is written by hand: differences check it, an element a tensor.

    kind: oracle.Llama or oracle.GPT2. scale: of its random weights, so that gradients are not tiny.
    """
    words = config["vocab_size"]
    w = {k: x.astype(float) * scale for k, x in oracle.random_weights(config, 3).items()}
    model, data = kind(config, 8), bytes(i * i % words for i in range(100))
    ids, targets = oracle.batch_of(data, dict(batch=2, seq=8), 0)
    logits, saved = model.forward(w, ids)
    g = model.backward(w, oracle.loss_of(logits, targets)[1], saved)

    def loss():
        return oracle.loss_of(model.forward(w, ids)[0], targets)[0]

    for name, x in w.items():
        at = tuple(min(n // 2, 5) for n in x.shape)  # a position that the 8 tokens have
        keep = x[at]
        x[at] = keep + 1e-5
        up = loss()
        x[at] = keep - 1e-5
        slope = (up - loss()) / 2e-5
        x[at] = keep
        assert slope == pytest.approx(g[name][at], rel=1e-4, abs=1e-8), name
