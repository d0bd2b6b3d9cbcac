"""Fixtures for the tests of programs: a tiny model, a checkpoint of it, and reference curves.

Fixtures of a session are made once for each pytest worker.
"""
import collections

import pytest

import curves
import harness
import run_job
from object_store import ObjectStore
from state import State

MANY = 6  # cases of a test
# What the fixtures below run. Only a worker's first test with a fixture of a session runs it, so without this list a
# name that is missing in a `needs:` line would be noticed or not, as the tests are spread.
RUN_BY = {"trained": "tp-train", "f32": "tp-train", "bf16": "tp-train", "curve": "tp-train", "root": "make_ckpt"}


def refuse_undeclared(items):
    """Each test's file must declare what the fixtures run."""
    missing = set()
    for item in items:
        test_file = str(item.path.relative_to(harness.REPO))
        ours = {name for name in item.fixturenames if not hasattr(item.module, name)}  # a file may have its own of the same name
        missing |= {(test_file, RUN_BY[name]) for name in RUN_BY.keys() & ours if RUN_BY[name] not in harness.declared(test_file)}
    if missing:
        raise pytest.UsageError("\n".join("%s runs %s: add it to its line `needs:`" % found for found in sorted(missing)))


def leave_out_sanitized(config, items):
    """With a sanitizer, keep every n-th case of a test that is marked sanitized(n) (0: none), and every third one of a test
    with many cases: programs are three times as slow then. pytest counts the others as deselected. `make test-long` has all."""
    cases = collections.Counter(item.function for item in items)
    seen, kept, left_out = {}, [], []
    for item in items:
        mark = item.get_closest_marker("sanitized")
        every = mark.args[0] if mark else 3 if cases[item.function] >= MANY else 1
        nth = seen[item.function] = seen.get(item.function, -1) + 1
        (kept if every and nth % every == 0 else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let one worker run the tests of a file, or of a model of `reference`, so that the fixtures that
    they share are made once. A test that has a group of its own keeps it."""
    if harness.SANITIZE and not harness.LONG:
        leave_out_sanitized(config, items)
    refuse_undeclared(items)
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        params = item.callspec.params if hasattr(item, "callspec") else {}
        model = params.get("name", "") if "reference" in item.fixturenames else ""
        item.add_marker(pytest.mark.xdist_group("%s %s" % (item.path.stem, model)))


@pytest.fixture
def store():
    """An empty S3-compatible store."""
    with ObjectStore() as s:
        yield s


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


@pytest.fixture(scope="session")
def root(tmp_path_factory, tiny):
    """A root with step 1 of the tiny model at tp2, in bf16, which make_ckpt writes."""
    folder = tmp_path_factory.mktemp("root")
    harness.ok(harness.built("make_ckpt"), tiny, "tp2", folder / "ckpt", 1, 11, "bf16")
    return folder / "ckpt"


@pytest.fixture(scope="session")
def f32(tmp_path_factory, tiny):
    """The State of the tiny model after three steps."""
    return State(tmp_path_factory.mktemp("f32"), tiny)


@pytest.fixture(scope="session")
def bf16(tmp_path_factory, tiny):
    """The same, trained in bf16."""
    return State(tmp_path_factory.mktemp("bf16"), tiny, dtype="bf16")


@pytest.fixture(scope="module")
def reference(request, tmp_path_factory):
    """The MODELS of the test's file, which the oracle trains with the file's OPTIONS and SEED."""
    m = request.module
    return curves.Reference(tmp_path_factory.mktemp("reference"), m.MODELS, m.OPTIONS, m.SEED)


@pytest.fixture(scope="session")
def curve(tmp_path_factory, tiny):
    """curve(steps) is {step: loss} of a run of the tiny model without failures, with run_job.PACE (or another batch)."""
    known = {}

    def of(steps, batch=run_job.PACE["batch"]):
        if (steps, batch) not in known:
            log = tmp_path_factory.mktemp("curve") / "log"
            harness.ok("tp-train", "--model", tiny, "--data", harness.TEXT, "--steps", steps,
                       "--warmup", 2, "--seq", run_job.PACE["seq"], "--batch", batch, "--log", log)
            known[steps, batch] = dict(enumerate(harness.losses(log)))
        return known[steps, batch]

    return of
