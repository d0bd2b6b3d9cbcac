"""Figures: numbers that tests record, and that a run of pytest prints at its end."""
import pytest


@pytest.fixture
def figure(record_property):
    """figure("points", 127) records a number."""
    return record_property


def pytest_terminal_summary(terminalreporter):
    """Print the figures that passing tests recorded, from all workers."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line("figure  %s: %s = %s" % (
                report.nodeid.split("/")[-1], name, value))
