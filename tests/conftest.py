"""What all pytest files share: figures, signals, and the end of the time that a run may take."""
import os
import shutil
import signal
import time

import pytest

UNTIL = float(os.environ.get("TP_TESTS_UNTIL") or "inf")  # seconds since 1970

# A shell starts a job in the background with SIGINT ignored, and nohup ignores SIGHUP; what a test starts would ignore them too.
# What pytest itself starts gets their default effect, because handlers do not outlive exec.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_runtest_setup():
    """.ci/run has a limit of its own on a slow machine. What has not begun by then is counted as skipped."""
    if time.time() > UNTIL:
        pytest.skip("the time for tests is over (TP_TESTS_UNTIL)")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """If all passed, remove the files of all workers: 20 GB of a whole run. pytest itself keeps those of three runs."""
    config = session.config
    if exitstatus == 0 and not hasattr(config, "workerinput") and not config.option.basetemp:
        shutil.rmtree(config._tmp_path_factory.getbasetemp(), ignore_errors=True)


@pytest.fixture
def figure(record_property):
    """figure("points", 127) records a number, which a run of pytest prints at its end."""
    return record_property


def pytest_terminal_summary(terminalreporter):
    """Print the figures that passing tests recorded, from all workers."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line("figure  %s: %s = %s" % (
                report.nodeid.split("/")[-1], name, value))
