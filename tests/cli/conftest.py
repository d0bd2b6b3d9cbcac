"""Fixtures for the tests of programs: a tiny model, a checkpoint of it, and reference curves.

Fixtures of a session are made once for each pytest worker.
"""
import pytest

import curves
import harness


def leave_out_sanitized(config, items):
    """With a sanitizer, keep every n-th case of a test that is marked sanitized(n). pytest counts the
    others as deselected."""
    seen, kept, left_out = {}, [], []
    for item in items:
        mark = item.get_closest_marker("sanitized")
        nth = seen[item.function] = seen.get(item.function, -1) + 1
        (left_out if mark and nth % mark.args[0] else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let one worker run the tests of a file, or of a model of `reference`, so that the fixtures that
    they share are made once."""
    if harness.SANITIZE and not harness.LONG:
        leave_out_sanitized(config, items)
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        model = params.get("name", "") if "reference" in item.fixturenames else ""
        item.add_marker(pytest.mark.xdist_group("%s %s" % (item.path.stem, model)))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The config.json of a tiny Llama."""
    return harness.write_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny):
    """A root with one complete step, written at tp2. Tests change a copy of it (`ckpt`)."""
    root = tmp_path_factory.mktemp("trained") / "ckpt"
    harness.train(tiny, root, steps=2, layout="tp2")
    return root


@pytest.fixture
def ckpt(trained, tmp_path):
    """The test's own copy of `trained`."""
    return harness.copy(trained, tmp_path / "ckpt")


@pytest.fixture(scope="module")
def reference(request, tmp_path_factory):
    """The MODELS of the test's file, which the oracle trains with the file's OPTIONS and SEED."""
    m = request.module
    return curves.Reference(tmp_path_factory.mktemp("reference"), m.MODELS, m.OPTIONS, m.SEED)


@pytest.fixture(scope="session")
def curve(tmp_path_factory, tiny):
    """curve(steps) is {step: loss} of a run of the tiny model without failures, with run_job.PACE."""
    known = {}

    def of(steps):
        if steps not in known:
            log = tmp_path_factory.mktemp("curve") / "log"
            harness.ok("tp-train", "--model", tiny, "--data", harness.TEXT, "--steps", steps,
                       "--warmup", 2, "--seq", 64, "--batch", 8, "--log", log)
            known[steps] = dict(enumerate(harness.losses(log)))
        return known[steps]

    return of
