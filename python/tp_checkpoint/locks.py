"""Locks of files and folders that other processes respect, the C programs too (flock).

A lock belongs to the process that took it, and ends with it. A forked child, such as a worker of a DataLoader, has
copies of all descriptors, and a copy keeps the lock for as long as the child lives: so a child closes its copies first.
"""
import contextlib
import errno
import fcntl
import os
import threading

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL}  # of a file system
_open = set()
_guard = threading.RLock()  # of _open; a fork waits for it, because it must find every descriptor in _open


class Lock:
    """An open file or folder that can be locked."""

    def __init__(self, path, flags):
        with _guard:
            self.fd = os.open(path, flags, 0o600)
            _open.add(self)

    def take(self, wait=True):
        """False: another process or thread has it, or the file system has no locks."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in _NO_LOCKS | {errno.EWOULDBLOCK}:
                raise
            return False
        return True

    def close(self):
        """Close it, which gives the lock back. More calls do nothing."""
        with _guard:
            if self in _open:
                _open.remove(self)
                with contextlib.suppress(OSError):  # a child that did not come from os.fork() may have a copy
                    fcntl.flock(self.fd, fcntl.LOCK_UN)
                os.close(self.fd)
                self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _close_in_child():
    global _guard
    for lock in _open:
        os.close(lock.fd)  # the parent still has the lock
        lock.fd = -1
    _open.clear()
    _guard = threading.RLock()


os.register_at_fork(before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_close_in_child)
