#!/usr/bin/env bash
#
# tests/check/deps.sh - the rules of the source tree that a compiler does not enforce.
#
#   1. A folder includes only headers of the folders that are named with it in `may_include`.
#   2. Includes of our own headers are folder-qualified.
#   3. No exit and no printing below cli/ (but for core/progress.c, the line that shows progress);
#      none of the banned functions anywhere.
#   4. Every header compiles alone, twice.
#
# Prints each breach as FILE:LINE: sentence. Exit 1 when there is any.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

folders="core layout device kernels comm ckpt reshard trainer progress orchestrator cli"

# The folders that one may include, itself aside. kernels/ knows dtypes and boxes, nothing more of
# layout/.
may_include() {
    case $1 in
    core) ;;
    layout) echo core ;;
    device) echo core ;;
    kernels) echo core device layout/dtype.h layout/box.h ;;
    comm) echo core ;;
    ckpt) echo core layout ;;
    reshard) echo core layout device kernels comm ckpt ;;
    trainer) echo core layout device kernels comm ckpt reshard ;;
    progress) echo core ;;
    orchestrator) echo core layout ckpt ;;
    cli) echo core layout device kernels comm ckpt reshard trainer orchestrator ;;
    esac
}

breaches=0
breach() {
    echo "$*"
    breaches=$((breaches + 1))
}

sources() { # FOLDER
    find "$1" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort
}

allowed() { # FOLDER HEADER
    local a
    [ "${2%%/*}" = "$1" ] && return 0
    for a in $(may_include "$1"); do
        [ "$a" = "$2" ] && return 0
        [ "$a" = "${2%%/*}" ] && return 0
    done
    return 1
}

check_includes() {
    local dir file line header
    for dir in $folders; do
        [ -d "$dir" ] || continue
        while IFS=: read -r file line header; do
            case $header in
            */*) allowed "$dir" "$header" ||
                breach "$file:$line: $dir/ may not include \"$header\"" ;;
            *) breach "$file:$line: \"$header\" is not folder-qualified" ;;
            esac
        done < <(sources "$dir" | xargs -r grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
            sed -E 's/^([^:]*):([0-9]+):[^"]*"([^"]*)".*/\1:\2:\3/')
    done
}

# Source lines with comments and strings blanked, as FILE:LINE:TEXT.
code_lines() {
    awk '
        FNR == 1 { in_comment = 0 }
        {
            line = $0
            gsub(/\\./, "", line)
            gsub(/"[^"]*"/, "\"\"", line)
            out = ""
            while (length(line)) {
                if (in_comment) {
                    i = index(line, "*/")
                    if (!i) break
                    line = substr(line, i + 2)
                    in_comment = 0
                } else {
                    i = index(line, "/*")
                    j = index(line, "//")
                    if (j && (!i || j < i)) { out = out substr(line, 1, j - 1); break }
                    if (!i) { out = out line; break }
                    out = out substr(line, 1, i - 1)
                    line = substr(line, i + 2)
                    in_comment = 1
                }
            }
            print FILENAME ":" FNR ":" out
        }' "$@"
}

# Each has a better one here: bounded, checked or reentrant.
banned='gets|strcpy|strcat|sprintf|vsprintf|strncpy|strtok|atoi|atol|atoll|atof|tmpnam|mktemp|alloca|system|rand|srand'
printing='(printf|vprintf|puts|putchar|perror)[[:space:]]*\(|fprintf[[:space:]]*\([[:space:]]*std(out|err)'

check_calls() {
    local dir files file line text
    for dir in $folders; do
        mapfile -t files < <(sources "$dir")
        [ ${#files[@]} -gt 0 ] || continue
        while IFS=: read -r file line text; do
            breach "$file:$line: banned function: ${text#"${text%%[![:space:]]*}"}"
        done < <(code_lines "${files[@]}" | grep -E "(^|[^A-Za-z0-9_.>])($banned)[[:space:]]*\(")
        [ "$dir" = cli ] && continue
        while IFS=: read -r file line text; do
            breach "$file:$line: exits below cli/: ${text#"${text%%[![:space:]]*}"}"
        done < <(code_lines "${files[@]}" | grep -E '(^|[^A-Za-z0-9_.>])(exit|abort)[[:space:]]*\(')
        while IFS=: read -r file line text; do
            breach "$file:$line: prints below cli/: ${text#"${text%%[![:space:]]*}"}"
        done < <(code_lines "${files[@]}" | grep -v -e '^core/progress.c:' -e '__attribute__' |
            grep -E "(^|[^A-Za-z0-9_.>])($printing)")
    done
}

check_headers() {
    local dir header said flags
    read -ra flags <<<"$(pkg-config --cflags ompi-c jansson hdf5-serial 2>/dev/null)"
    for dir in $folders; do
        while read -r header; do
            said=$(printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
                ${CC:-gcc} -std=c11 -D_GNU_SOURCE -I. "${flags[@]}" \
                    -fopenmp -Wall -Wextra -Werror -fsyntax-only -x c - 2>&1) ||
                breach "$header:1: does not compile alone: $(head -n 2 <<<"$said" | tail -n 1)"
        done < <([ -d "$dir" ] && find "$dir" -name '*.h' | sort)
    done
}

check_includes
check_calls
check_headers
if [ "$breaches" -gt 0 ]; then
    echo "$breaches breaches of the rules of the tree (tests/check/deps.sh says which)"
    exit 1
fi
echo "  ok    includes go one way, no banned calls, headers stand alone"
