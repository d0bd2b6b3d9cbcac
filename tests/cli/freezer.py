"""The kernel's freezer stops processes so that no signal wakes them, like a suspended virtual machine.
This uses cgroup v2 (cgroup.freeze) or v1, and needs root."""
import contextlib
import os
import pathlib
import time

V2 = [pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified")]
V1 = pathlib.Path("/sys/fs/cgroup/freezer")


class Freezer:
    """A new cgroup. SIGKILL ends a process that v2 has frozen. One that v1 has frozen ends only after it is
    thawed, like a process that waits for a dead disk (`holds`)."""

    def __init__(self, parent, v2):
        self.parent, self.v2, self.holds = parent, v2, not v2
        self.group = parent / ("tp-test-%d" % os.getpid())
        self.group.mkdir()
        if v2 and not (self.group / "cgroup.freeze").exists():
            self.group.rmdir()
            raise OSError("%s has no cgroup.freeze" % parent)

    def freeze(self, pids):
        for pid in pids:
            (self.group / "cgroup.procs").write_text(str(pid))
        self._set(True)

    def thaw(self):
        self._set(False)

    def _set(self, frozen):
        if self.v2:
            (self.group / "cgroup.freeze").write_text("1" if frozen else "0")
            return
        (self.group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        end = time.monotonic() + 10
        while frozen and (self.group / "freezer.state").read_text().strip() != "FROZEN":
            assert time.monotonic() < end, "does not freeze"
            time.sleep(0.01)

    def close(self):
        self.thaw()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for pid in (self.group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (self.parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.05)


def open_freezer(must_hold=False):
    """Returns (freezer, ""), or (None, the reason)."""
    why = "needs root" if os.geteuid() else "needs a cgroup freezer (v1, or v2 with cgroup.freeze)"
    for parent, v2 in [(V1, False)] + [(p, True) for p in V2]:
        if os.geteuid() or (must_hold and v2) or not (parent / "cgroup.procs").exists():
            continue
        try:
            return Freezer(parent, v2), ""
        except OSError as e:
            why = str(e)
    return None, "needs cgroup v1's freezer" if must_hold and "needs root" not in why else why
