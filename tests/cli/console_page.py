"""Runs the ```console blocks of a page of the documentation.

Lines that begin with `$ ` run in one bash, in order. The lines below a command must occur in its
output in that order; numbers and times may differ, and `...` stands for any lines.
"""
import re
import subprocess


def blocks(page, language):
    """The texts of the page's blocks of this language."""
    return re.findall(r"^```%s\n(.*?)^```" % language, page.read_text(), re.S | re.M)


def commands(page):
    """[(command, [expected lines])] of the console blocks."""
    found = []
    for block in blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def masked(line):
    """The line without numbers and spacing, which differ from run to run."""
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


def run_page(page, cwd, env, wanted_status=lambda command: 0):
    """Run every command of the page, without a pause, and compare its output. Returns the number of commands."""
    steps = commands(page)
    shell = subprocess.Popen(["bash"], cwd=cwd, env=env, text=True, stdin=subprocess.PIPE,
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
    return len(steps)
