"""The errors of this package. Each message names the file or tensor, what was expected, and what was found."""


class CheckpointError(Exception):
    """What every error of this package is."""


class NotFoundError(CheckpointError, KeyError):
    """There is no such checkpoint, step or tensor."""

    def __str__(self):  # KeyError would print the message in quotes
        return str(self.args[0])


class DamagedError(CheckpointError):
    """The bytes are not those that were written, or were never valid."""


class UnsupportedError(CheckpointError):
    """A valid request or file that this package cannot serve."""
