"""Manual pages: they are correct roff, and describe all options that --help shows.

needs: tp-train tp-reshard tp-ckpt tp-run
"""
import re
import subprocess

import pytest

from harness import ok

VERBS = {"tp-train": [], "tp-reshard": [],
         "tp-ckpt": ["ls", "show", "verify", "digest", "diff", "export", "import", "prune"],
         "tp-run": ["plan", "status", "events", "stop", "resize", "submit", "node"]}


def shown(path):
    """The page as `man` prints it, on one line without hyphenation."""
    r = subprocess.run(["man", "--no-hyphenation", "--no-justification", "-l", str(path)], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True,
                       env={"MANWIDTH": "1000", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"})
    assert not r.stderr
    return r.stdout


@pytest.mark.parametrize("program", VERBS)
def test_groff_and_mandoc_accept_a_page_without_warnings(installed, program):
    page = installed / "share/man/man1" / (program + ".1")
    for command in (["groff", "-man", "-ww", "-z", "-Tutf8"], ["mandoc", "-Tlint", "-Wwarning"]):
        r = subprocess.run([*command, str(page)], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, check=False)
        assert r.returncode == 0 and not r.stdout, r.stdout


@pytest.mark.parametrize("program", VERBS)
def test_a_page_has_every_option_and_verb_of_the_help(installed, program):
    text = shown(installed / "share/man/man1" / (program + ".1"))
    for verb in VERBS[program] or [None]:
        helped = ok(program, *([verb] if verb else []), "--help").out
        options = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", helped, re.M)
        assert len(options) >= 2
        part = text
        if verb:
            assert re.search(r"^ *%s %s$" % (program, verb), text, re.M)
            part = re.split(r"(?m)^ *%s %s$" % (program, verb), text)[1]
            part = re.split(r"(?m)^ *%s \w+$|^[A-Z]" % program, part)[0]
            options = [o for o in options if o not in ("--help", "--version")]
        missing = [o for o in options if o not in part]
        assert not missing


@pytest.mark.parametrize("program", VERBS)
def test_a_page_has_the_sections_that_readers_look_for(installed, program):
    text = shown(installed / "share/man/man1" / (program + ".1"))
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert re.search(r"^%s$" % heading, text, re.M), heading
