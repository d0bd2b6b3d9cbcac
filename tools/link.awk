# tools/link.awk - which source files each program is linked from: those that define what it uses.
#
#   awk -f tools/link.awk NAME=MAIN[,FOLDER] ... -- FILE...
#
# FILE... are the sources and headers that programs may use. NAME is a program, and MAIN the source
# file of its main(). For each program the output is a make variable:
#
#   uses_NAME := MAIN, the files that define what MAIN mentions, the files that define what these
#                mention, and so on; without their suffix
#
# So `make` builds for each program what it uses and nothing else, and there are no lists of objects
# to maintain. The linker checks the result: a file that is missed is an undefined reference.
#
# FOLDER makes the program a variant: what the files of FOLDER define replaces what other files
# define under the same name. The tests replace a device or add faults in this way.
#
# A file mentions every word of its code and of the headers that it includes; prototypes do not count. The
# first file that defines a name counts, in the order of FILE, so that every awk finds the same.
# Definitions are recognized by clang-format's layout: they begin in the first column.
# tests/cli/test_build.py has an example of each rule.

function base(path) { sub(/\.[a-z]+$/, "", path); return path }

# The name of the function or variable that a line of the first column defines, "" when it has none.
function defined(line) {
    if (line ~ /^(struct|union|enum)[A-Za-z0-9_ ]*{|^(typedef|extern|_Static_assert)[^A-Za-z0-9_]/ ||
        line ~ /^[^=]*\(.*;[ \t]*$/ || !match(line, /^[A-Za-z_][A-Za-z0-9_]*[ *][^(=[;]*[(=[;]/))
        return ""
    line = substr(line, 1, RLENGTH - 1)
    sub(/[ \t]+$/, "", line)
    sub(/.*[^A-Za-z0-9_]/, "", line)
    return line
}

# What one file defines, mentions and includes. An included .c file counts as part of `file`.
function read_file(path, file,    text, n, i, part, name) {
    getline text <path
    close(path)
    n = split(text, part, /\n#include "/)
    for (i = 2; i <= n; i++) {
        name = substr(part[i], 1, index(part[i], "\"") - 1)
        if (name ~ /\.c$/)
            read_file(name, file)
        else
            includes[file] = includes[file] " " name
    }
    gsub(/"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'|\/\*([^*]|\*+[^*\/])*\*+\/|\/\/[^\n]*/, " ", text)
    gsub(/__attribute__\(\(([^()]|\([^()]*\))*\)\)/, " ", text) # `used` and `format` are not names of ours
    if (path ~ /\.(h|cuh)$/) { # without prototypes
        gsub(/\n[A-Za-z_][^;{}()=]*\([^;{}]*;|\nextern [^;{]*;/, "\n", text)
    } else {
        n = split(text, part, "\n")
        for (i = 1; i <= n; i++)
            if ((name = defined(part[i])) == "main")
                has_main[file] = 1
            else if (name != "" && part[i] ~ /(^|[ \t])static /)
                seen[file, name] = 1 # its own, whatever other files define under this name
            else if (name != "")
                defines[file] = defines[file] " " name
    }
    n = split(text, part, /[^A-Za-z0-9_]+/)
    for (i = 1; i <= n; i++)
        if (!((file, part[i]) in seen)) {
            seen[file, part[i]] = 1
            mentions[file] = mentions[file] " " part[i]
        }
}

# Put the names that a file defines into the table `owner`, unless an earlier file defined them.
function own(owner, file,    i, n, names) {
    n = split(defines[file], names, " ")
    for (i = 1; i <= n; i++)
        if (!(names[i] in owner))
            owner[names[i]] = file
}

function need(file) {
    if (file in defines && !(file in needed)) {
        needed[file] = 1
        todo[++n_todo] = file
    }
}

# Print the variable of one program.
function link(program, main, folder,    i, j, n, word, file, list) {
    split("", needed)
    split("", replaced)
    n_todo = 0
    own(replaced, main)
    for (i = 1; i <= n_files; i++)
        if (folder != "" && index(files[i], folder "/") == 1)
            own(replaced, files[i])
    need(main)
    for (i = 1; i <= n_todo; i++) {
        file = todo[i]
        if (file !~ /\.(h|cuh)$/)
            list = list " " base(file)
        n = split(includes[file], word, " ")
        for (j = 1; j <= n; j++)
            need(word[j])
        n = split(mentions[file], word, " ")
        for (j = 1; j <= n; j++)
            need(word[j] in replaced ? replaced[word[j]] : word[j] in owner ? owner[word[j]] : "")
    }
    print "uses_" program " :=" list
}

BEGIN {
    RS = "\001" # getline reads a whole file
    for (i = 1; i < ARGC && ARGV[i] != "--"; i++) {
        programs[i] = ARGV[i]
        split(ARGV[i], part, /[=,]/)
        ARGV[++ARGC] = part[2] # a main file is a source file, too
        if (part[3] != "")
            replacing[part[3]] = 1
    }
    for (n_programs = i++ - 1; i <= ARGC; i++)
        if (ARGV[i] != "" && !(ARGV[i] in defines)) {
            files[++n_files] = ARGV[i]
            defines[ARGV[i]] = ""
            read_file(ARGV[i], ARGV[i])
        }
    for (i = 1; i <= n_files; i++) {
        replaces = 0
        for (folder in replacing)
            replaces += index(files[i], folder "/") == 1
        if (!replaces && !(files[i] in has_main) && files[i] !~ /^tests\//)
            own(owner, files[i])
    }
    for (i = 1; i <= n_programs; i++) {
        split(programs[i], part, /[=,]/)
        link(part[1], part[2], part[3])
    }
}
