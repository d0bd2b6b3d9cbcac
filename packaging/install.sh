#!/usr/bin/env bash
#
# packaging/install.sh install|uninstall - the files of `make install`; make calls this.
#
# Both actions go through the same list, so that uninstall removes exactly what install wrote.
# Folders stay. From the environment:
#
#   PREFIX DESTDIR          where, an absolute path; DESTDIR is a staging folder in front of all paths
#   LIBDIR                  default: PREFIX/lib
#   PYTHONDIR               default: where Debian's Python looks below PREFIX
#   ZSHDIR                  default: PREFIX/share/zsh/site-functions
#   BIN LIB SHARE           what to install; VERSION SONAME PYTHON are make's
set -euo pipefail

action=${1:?install or uninstall}
libdir=${LIBDIR:-$PREFIX/lib}
zshdir=${ZSHDIR:-$PREFIX/share/zsh/site-functions}

for folder in PREFIX LIBDIR PYTHONDIR ZSHDIR; do
    case ${!folder-} in
    *[[:cntrl:]]* | *'$'*)
        echo "$action: $folder has a control character or a \$, and pkg-config cannot read such a path; use another one" >&2
        exit 2
        ;;
    /*) ;;
    *)
        [ "$folder" != PREFIX ] && [ -z "${!folder-}" ] && continue
        echo "$action: $folder is '${!folder-}', expected an absolute path" >&2
        exit 2
        ;;
    esac
done

# Debian's Python finds modules of /usr and /usr/local in dist-packages, and those of other prefixes,
# such as ~/.local, in site-packages.
python_dir() {
    "$PYTHON" - "$PREFIX" <<'PY'
import sys
import sysconfig
prefix, schemes = sys.argv[1], sysconfig.get_scheme_names()
scheme, base = "posix_prefix", prefix
if prefix == "/usr" and "deb_system" in schemes:
    scheme = "deb_system"
elif prefix == "/usr/local" and "posix_local" in schemes:
    scheme, base = "posix_local", "/usr"
print(sysconfig.get_path("purelib", scheme, {"base": base, "platbase": base}))
PY
}

put() { # MODE SOURCE TARGET
    if [ "$action" = install ]; then
        install -D -m "$1" -- "$2" "$DESTDIR$3"
    else
        rm -f -- "$DESTDIR$3"
    fi
}

put_link() { # POINTS-TO TARGET
    if [ "$action" = install ]; then
        ln -sf -- "$1" "$DESTDIR$2"
    else
        rm -f -- "$DESTDIR$2"
    fi
}

programs() {
    local p
    for p in tp-train tp-reshard tp-ckpt tp-run; do
        put 755 "$BIN/$p" "$PREFIX/bin/$p"
        put 644 "$SHARE/man/$p.1" "$PREFIX/share/man/man1/$p.1"
        put 644 "$SHARE/bash/$p" "$PREFIX/share/bash-completion/completions/$p"
        put 644 "$SHARE/zsh/_$p" "$zshdir/_$p"
        put 644 "$SHARE/fish/$p.fish" "$PREFIX/share/fish/vendor_completions.d/$p.fish"
    done
}

# A path in pkg-config's file: with a backslash before what would end a word, quote or begin a comment.
pc_path() {
    printf '%s\n' "$1" | sed 's/[][ "'\''\\#&;|<>*?`~!]/\\&/g'
}

library() {
    local line
    pc=$(mktemp)
    trap 'rm -f "$pc"' EXIT
    while IFS= read -r line; do
        case $line in
        *@PREFIX@) line=${line%@PREFIX@}$(pc_path "$PREFIX") ;;
        *@LIBDIR@) line=${line%@LIBDIR@}$(pc_path "$libdir") ;;
        *@VERSION@) line=${line%@VERSION@}$VERSION ;;
        esac
        printf '%s\n' "$line"
    done <packaging/tp-progress.pc.in >"$pc"
    put 644 "$LIB/libtp-progress.so.$VERSION" "$libdir/libtp-progress.so.$VERSION"
    put_link "libtp-progress.so.$VERSION" "$libdir/$SONAME"
    put_link "$SONAME" "$libdir/libtp-progress.so"
    put 644 "$LIB/libtp-progress.a" "$libdir/libtp-progress.a"
    put 644 progress/tp_progress.h "$PREFIX/include/tp_progress.h"
    put 644 "$pc" "$libdir/pkgconfig/tp-progress.pc"
    put 644 progress/tp_progress.py "${PYTHONDIR:-$(python_dir)}/tp_progress.py"
}

# The CUDA library, if `make cuda` has built it. It is not a library to link with, so it has a folder of
# its own, where the programs look for it (cli/cuda_library.c).
cuda() {
    if [ "$action" = uninstall ] || [ -e "$LIB/libtp-cuda.so" ]; then
        put 644 "$LIB/libtp-cuda.so" "$PREFIX/lib/tp/libtp-cuda.so"
    fi
}

programs
library
cuda
echo "$action: $DESTDIR$PREFIX"
