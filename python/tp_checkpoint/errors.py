"""The errors of this package. Each message names the file or tensor, what was expected, and what was found."""
import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found):
    character = found[0]
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return _NAMED.get(character) or "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


class CheckpointError(Exception):
    """What every error of this package is.

    Its text is for terminals and logs: control characters of paths and bytes that are not UTF-8 are written as the C
    programs write them, \\n or \\x1b.
    """

    def __str__(self):
        return _UNSAFE.sub(_escape, str(self.args[0])) if self.args else ""


class NotFoundError(CheckpointError, KeyError):
    """There is no such checkpoint, step or tensor."""


class DamagedError(CheckpointError):
    """The bytes are not those that were written, or were never valid."""


class UnsupportedError(CheckpointError):
    """A valid request or file that this package cannot serve."""
