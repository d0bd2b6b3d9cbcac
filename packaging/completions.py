#!/usr/bin/env python3
"""packaging/completions.py - write the completions for bash, zsh and fish.

    completions.py DESCRIBE OUT     DESCRIBE: folder of the programs that describe themselves

Writes OUT/bash/PROGRAM, OUT/zsh/_PROGRAM and OUT/fish/PROGRAM.fish. The name of a
value in the option tables says what it can be: `fp32|bf16` is a choice, SPEC a layout, FILE a file,
and so on (KINDS). Layouts are completed axis by axis: tp4 offers tp4pp, tp4dp, ...; tp4pp offers tp4pp2, ....
"""
import os
import re
import sys

import describe

# What the name of a value stands for. Everything else, such as N, has no completion.
KINDS = {"FILE": "file", "PATH": "file", "SRC": "file", "JOB.yaml": "job",
         "DIR": "folder", "ROOT": "folder", "CKPT": "folder", "OUT": "folder", "A": "folder",
         "B": "folder", "SPEC": "layout", "SPEC|RANKS": "layout"}
AXES = "tp pp vpp dp cp ep sp zero"
DEGREES = "1 2 4 8 16 32 64"


def kind_of(name):
    """(kind, choices) of a value or an argument."""
    if name and re.fullmatch(r"[a-z0-9_|-]+", name):
        return "choice", name.split("|")
    return KINDS.get(name, "none"), []


def option_kind(option):
    # a batch of B sequences is not a folder: one letter names a folder only as an argument
    value = option["value"]
    return kind_of(value if value and len(value) > 1 else None)


def commands(d):
    """(verb, its options, its arguments) of every command line; verb "" is the program alone."""
    found = [("", d["options"])] if "options" in d else []
    found += [(v["name"], v["options"]) for v in d.get("verbs", [])]
    return [(verb, [o for o in options if describe.is_option(o)],
             [o for o in options if describe.is_argument(o)]) for verb, options in found]


def words_of(option):
    return ["--" + option["name"]] + (["-" + option["letter"]] if option["letter"] else [])


def help_of(option):
    """The help of an option, up to the first semicolon."""
    return " ".join(option["help"].split()).split("; ")[0]


# ---- bash ------------------------------------------------------------------------------------

BASH = """# bash completion of PROGRAM, generated from its option tables

_FUNCTION_layout() { # the next axis of a layout, or its degree
    local word=${1,,} axes=" AXES " rest axis
    rest=$word
    while [[ $rest =~ ^,?(vpp|tp|pp|dp|cp|ep|zero)=?[0-9]+ || $rest =~ ^,?(sp) ]]; do
        axes=${axes/ ${BASH_REMATCH[1]} / }
        rest=${rest#"${BASH_REMATCH[0]}"}
    done
    if [[ $axes == *" ${rest:-none} "* ]]; then
        if [[ $rest == zero ]]; then set -- 1 3; else set -- DEGREES; fi
        COMPREPLY=("${@/#/$word}")
        return
    fi
    word=${word%"$rest"}
    for axis in $axes; do
        [[ $axis == "$rest"* ]] && COMPREPLY+=("$word$axis")
    done
    [[ -z $rest && -n $word ]] && COMPREPLY+=("$word")
    compopt -o nospace 2>/dev/null
}

_FUNCTION_value() { # complete $cur as a value of this kind
    case $1 in
    file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folder) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    job)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -X '!*.y*ml' -- "$cur"; compgen -d -- "$cur")
        ;;
    layout) _FUNCTION_layout "$cur" ;;
    choice:*) mapfile -t COMPREPLY < <(compgen -W "${1#choice:}" -- "$cur") ;;
    esac
}

_FUNCTION_table() { # what one command line takes: its options and arguments
    options='' values=() arguments=()
    case $1 in
TABLE
    esac
}

_FUNCTION() {
    local cur=$2 prev i word verb='' options arguments n=0
    local -A values
    COMPREPLY=()
    prev=${COMP_WORDS[COMP_CWORD-1]}
    if [[ $cur == = ]]; then # --option=
        prev=$prev= cur=''
    elif [[ $prev == = ]]; then # --option=part
        prev=${COMP_WORDS[COMP_CWORD-2]}=
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == 1)); then
            case $word in VERBS) verb=$word; _FUNCTION_table "$verb"; continue ;; esac
            _FUNCTION_table ''
        fi
        if [[ ${COMP_WORDS[i+1]} == = ]]; then
            ((i += 2))
        elif [[ -v values["$word"] ]]; then
            ((i++))
        elif [[ $word != -* ]]; then
            ((n++))
        fi
    done
    ((COMP_CWORD == 1)) && _FUNCTION_table ''
    if [[ -v values["$prev"] && $prev == -* ]]; then
        _FUNCTION_value "${values[$prev]}"
    elif [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    else
        ((n < ${#arguments[@]})) && _FUNCTION_value "${arguments[n]}"
        if ((COMP_CWORD == 1)); then
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "VERB_LIST" -- "$cur")
        fi
    fi
}

complete -F _FUNCTION PROGRAM
"""


