"""Completions in real shells: options, verbs, layouts, types and files.

needs: tp-train tp-reshard tp-ckpt tp-run
"""
import os
import pty
import re
import select
import subprocess
import time

import pytest

import harness

# What is typed, and what it becomes after Tab.
TYPED = [
    ("tp-ckpt ve", "tp-ckpt verify "),
    ("tp-ckpt show --st", "--step"),
    ("tp-run resi", "tp-run resize "),
    ("tp-train --warm", "--warmup"),
    ("tp-train --dtype b", "--dtype bf16 "),
    ("tp-train --dtype=f", "--dtype=fp32"),
    ("tp-train --resume=m", "--resume=must"),
    ("tp-train --layout tp4p", "--layout tp4pp"),
    ("tp-train --layout=tp4d", "--layout=tp4dp"),
    ("tp-reshard ckpt-a --to tp2dp2z", "tp2dp2zero"),
    ("tp-reshard ckpt-a --to tp2dp2zero", "tp2dp2zero3"),
    ("tp-reshard ck", "tp-reshard ckpt-a/"),
    ("tp-ckpt export ckpt-a --format s", "--format safetensors "),
    ("tp-ckpt export ckpt-a -o ck", "-o ckpt-a/"),
    ("tp-run job.", "tp-run job.yaml "),
    ("tp-run stop job.yaml --w", "--wait "),
    ("tp-run node job.yaml d", "node job.yaml down "),
    ("tp-run resize job.yaml tp2d", "job.yaml tp2dp"),
]
# What is typed, and what must not be offered.
NOT_OFFERED = [
    ("tp-train --layout tp4", "tp4tp"),   # an axis that the layout already has
    ("tp-run job.", "job.txt"),
    ("tp-reshard --to tp2 --", "--warmup"),  # another program's option
]


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, argv, folder, setup):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], argv, {
                "PATH": "%s:/usr/bin:/bin" % harness.BIN, "HOME": str(folder), "TERM": "dumb",
                "LANG": "C.UTF-8", "PS1": "$ ", "INPUTRC": "/dev/null"})
        self.type("".join(line + "\n" for line in setup) + "echo the shell is' 'ready\n")
        self.read_until("the shell is ready", 60)

    def type(self, text):
        os.write(self.fd, text.encode())

    def read_until(self, text, seconds):
        """What the shell prints until it has printed text, or until the time is over."""
        end, got = time.monotonic() + seconds, ""
        while text not in got and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                got += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x07\x00\r]", "",
                              os.read(self.fd, 65536).decode(errors="replace"))
        return got

    def complete(self, line, text, seconds):
        self.type(line + "\t\t")
        got = self.read_until(text, seconds)
        os.close(self.fd)
        return got


def bash(installed, folder):
    return Terminal(["bash", "--norc", "--noprofile", "-i"], folder, [
        "bind 'set enable-bracketed-paste off'", "bind 'set bell-style none'",
        "for f in '%s'/share/bash-completion/completions/*; do . \"$f\"; done" % installed])


def zsh(installed, folder):
    return Terminal(["zsh", "-f", "-i"], folder, [
        "fpath=('%s/share/zsh/site-functions' $fpath)" % installed,
        "autoload -Uz compinit && compinit -u -d .zcompdump", "setopt nobeep", "bindkey -e"])


class Fish:
    """fish prints what it would offer; no terminal is needed."""

    def __init__(self, installed, folder):
        self.folder, self.files = folder, installed / "share/fish/vendor_completions.d"

    def complete(self, line, text, _):
        script = "for f in '%s'/*.fish; source $f; end; complete -C '%s'" % (self.files, line)
        r = subprocess.run(["fish", "--no-config", "-c", script], cwd=self.folder, text=True,
                           stdout=subprocess.PIPE, check=True,
                           env={"PATH": "%s:/usr/bin:/bin" % harness.BIN, "HOME": str(self.folder)})
        start = line[:line.rfind(" ") + 1]
        return "\n".join(start + offer.split("\t")[0] + " " for offer in r.stdout.splitlines())


SHELLS = {"bash": bash, "zsh": zsh, "fish": Fish}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ckpt-a").mkdir()
    for name in ("job.yaml", "job.txt"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize("typed,completed", TYPED)
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes(installed, folder, shell, typed, completed):
    got = SHELLS[shell](installed, folder).complete(typed, completed, 60)
    assert completed in got


@pytest.mark.parametrize("typed,wrong", NOT_OFFERED)
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_does_not_offer(installed, folder, shell, typed, wrong):
    assert wrong not in SHELLS[shell](installed, folder).complete(typed, wrong, 1)
