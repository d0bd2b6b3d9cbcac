"""The option tables of the programs, from variants of the programs that print them.

A description is a dict: program ("tp-ckpt show"), version, intro, tail, and options or verbs. The
fields of an option are those of core/opt.h; kind is "argument", "optional argument", "heading",
"flag", "value" or "optional value".
"""
import json
import os
import subprocess

PROGRAMS = ["tp-train", "tp-reshard", "tp-ckpt", "tp-run"]


def ask(folder, program, *words):
    r = subprocess.run([os.path.join(folder, program), *words], stdout=subprocess.PIPE,
                       stdin=subprocess.DEVNULL, check=True)
    return json.loads(r.stdout)


def describe(folder, program):
    """The description of a program; each of its verbs has `options`, too.

    tp-run is both: it has verbs, and options for a command line without a verb.
    """
    d = ask(folder, program)
    for verb in d.get("verbs", []):
        own = ask(folder, program, verb["name"])
        verb.update(options=own["options"], intro=own["intro"], tail=own["tail"])
    if "verbs" in d and program == "tp-run":
        d["options"] = ask(folder, program, "JOB.yaml")["options"]
    return d


def is_argument(option):
    return option["kind"] in ("argument", "optional argument")


def is_option(option):
    return option["kind"] in ("flag", "value", "optional value")
