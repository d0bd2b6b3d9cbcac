"""Adding a step to a checkpoint root: all of it or nothing (docs/FORMAT.md, section 7)."""
import contextlib
import ctypes
import errno
import fnmatch
import os
import re
import secrets
import shutil
import stat
import threading
import weakref

from . import manifest
from .errors import CheckpointError, DamagedError
from .locks import Lock
from .roots import STEP_NAME, local_path, step_number, steps

_TEMPORARY = re.compile(r"step-(\d{8}|[1-9]\d{8,17})\.tmp-")
_NO_FLAGS = (errno.EINVAL, errno.ENOSYS)  # of a file system, or a kernel, without the flags of renameat2
_NOREPLACE, _EXCHANGE, _AT_FDCWD = 1, 2, -100
_claimed = {}  # the epoch that this process has claimed in a root
_claiming = threading.Lock()  # of _claimed: all threads of a process are one job, and have one epoch


def _claim_in_child():
    global _claiming
    _claiming = threading.Lock()  # the thread that holds it is not in this process


os.register_at_fork(after_in_child=_claim_in_child)


class ExistsError(CheckpointError):
    """The step exists already."""


class StaleError(CheckpointError):
    """A newer job owns the root."""


def _sync(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _limit_access(fd, root):
    """Who may open it, can lock it, and so delay others: only those who may write to the root."""
    mode, here, file = 0o600, os.stat(root), os.fstat(fd)
    if here.st_mode & stat.S_IWGRP and file.st_gid == here.st_gid:
        mode |= 0o060
    if here.st_mode & stat.S_IWOTH:
        mode |= 0o006
    if stat.S_ISDIR(file.st_mode):
        mode |= (mode & 0o444) >> 2
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, mode)


