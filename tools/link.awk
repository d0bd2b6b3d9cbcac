# tools/link.awk - which source files each program is linked from: those that define what it uses.
#
#   awk -f tools/link.awk NAME=MAIN[,FOLDER] ... -- FILE...
#
# FILE... are the sources and headers that programs may use. NAME is a program, and MAIN the source
# file of its `main`. For each program the output is a make variable:
#
#   uses_NAME := MAIN and the files that define the functions and tables which MAIN mentions, the
#                files that define what these mention, and so on; without their suffix
#
# So a program is built from what it uses and from nothing else, and there are no lists of objects
# to maintain. The linker checks the result: a file that is missed is an undefined reference.
#
# FOLDER makes the program a variant: what the files of FOLDER define replaces what the other files
# define under the same name. The tests replace a device or add faults in this way.
#
# Definitions are recognized by clang-format's layout: they begin in the first column. A header
# counts with its inline functions and macros, not with its prototypes.

function base(path) { sub(/\.[a-z]+$/, "", path); return path }

# The line without strings and comments. State: in_comment.
function code(line,    out, i, j) {
    gsub(/\\./, "", line)
    gsub(/'[^']*'/, "", line)
    gsub(/"[^"]*"/, "", line)
    out = ""
    while (line != "") {
        if (in_comment) {
            if (!(i = index(line, "*/")))
                break
            line = substr(line, i + 2)
            in_comment = 0
        }
        i = index(line, "/*")
        j = index(line, "//")
        if (j && (!i || j < i))
            return out substr(line, 1, j - 1)
        if (!i)
            return out line
        out = out substr(line, 1, i - 1) " "
        line = substr(line, i + 2)
        in_comment = 1
    }
    return out
}

# The name that a line of the first column defines, "" when it defines none.
function defined(line) {
    if (line !~ /^[A-Za-z_]/ || line ~ /^(struct|union|enum)[A-Za-z0-9_ ]*{/ ||
        line ~ /^(typedef|extern|_Static_assert)[^A-Za-z0-9_]/)
        return ""
    if (!match(line, /[(=[;]/) || line ~ /^[^=]*\(.*;[ \t]*$/)
        return "" # neither a function nor a variable, or a prototype
    line = substr(line, 1, RSTART - 1)
    sub(/[ \t]+$/, "", line)
    if (line !~ /[ \t*]/)
        return "" # a macro's call, or a label
    sub(/.*[^A-Za-z0-9_]/, "", line)
    return line
}

function mention(file, line,    i, n, words) {
    n = split(line, words, /[^A-Za-z0-9_]+/)
    for (i = 1; i <= n; i++)
        if (words[i] ~ /^[A-Za-z]/ && !((file, words[i]) in seen)) {
            seen[file, words[i]] = 1
            mentions[file] = mentions[file] " " words[i]
        }
}

# One file: what it defines, mentions and includes. `as` is the file that the compiler sees: an
# included .c counts as part of the file that includes it.
function read_file(path, as,    line, header, body, name, word) {
    header = path ~ /\.(h|cuh)$/
    body = in_comment = 0
    while ((getline line < path) > 0) {
        if (line ~ /^[ \t]*#[ \t]*include[ \t]*"/) {
            split(line, word, "\"")
            if (word[2] ~ /\.c$/)
                read_file(word[2], as)
            else
                includes[as] = includes[as] " " word[2]
            continue
        }
        line = code(line)
        if (!header) {
            if ((name = defined(line)) != "" && line ~ /^static[^A-Za-z0-9_]/)
                seen[as, name] = 1 # its own, whatever others define under this name
            else if (name == "main")
                has_main[as] = 1
            else if (name != "")
                definitions[as] = definitions[as] " " name
            mention(as, line)
            continue
        }
        if (line ~ /^(static|#[ \t]*define)[^A-Za-z0-9_]/)
            body = 1
        if (body)
            mention(as, line)
        if (line ~ /^}/ || line ~ /;[ \t]*$/ && line ~ /^static/ || line ~ /^#/ && line !~ /\\$/)
            body = 0
    }
    close(path)
}

function need(file) {
    if (file != "" && !(file in needed)) {
        needed[file] = 1
        todo[++n_todo] = file
    }
}

# The names that a file defines, into the table `owner`.
function define(owner, file,    i, n, words) {
    n = split(definitions[file], words, " ")
    for (i = 1; i <= n; i++)
        owner[words[i]] = file
}

# The variable of one program.
function link(program, main, folder,    i, j, n, words, file, list, name) {
    split("", needed)
    split("", own)
    n_todo = 0
    for (i = 1; i <= n_files; i++)
        if (files[i] == main || folder != "" && index(files[i], folder "/") == 1)
            define(own, files[i])
    need(main)
    for (i = 1; i <= n_todo; i++) {
        file = todo[i]
        if (file ~ /\.(c|cu)$/)
            list = list " " base(file)
        n = split(includes[file], words, " ")
        for (j = 1; j <= n; j++)
            if (words[j] in known)
                need(words[j])
        n = split(mentions[file], words, " ")
        for (j = 1; j <= n; j++) {
            name = words[j]
            need(name in own ? own[name] : name in defines ? defines[name] : "")
        }
    }
    print "uses_" program " :=" list
}

function add_file(path) {
    if (path in known)
        return
    known[path] = 1
    files[++n_files] = path
    read_file(path, path)
}

# Whether a file belongs to a variant.
function replaces(path,    folder) {
    for (folder in variants)
        if (index(path, folder "/") == 1)
            return 1
    return 0
}

BEGIN {
    for (i = 1; i < ARGC && ARGV[i] != "--"; i++) {
        n_parts = split(ARGV[i], part, /[=,]/)
        programs[++n_programs] = ARGV[i]
        mains[part[2]] = 1
        if (n_parts > 2)
            variants[part[3]] = 1
    }
    for (i++; i < ARGC; i++)
        add_file(ARGV[i])
    for (path in mains)
        add_file(path)
    for (i = 1; i <= n_files; i++)
        if (!(files[i] in has_main) && files[i] !~ /^tests\// && !replaces(files[i]))
            define(defines, files[i])
    for (i = 1; i <= n_programs; i++) {
        split(programs[i], part, /[=,]/)
        link(part[1], part[2], part[3])
    }
}
