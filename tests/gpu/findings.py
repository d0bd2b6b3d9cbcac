"""tests/gpu/findings.py - what a part of tests/gpu/gpu_check.py finds, also when something of it fails, is missing, or hangs."""
import contextlib


class Missing(Exception):
    """A part cannot run here: something is not installed, or no time is left."""


class NoGpu(Missing):
    """No GPU can be used, so no part can run."""


class Failed(Exception):
    """A part found something wrong. figures: what it has found nevertheless."""

    def __init__(self, why, figures=None):
        super().__init__(why)
        self.figures = figures


class Late(Failed):
    """A command took too long."""


class Findings:
    """What a part finds, some of which may fail or be missing."""

    def __init__(self):
        self.figures, self.wrong, self.unfinished = {}, [], []

    @contextlib.contextmanager
    def attempt(self, what, may_be_late=False):
        try:
            yield
        except (Missing, Failed) as e:
            is_missing = isinstance(e, Missing) or (may_be_late and isinstance(e, Late))
            (self.unfinished if is_missing else self.wrong).append("%s: %s" % (what, e))
        except Exception as e:  # what is found of others must not be lost
            self.wrong.append("%s: %s: %s" % (what, type(e).__name__, e))

    def result(self):
        if self.unfinished and not self.figures and not self.wrong:
            raise Missing("; ".join(self.unfinished))
        if self.unfinished:
            self.figures["unfinished"] = self.unfinished
        if self.wrong:
            raise Failed("; ".join(self.wrong), self.figures)
        return self.figures