@contextlib.contextmanager
def _root_lock(root):
    with Lock(os.path.join(root, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as lock:
        _limit_access(lock.fd, root)
        lock.take()
        yield


def _rename(old, new, flags):
    """renameat2; 0, or an error number."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return errno.EINVAL
    return 0 if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags) == 0 else ctypes.get_errno()


def _exchange(a, b):
    """Exchange two names: at once, or with three renames where the file system cannot do that (NFS, and many that run
    in user space). OSError: each has its own name still, or the message says what has another."""
    error = _rename(a, b, _EXCHANGE)
    if error in _NO_FLAGS:
        _rename_thrice(a, b)
    elif error:
        raise OSError(error, os.strerror(error))


def _rename_thrice(a, b):
    aside, begun = f"{b}.replaced-{os.getpid()}", []
    try:
        for old, new in (b, aside), (a, b), (aside, a):
            begun.append((old, new))
            os.rename(old, new)
    except BaseException as e:  # KeyboardInterrupt too: an existing step must not be lost
        try:
            for old, new in reversed(begun):
                if not os.path.lexists(old):
                    os.rename(new, old)
        except OSError as undo:
            why = getattr(e, "strerror", None) or type(e).__name__
            raise OSError(undo.errno, f"{why}; what was {b} is now {aside}") from None
        raise


def _remove_dead(root):
    """The temporary directories whose writers are dead. Under the root's lock."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not _TEMPORARY.match(name):
            continue
        try:
            lock = Lock(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        with lock:
            if lock.take(wait=False):
                shutil.rmtree(path)


def read_epoch(root):
    try:
        text = manifest.read_file(os.path.join(root, "epoch"), 32)
    except FileNotFoundError:
        return 0
    if not re.fullmatch(rb"\d{1,18}\n", text):
        raise DamagedError(f"{root}/epoch: does not contain a number; stop all jobs that use this root, then write "
                           "the highest epoch of its manifests into the file")
    return int(text)


def _write_new(path, data):
    with open(path, "xb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def claim(root):
    """The epoch of this job: TP_EPOCH, which tp-run sets, or one more than the root's, claimed once by a process, for the
    saves of all of its threads."""
    if os.environ.get("TP_EPOCH", "").isdigit():
        return int(os.environ["TP_EPOCH"])
    key = os.path.realpath(root)
    with _claiming:
        if key not in _claimed:
            _claimed[key] = _claim_next(root)
        return _claimed[key]


def _claim_next(root):
    with _root_lock(root):
        epoch, path = read_epoch(root) + 1, os.path.join(root, "epoch")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".tmp")
        _write_new(path + ".tmp", b"%d\n" % epoch)
        os.rename(path + ".tmp", path)
        _sync(root)
    return epoch


def _is_own(folder):
    """Whether it is a step of this format, which may be damaged, as the programs decide it."""
    with contextlib.suppress(CheckpointError, OSError):
        manifest.read(folder)
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return all(name == manifest.NAME or fnmatch.fnmatchcase(name, "rank-*.h5") for name in names)


class _Temporary:
    """The temporary directory of a save. Its lock says that its writer lives: without one, a later save removes it."""

    def __init__(self, path):
        self.path, self.lock, self.owner = path, None, os.getpid()
        self.keep = self.removed = False

    def make(self, root):
        os.mkdir(self.path, 0o700)
        self.lock = Lock(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.lock.take(wait=False)
        _limit_access(self.lock.fd, root)

    def remove(self):
        """Only the process that made it does. After an interrupt, another call continues."""
        if self.removed or os.getpid() != self.owner:
            return
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)
        if self.lock:
            self.lock.close()
        self.removed = True


class Transaction:
    """A step that is being written into `path`, which commit() makes appear and abort() removes. The process that
    made it owns it; when that process dies, a later one removes the directory. Threads may have one each, also in
    the same root: their steps appear one after the other."""

    def __init__(self, root, step, force=False):
        self.root, self.step, self.force = local_path(root), step_number(step), force
        self.target = os.path.join(self.root, f"step-{self.step:08d}")
        if os.path.exists(os.path.join(self.root, manifest.NAME)):
            raise CheckpointError(f"{self.root}: is a step itself; give the root that contains it")
        if os.path.lexists(self.root) and not os.path.isdir(self.root):
            raise CheckpointError(f"{self.root}: is not a folder; give the root, a folder that contains steps, or that is made")
        name = os.path.basename(os.path.normpath(self.root))
        if STEP_NAME.match(name) or _TEMPORARY.match(name):
            raise CheckpointError(f"{self.root}: has the name of a step, so steps in it would not be found; give the root")
        self._check_new()
        self.save_id = secrets.token_hex(16)
        self.path = f"{self.target}.tmp-{self.save_id}"
        self._temporary = _Temporary(self.path)
        weakref.finalize(self, self._temporary.remove)  # after an error of async_save nobody calls abort()
        try:
            os.makedirs(self.root, exist_ok=True)
            self.epoch = claim(self.root)
            with _root_lock(self.root):
                _remove_dead(self.root)
                self._temporary.make(self.root)
        except OSError as e:
            self.abort()
            raise CheckpointError(f"{self.path}: step {step} cannot be begun: {e}") from e
        except BaseException:  # KeyboardInterrupt
            self.abort()
            raise

    def _check_new(self):
        if not os.path.lexists(self.target):
            return
        if not self.force:
            raise ExistsError(f"{self.target}: exists already; force=True replaces it")
        if not _is_own(self.target):
            raise ExistsError(f"{self.target}: exists, and is not a checkpoint of this project, so force=True does not "
                              "replace it; move it, or write to another root")

    def commit(self, contents):
        """Write the manifest and make the step appear. On an error, nothing has appeared."""
        try:
            self._commit(contents)
        except OSError as e:
            raise CheckpointError(f"{self.path}: step {self.step} was not committed: {e}") from e
        self.abort()  # removes the step that was replaced, if there was one

    def _commit(self, contents):
        contents.save_id, contents.epoch, contents.step = self.save_id, self.epoch, self.step
        path = os.path.join(self.path, manifest.NAME)
        manifest.check_new(contents, path)
        _write_new(path, manifest.format_bytes(contents))
        mode = os.stat(path).st_mode & 0o777
        folder = self._temporary.lock.fd
        os.fchmod(folder, mode | (mode & 0o444) >> 2)
        os.fsync(folder)
        with _root_lock(self.root):
            newest = read_epoch(self.root)
            if newest > self.epoch:
                raise StaleError(f"{self.root}: belongs to a newer job (epoch {newest}; this one has {self.epoch}); "
                                 f"step {self.step} was not committed")
            exchanged = self._appear()
            try:
                _sync(self.root)
            except OSError:  # the rename may not be on disk, so undo it
                self._disappear(exchanged)
                raise
            self._point_latest()

    def _appear(self):
        """Rename the directory to its name. True: it was exchanged with an existing step."""
        exchanged, error = False, _rename(self.path, self.target, _NOREPLACE)
        if error in _NO_FLAGS:  # a plain rename fails if the step exists, too
            try:
                os.rename(self.path, self.target)
                error = 0
            except OSError as e:
                error = e.errno
        if error in (errno.EEXIST, errno.ENOTEMPTY):
            self._check_new()
            exchanged, error = True, 0
            try:
                _exchange(self.path, self.target)
            except OSError as e:
                raise CheckpointError(f"{self.target}: cannot exchange it with {self.path}: {e.strerror}") from e
        if error:
            raise CheckpointError(f"{self.target}: cannot rename {self.path} to it: {os.strerror(error)}")
        return exchanged

    def _disappear(self, exchanged):
        """Take the new name back. If that fails, the temporary directory may be the step that was replaced, so it is
        kept."""
        try:
            if exchanged:
                _exchange(self.target, self.path)
            else:
                os.rename(self.target, self.path)
        except OSError:
            self._temporary.keep = True

    def _point_latest(self):
        link = os.path.join(self.root, "latest")
        with contextlib.suppress(OSError):  # only a convenience
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link + ".tmp")
            os.symlink(os.path.basename(steps(self.root)[max(steps(self.root))]), link + ".tmp")
            os.rename(link + ".tmp", link)

    def abort(self):
        """Remove what was begun. Also after commit()."""
        self._temporary.remove()
