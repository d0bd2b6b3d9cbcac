"""tests/gpu/commands.py - the commands that tests/gpu/gpu_check.py runs at the moment, and how all of them are ended."""
import os
import pathlib
import signal
import subprocess
import threading


def end_session(session):
    """Kill all processes of a session. mpirun gives each rank a process group of its own, so a group is not enough."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:  # the name, in brackets, may have spaces; then: state, parent, group, session
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, IndexError, ValueError):
            pass  # it has ended


class Commands:
    """Those of all parts. Each is in a session of its own, so a signal to this script does not reach them: after `end` they
    would go on and hold the GPU."""

    def __init__(self):
        self.lock = threading.RLock()  # a signal may come while this thread has it
        self.sessions = set()
        self.ended_by = None  # the name of a signal

    def begin(self, argv, **options):
        """A process; None after `end`."""
        with self.lock:
            if self.ended_by:
                return None
            p = subprocess.Popen(argv, start_new_session=True, **options)
            self.sessions.add(p.pid)
            return p

    def forget(self, process):
        with self.lock:
            self.sessions.discard(process.pid)

    def end(self, number, _frame=None):
        """A signal handler: ends all, and none begins any more. What the parts have found by then is in the report."""
        with self.lock:
            self.ended_by = signal.Signals(number).name
            for session in self.sessions:
                end_session(session)

    def end_at_signals(self):
        for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.end)
