"""docs/TUTORIAL.md is true: every command in it runs, and prints what the page shows.

The page's ```console blocks are the test. Lines that begin with `$ ` run in one bash, in order.
The lines below a command must occur in its output in that order; numbers and times may differ, and
`...` stands for any lines.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "TUTORIAL.md"
SAVED_AND_STOPPED = 75


def commands(page):
    """[(command, [expected lines])] of the console blocks."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def masked(line):
    """Without what differs from run to run: numbers, spacing."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9][0-9.,:e+-]*", "N", line)).strip()


def assert_shown(command, expected, output):
    lines = [masked(line) for line in output.splitlines()]
    at = 0
    for line in expected:
        if line == "...":
            continue
        assert masked(line) in lines[at:], (
            f"the page shows {line!r} below {command!r}, which printed:\n{output[-3000:]}")
        at += lines[at:].index(masked(line)) + 1


def wanted_status(command):
    return SAVED_AND_STOPPED if "--exit-step" in command else 0


def test_every_command_of_the_tutorial(tmp_path):
    steps = commands(PAGE)
    assert len(steps) > 15
    env = dict(os.environ, HOME=str(tmp_path), PIP_NO_INPUT="1",
               PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    shell = subprocess.Popen(["bash"], cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for number, (command, expected) in enumerate(steps):
        mark = f"--- end of command {number}: "
        shell.stdin.write(f"{command}\nstatus=$?; echo; echo '{mark}'$status\n")
        shell.stdin.flush()
        output = ""
        while True:
            line = shell.stdout.readline()
            assert line, f"the shell ended in {command!r}:\n{output}"
            if line.startswith(mark):
                status = int(line[len(mark):])
                break
            output += line
        assert status == wanted_status(command), f"{command!r} exited with {status}:\n{output}"
        assert_shown(command, expected, output)
    shell.stdin.close()
    assert shell.wait(timeout=30) == 0