def bash_kind(kind, choices):
    return "'choice:%s'" % " ".join(choices) if kind == "choice" else kind


def bash(d):
    table = []
    verbs = [v["name"] for v in d.get("verbs", [])]
    all_commands = commands(d) if "options" in d else [("", [], [])] + commands(d)
    for verb, options, arguments in all_commands:
        words = [w for o in options for w in words_of(o)] or ["--help", "--version"]
        values = ["[%s]=%s" % (w, bash_kind(*option_kind(o)))
                  for o in options if o["kind"] == "value" for w in words_of(o)]
        values += ["[--%s=]=%s" % (o["name"], bash_kind(*option_kind(o)))
                   for o in options if o["kind"] != "flag"]
        table.append("    %s)\n        options='%s'" % (verb or "''", " ".join(words)))
        table.append("        values=(%s)" % " ".join(values))
        table.append("        arguments=(%s)" % " ".join(bash_kind(*kind_of(o["name"]))
                                                      for o in arguments))
        table.append("        ;;")
    text = BASH.replace("TABLE", "\n".join(table)).replace("VERB_LIST", " ".join(verbs))
    text = text.replace("VERBS", "|".join(verbs) or "''").replace("DEGREES", DEGREES)
    return (text.replace("AXES", AXES).replace("_FUNCTION", "_" + d["program"].replace("-", "_"))
            .replace("PROGRAM", d["program"]))


# ---- zsh -------------------------------------------------------------------------------------

ZSH_LAYOUT = """_FUNCTION_layout() { # the next axis of a layout, or its degree
    local word=$PREFIX rest axis
    local -a axes=(AXES) degrees=(DEGREES)
    rest=$word
    while [[ $rest =~ '^,?(vpp|tp|pp|dp|cp|ep|zero)=?[0-9]+' || $rest =~ '^,?(sp)' ]]; do
        axes=(${axes:#$match[1]})
        rest=${rest#$MATCH}
    done
    if [[ -n $rest && ${axes[(Ie)$rest]} -gt 0 ]]; then
        [[ $rest == zero ]] && degrees=(1 3)
        compadd -- $word$^degrees
        return
    fi
    word=${word%$rest}
    compadd -S '' -- $word$^axes
    [[ -z $rest && -n $word ]] && compadd -- $word
}
"""


def zsh_text(text):
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]") \
        .replace(":", "\\:")


def zsh_action(kind, choices, function):
    return {"file": "_files", "folder": "_files -/", "job": "_files -g \"*.y(a|)ml\"",
            "layout": function + "_layout", "choice": "(%s)" % " ".join(choices)}.get(kind, " ")


def zsh_option(option, function):
    words, text = words_of(option), zsh_text(help_of(option))
    first = "'(%s)'{%s}" % (" ".join(words), ",".join(
        w + ("=" if option["kind"] == "value" and w.startswith("--") else "") for w in words))
    if len(words) == 1:
        first = "'" + words[0] + {"value": "=", "optional value": "=-"}.get(option["kind"], "")
        quote = ""
    else:
        quote = "'"
    spec = "%s%s[%s]" % (first, quote, text)
    if option["kind"] != "flag":
        colon = "::" if option["kind"] == "optional value" else ":"
        spec += "%s%s:%s" % (colon, zsh_text(option["value"]),
                             zsh_action(*option_kind(option), function))
    return spec + "'"


def zsh_arguments(options, arguments, function, indent):
    specs = [zsh_option(o, function) for o in options]
    for i, o in enumerate(arguments, 1):
        specs.append("'%d%s%s:%s'" % (i, "::" if o["kind"] == "optional argument" else ":",
                                      zsh_text(o["name"]),
                                      zsh_action(*kind_of(o["name"]), function)))
    return ("_arguments -s \\\n" + " \\\n".join(indent + "    " + s for s in specs))


def zsh(d):
    function = "_" + d["program"].replace("-", "_")
    lines = ["#compdef %s" % d["program"],
             "# zsh completion of %s, generated from its option tables" % d["program"], "",
             ZSH_LAYOUT.replace("_FUNCTION", function).replace("AXES", AXES)
             .replace("DEGREES", DEGREES)]
    if "verbs" not in d:
        _, options, arguments = commands(d)[0]
        lines.append(zsh_arguments(options, arguments, function, ""))
        return "\n".join(lines) + "\n"
    lines += ["local -a verbs=("] + ["    '%s:%s'" % (v["name"], zsh_text(v["help"]))
                                     for v in d["verbs"]] + [")"]
    lines += ["if ((CURRENT == 2)) && [[ $PREFIX != -* ]]; then", "    _describe verb verbs"]
    if "options" in d:
        lines.append("    _files -g \"*.y(a|)ml\"")
    lines += ["    return", "fi", "local verb=$words[2]", "case $verb in"]
    for verb, options, arguments in commands(d):
        if verb:
            lines += ["%s)" % verb, "    shift words", "    ((CURRENT--))", "    "
                      + zsh_arguments(options, arguments, function, "    "), "    ;;"]
    lines.append("*)")
    if "options" in d:
        _, options, arguments = commands(d)[0]
        lines.append("    " + zsh_arguments(options, arguments, function, "    "))
    else:
        lines.append("    _arguments '(-h --help)'{-h,--help}'[print the help and exit]' "
                     "'--version[print the version and exit]'")
    return "\n".join(lines + ["    ;;", "esac"]) + "\n"


