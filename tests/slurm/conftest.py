"""The printing of figures, as in tests/cli."""
import pytest


@pytest.fixture
def figure(record_property):
    """figure("points", 127): a number that the run prints at its end."""
    return record_property


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line("figure  %s: %s = %s" % (
                report.nodeid.split("/")[-1], name, value))
