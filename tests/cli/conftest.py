"""Fixtures of the integration tests: a tiny model and a checkpoint of it, made once a worker."""
import pytest

import harness


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A config.json of a tiny Llama."""
    return harness.write_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny):
    """A root with one complete step, written at tp2; tests copy it (see `ckpt`)."""
    root = tmp_path_factory.mktemp("trained") / "ckpt"
    harness.train(tiny, root, steps=2, layout="tp2")
    return root


@pytest.fixture(scope="session")
def curve(tmp_path_factory, tiny):
    """curve(steps): {step: loss} of a run of the tiny model that never failed, at run_job's PACE."""
    known = {}

    def of(steps):
        if steps not in known:
            log = tmp_path_factory.mktemp("curve") / "log"
            harness.ok("tp-train", "--model", tiny, "--data", harness.TEXT, "--steps", steps,
                       "--warmup", 2, "--seq", 64, "--batch", 8, "--log", log)
            known[steps] = dict(enumerate(harness.losses(log)))
        return known[steps]

    return of


@pytest.fixture
def ckpt(trained, tmp_path):
    """The test's own copy of `trained`."""
    return harness.copy(trained, tmp_path / "ckpt")