# ---- fish ------------------------------------------------------------------------------------

FISH_LAYOUT = """function FUNCTION_layout --description 'the next axis of a layout, or its degree'
    set -l word (commandline -ct | string replace -r '^--?[a-z-]+=' '')
    set -l axes AXES
    set -l rest $word
    while set -l found (string match -r '^,?(?:(vpp|tp|pp|dp|cp|ep|zero)=?[0-9]+|(sp))' -- $rest)
        set axes (string match -v -- $found[2] $axes)
        set rest (string sub -s (math (string length -- $found[1]) + 1) -- $rest)
    end
    if test -n "$rest"; and contains -- $rest $axes
        set -l degrees DEGREES
        test $rest = zero; and set degrees 1 3
        printf '%s\\n' $word$degrees
        return
    end
    set -l start (string sub -l (math (string length -- "$word") - (string length -- "$rest")) -- "$word")
    printf '%s\\n' $start$axes
    test -z "$rest"; and printf '%s\\n' $start
end
"""
FISH_JOB = """function FUNCTION_job --description 'YAML files'
    __fish_complete_path (commandline -ct) | string match -r '^.*(?:\\.ya?ml|/)(?:\\t.*)?$'
end
"""


def fish_quote(text):
    return "'%s'" % text.replace("\\", "\\\\").replace("'", "\\'")


def fish_values(kind, choices, function):
    """The part of `complete` for a value; files are completed with -F, nothing with -x alone."""
    return {"file": "-r -F", "folder": "-x -a '(__fish_complete_directories)'",
            "job": "-x -a '(%s_job)'" % function, "layout": "-x -a '(%s_layout)'" % function,
            "choice": "-x -a '%s'" % " ".join(choices)}.get(kind, "-x")


def fish(d):
    program, function = d["program"], "__" + d["program"].replace("-", "_")
    verbs = [v["name"] for v in d.get("verbs", [])]
    lines = ["# fish completion of %s, generated from its option tables" % program, "",
             (FISH_LAYOUT + (FISH_JOB if verbs and "options" in d else ""))
             .replace("FUNCTION", function).replace("AXES", AXES).replace("DEGREES", DEGREES),
             "complete -c %s -f" % program]
    no_verb = "not __fish_seen_subcommand_from %s" % " ".join(verbs)
    for v in d.get("verbs", []):
        lines.append("complete -c %s -n '__fish_is_nth_token 1' -a %s -d %s"
                     % (program, v["name"], fish_quote(v["help"])))
    for verb, options, arguments in commands(d):
        when = "-n '__fish_seen_subcommand_from %s' " % verb if verb else \
            "-n '%s' " % no_verb if verbs else ""
        for o in options:
            line = "complete -c %s %s-l %s" % (program, when, o["name"])
            line += " -s " + o["letter"] if o["letter"] else ""
            if o["kind"] == "value":
                line += " " + fish_values(*option_kind(o), function)
            elif o["kind"] == "optional value" and option_kind(o)[0] == "choice":
                line += " -f -a '%s'" % " ".join(option_kind(o)[1])
            lines.append(line + " -d " + fish_quote(help_of(o)))
        for n, o in enumerate(arguments, 2 if verb else 1):
            kind, choices = kind_of(o["name"])
            if kind != "none":
                at = "%s__fish_is_nth_token %d" % (when[4:-2] + "; and " if verb else "", n)
                lines.append("complete -c %s -n '%s' %s" % (program, at,
                                                         fish_values(kind, choices, function)
                                                         .replace("-r ", "").replace("-x", "-f")))
    return "\n".join(lines) + "\n"


def main():
    folder, out = sys.argv[1:]
    for program in describe.PROGRAMS:
        d = describe.describe(folder, program)
        for shell, name, write in (("bash", program, bash), ("zsh", "_" + program, zsh),
                                   ("fish", program + ".fish", fish)):
            os.makedirs(os.path.join(out, shell), exist_ok=True)
            with open(os.path.join(out, shell, name), "w", encoding="utf-8") as f:
                f.write(write(d))


if __name__ == "__main__":
    main()
