"""tests/bench/lib/command.py - runs a command and says what it took."""
import os
import resource
import shlex
import subprocess
import time


def run_counted(command, env=None):
    """(wall seconds, CPU seconds, stdout) of a command and its children. env: variables that are set beside this program's."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    p = subprocess.run([str(c) for c in command], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       errors="replace", check=False)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if p.returncode:
        raise SystemExit("%s: exit %d: %s" % (shlex.join(map(str, command)), p.returncode, p.stderr))
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, p.stdout
