"""Training runs compared with the numpy oracle: same model, same data, same options, same curve."""
import pathlib
import sys

import pytest

import harness

sys.path.insert(0, str(harness.REPO / "tests" / "oracle"))
import oracle_numpy as oracle  # noqa: E402

# With a sanitizer programs are several times slower. The first steps already run all code.
STEPS = 6 if harness.SANITIZE else 20 if harness.LONG else 10
LOSS_WITHIN, NORM_WITHIN = 5e-6, 2e-6
FLAGS = {"wd": "weight-decay"}  # options of the oracle that have another name in tp-train


class Reference:
    """The models of a test file, and the oracle's training of each. Both are made when first used.

    models: {name: config.json}; options: {name: the oracle's options}, or one set for all models.
    """

    def __init__(self, folder, models, options, seed):
        self.folder, self.models, self.seed, self.traces = folder, models, seed, {}
        self.options = options if set(options) == set(models) else dict.fromkeys(models, options)

    def weights(self, name):
        return oracle.random_weights(self.models[name], seed=self.seed)

    def model(self, name):
        """The folder of a model: config.json and model.safetensors."""
        folder = self.folder / name.replace(" ", "-")
        if not folder.exists():
            oracle.save_model(folder, self.models[name], self.weights(name))
        return folder

    def data(self, name):
        """A text whose bytes the model's vocabulary has."""
        words, path = self.models[name]["vocab_size"], pathlib.Path(harness.TEXT)
        if words < 256:
            text, path = path.read_bytes(), self.model(name) / "text"
            path.write_bytes(bytes(b % words for b in text))
        return path

    def trace(self, name):
        """The oracle's losses and norms, one entry for each step."""
        if name not in self.traces:
            self.traces[name], _ = oracle.train(self.models[name], self.weights(name),
                                                self.data(name).read_bytes(), **self.options[name])
        return self.traces[name]

    def argv(self, name, layout, log, *more, model=None):
        """The command line of tp-train for the same run."""
        argv = ["tp-train", "--model", model or self.model(name), "--data", self.data(name),
                "--layout", layout, "--log", log]
        for key, value in {"steps": 20, **self.options[name]}.items():
            argv += ["--" + FLAGS.get(key, key).replace("_", "-"), value]
        return argv + list(more)

    def train(self, name, layout, log, *more, **kw):
        """Returns (tp-train's output, its log, the oracle's trace)."""
        r = harness.ok(*self.argv(name, layout, log, *more, **kw))
        return r, harness.read_log(log), self.trace(name)


def assert_same(log, trace, what, norm_within=NORM_WITHIN):
    dloss, dnorm = oracle.deviation(log, trace)
    print("%s: |dloss| %.1e, relative dnorm %.1e" % (what, dloss, dnorm))
    assert dloss <= LOSS_WITHIN and dnorm <= norm_within


def assert_gradient_is_slope(kind, config, scale):
    """Compare the gradients of the oracle, whose backward pass is written by hand, with finite
    differences, for one element of each tensor.

    kind: oracle.Llama or oracle.GPT2. scale: a factor for the random weights, so that gradients are not
    tiny.
    """
    words = config["vocab_size"]
    w = {k: x.astype(float) * scale for k, x in oracle.random_weights(config, 3).items()}
    model, data = kind(config, 8), bytes(i * i % words for i in range(100))
    ids, targets = oracle.batch_of(data, dict(batch=2, seq=8), 0)
    logits, saved = model.forward(w, ids)
    g = model.backward(w, oracle.loss_of(logits, targets)[1], saved)

    def loss():
        logits, saved = model.forward(w, ids)
        return oracle.loss_of(logits, targets)[0] + model.extra_loss(saved)

    for name, x in w.items():
        at = tuple(min(n // 2, 5) for n in x.shape)  # a position that the 8 tokens use
        keep = x[at]
        x[at] = keep + 1e-5
        up = loss()
        x[at] = keep - 1e-5
        slope = (up - loss()) / 2e-5
        x[at] = keep
        assert slope == pytest.approx(g[name][at], rel=1e-4, abs=1e-8), name
