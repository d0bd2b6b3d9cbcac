"""tests/gpu/findings.py - what a part of tests/gpu/gpu_check.py finds, also when something of it fails, is missing, or hangs."""
import contextlib


class Missing(Exception):
    """Something cannot run here: it is not installed, or no time is left."""


class NoGpu(Missing):
    """No GPU can be used, so no part can run."""


class TimeOver(Missing):
    """A command was ended because the time of its part was over."""


class Failed(Exception):
    """A part found something wrong. figures: what it has found nevertheless; not_run: what of it did not run."""

    def __init__(self, why, figures=None, not_run=()):
        super().__init__(why)
        self.figures, self.not_run = figures, list(not_run)


class Late(Failed):
    """A command took too long."""


class Findings:
    """What a part finds, some of which may fail or not run. found: called after each attempt, with the row of the report so far."""

    def __init__(self, found=lambda row: None):
        self.figures, self.wrong, self.not_run, self.found = {}, [], [], found

    @contextlib.contextmanager
    def attempt(self, what, not_run=Missing):
        """Take down why `what` failed. not_run: exceptions that mean that it did not run."""
        try:
            yield
        except not_run as e:
            self.not_run.append("%s: %s" % (what, e))
        except Failed as e:
            self.wrong.append("%s: %s" % (what, e))
        except Exception as e:  # what is found of others must not be lost
            self.wrong.append("%s: %s: %s" % (what, type(e).__name__, e))
        self.found(self.row("the rest: it had not ended"))

    def row(self, *also_not_run):
        """A row of the report. The part has passed if all of it ran and was right."""
        figures, not_run = dict(self.figures), [*self.not_run, *also_not_run]
        if self.wrong:
            row = {"status": "FAILED", "why": "; ".join(self.wrong), "figures": figures}
        elif not not_run:
            return {"status": "passed", "figures": figures}
        elif not figures:
            return {"status": "not run", "why": "; ".join(not_run)}
        else:
            row = {"status": "in part", "figures": figures}
        return {**row, "not_run": not_run} if not_run else row
