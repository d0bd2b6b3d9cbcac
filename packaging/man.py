#!/usr/bin/env python3
"""packaging/man.py - write the manual pages.

    man.py DESCRIBE OUT     DESCRIBE: folder of the programs that describe themselves

A page takes its synopsis and options from the program's option tables, and its other sections from
packaging/man/PROGRAM.txt: `# HEADING`, paragraphs, and indented lines that are examples. Words in
`backquotes` become bold.
"""
import os
import re
import sys
import time

import describe

HERE = os.path.dirname(os.path.abspath(__file__))
AFTER_OPTIONS = ("EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "NOTES")


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    text = text.replace("`", "\\(ga").replace("~", "\\(ti")
    return re.sub(r"(?m)^\.", r"\\&.", text)


def prose(text):
    """Filled text: hyphens of words stay hyphens, `words` become bold."""
    out = []
    for i, part in enumerate(text.split("`")):
        if i % 2:
            out.append("\\fB%s\\fR" % escape(part))
        else:
            part = escape(part)
            part = re.sub(r"(?<=[A-Za-z0-9])\\-(?=[A-Za-z0-9])", "-", part)
            out.append(re.sub(r"(?<![\w/-])(\\-\\-?[a-z][a-z-]*(?:\\-[a-z]+)*)", r"\\fB\1\\fR", part))
    return "".join(out)


def paragraphs(text):
    """Lines of roff for text with blank lines between paragraphs and indented examples."""
    lines = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if re.match(r" {2,}|\t", block):
            body = [escape(line) for line in block.splitlines()]
            indent = min(len(line) - len(line.lstrip()) for line in body)
            lines += [".PP", ".RS 4", ".EX"] + [line[indent:] for line in body] + [".EE", ".RE"]
        else:
            lines += [".PP"] + sentences(prose(" ".join(block.split())))
    return lines


def sentences(text):
    """One sentence on a line, as roff wants it."""
    return re.split(r"(?<=[a-z0-9)\]]\.) +(?=[A-Z])", text)


def value_of(option):
    """Alternatives are separate words, and a line may end behind each."""
    return "|\\:".join("\\fI%s\\fR" % escape(v) for v in option["value"].split("|")) if option["value"] else ""


def option_term(option):
    if describe.is_argument(option):
        return "\\fI%s\\fR" % escape(option["name"])
    term = "\\fB%s\\fR" % escape("--" + option["name"])
    if option["letter"]:
        term = "\\fB%s\\fR, %s" % (escape("-" + option["letter"]), term)
    if option["kind"] == "optional value":
        return "%s[=%s]" % (term, value_of(option))
    return term + (" " + value_of(option) if option["value"] else "")


def option_list(options):
    lines = []
    for o in options:
        if o["kind"] == "heading":
            lines += [".SS " + escape(o["help"][:1].upper() + o["help"][1:])]
            continue
        lines += [".TP", option_term(o)] + sentences(prose(" ".join(o["help"].split())))
    return lines


def synopsis(text):
    """The program's name and words of options bold, what the user puts in their place italic."""
    lines = []
    for line in text.strip().splitlines():
        words = []
        for word in line.split():
            name = word.strip("[].|")
            face = "I" if name.isupper() or name == "options" or "." in name else "B"
            words.append(escape(word).replace(escape(name), "\\f%s%s\\fR" % (face, escape(name))) if name else word)
        lines += [".br"] * bool(lines) + [" ".join(words)]
    return lines


def sections(program):
    """{heading: text} of packaging/man/PROGRAM.txt, in its order."""
    with open(os.path.join(HERE, "man", program + ".txt"), encoding="utf-8") as f:
        parts = re.split(r"(?m)^# (.*)\n", f.read())
    return dict(zip(parts[1::2], parts[2::2]))


def verb_section(program, verb):
    lines = [".SS " + escape("%s %s" % (program, verb["name"]))]
    lines += synopsis("%s %s %s [options]" % (program, verb["name"], verb["args"]))
    lines += paragraphs(verb["intro"] or verb["help"][:1].upper() + verb["help"][1:] + ".")
    lines += option_list([o for o in verb["options"] if o["name"] not in ("help", "version")])
    return lines + (paragraphs(verb["tail"]) if verb["tail"] else [])


def date():
    """Today, or what a reproducible build gives."""
    return time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))


def page(d, others):
    program = d["program"]
    text = sections(program)
    lines = ['.\\" Generated from the option tables of %s and packaging/man/%s.txt.' % (program, program),
             '.TH %s 1 %s "tp %s" "User Commands"' % (program.upper().replace("-", "\\-"), date(),
                                                  d["version"]),
             ".SH NAME", "%s \\- %s" % (escape(program), text.pop("NAME").strip()), ".SH SYNOPSIS"]
    lines += synopsis(text.pop("SYNOPSIS"))
    for heading, body in text.items():
        if heading not in AFTER_OPTIONS:
            lines += [".SH " + heading] + paragraphs(body)
    if "options" in d:
        lines += [".SH OPTIONS"] + option_list(d["options"])
    if "verbs" in d:
        lines += [".SH VERBS"] + paragraphs("Every verb has --help and --version.")
        for verb in d["verbs"]:
            lines += verb_section(program, verb)
    for heading in AFTER_OPTIONS:
        if heading in text:
            lines += [".SH " + heading] + paragraphs(text[heading])
    lines += [".SH SEE ALSO", ",\n".join(".BR %s (1)" % escape(o) for o in others if o != program)
              .replace(",\n", " ,\n")]
    # a heading begins a paragraph itself
    return re.sub(r"(?m)^(\.S[HS] .*)\n\.PP$", r"\1", "\n".join(lines)) + "\n"


def main():
    folder, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    for program in describe.PROGRAMS:
        with open(os.path.join(out, program + ".1"), "w", encoding="utf-8") as f:
            f.write(page(describe.describe(folder, program), describe.PROGRAMS))


if __name__ == "__main__":
    main()
