"""Finding a step: in a root, or as a directory."""
import operator
import os
import re
import warnings

from . import manifest
from .checkpoint import Checkpoint
from .errors import CheckpointError, DamagedError, NotFoundError, UnsupportedError
from .shard_index import open_shard

STEP_NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,17})\Z")
STEP_MAX = 10 ** 18 - 1
_URL = re.compile(r"(s3|https?):|[a-z0-9+.-]+://", re.IGNORECASE)


def local_path(path):
    """The path of a folder as text. UnsupportedError: it is a URL."""
    path = os.fsdecode(path)
    if _URL.match(path):
        raise UnsupportedError(f"{path}: is a URL, and this package reads and writes folders only; tp-reshard and tp-ckpt "
                               "copy checkpoints from and to URLs (docs/REMOTE.md)")
    return path


def step_number(step):
    """The number of a step, an int. CheckpointError: it can be none."""
    try:
        whole = isinstance(step, float) and step.is_integer()
        number = -1 if isinstance(step, bool) else operator.index(int(step) if whole else step)
    except TypeError:
        number = -1
    if not 0 <= number <= STEP_MAX:
        raise CheckpointError(f"step is {step!r:.60}, expected a whole number from 0 to 10^18 - 1")
    return number


def _must_be_dir(path):
    if not os.path.isdir(path):
        file = os.path.exists(path)
        raise NotFoundError(f"{path}: is a file; give the folder that contains it" if file else
                            f"{path}: there is no such directory")


def steps(root):
    """{step: directory} of a root, also of incomplete ones, ascending. NotFoundError: it is no directory."""
    found, root = {}, local_path(root)
    _must_be_dir(root)
    with os.scandir(root) as entries:
        for entry in entries:
            m = STEP_NAME.match(entry.name)
            if m and entry.is_dir():
                found[int(m[1])] = entry.path
    return dict(sorted(found.items()))


def _open_step(folder):
    """A step directory, if it is complete."""
    contents = manifest.read(folder)
    m = STEP_NAME.match(os.path.basename(os.path.normpath(folder)))
    if m and int(m[1]) != contents.step:
        raise DamagedError(f"{folder}: its manifest is of step {contents.step}")
    for shard in contents.shards:
        os.close(open_shard(folder, shard))
    return Checkpoint(folder, contents)


def open(path, step=None):
    """Open a checkpoint: a root (its newest complete step, or `step`), or a step directory.

    A newer step that is damaged is passed over with a warning. NotFoundError: there is no such
    checkpoint; DamagedError: `step`, or every step, is damaged.
    """
    path, step = local_path(path), None if step is None else step_number(step)
    _must_be_dir(path)
    if os.path.exists(os.path.join(path, manifest.NAME)):
        found = _open_step(path)
        if step not in (None, found.step):
            raise NotFoundError(f"{path}: is step {found.step}, not step {step}")
        return found
    there = steps(path)
    if step is not None:
        if step not in there:
            raise NotFoundError(f"{path}: has no step {step}; it has {_numbers(there)}")
        return _try_step(there[step])
    if not there:
        raise NotFoundError(f"{path}: is not a checkpoint: it has neither {manifest.NAME} nor a step directory")
    return _newest(path, list(there.values()))


def _numbers(there):
    return "steps " + ", ".join(map(str, list(there)[-5:])) if there else "none"


def _try_step(folder):
    try:
        return _open_step(folder)
    except FileNotFoundError:
        raise DamagedError(f"{folder}: has no {manifest.NAME}") from None


def _newest(path, folders):
    problems = []
    for folder in reversed(folders):
        try:
            found = _try_step(folder)
        except (CheckpointError, OSError) as e:
            problems.append(str(e))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; using step {found.step}", stacklevel=3)
        return found
    raise DamagedError(f"{path}: has no complete step: {problems[0]}")
