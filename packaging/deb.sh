#!/usr/bin/env bash
#
# packaging/deb.sh - build Debian packages of this tree into build/deb/; `make deb` calls this.
#
# dpkg-buildpackage runs in a copy of the tree, so that nothing is left in it. lintian checks the
# result.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/build/deb
source=$out/tp-$VERSION
packaged=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)

if [ "$packaged" != "$VERSION" ]; then
    echo "deb: packaging/debian/changelog has version $packaged, the Makefile $VERSION" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$source"
# Its folders one by one: other goals of make may change the folder above them meanwhile, of which tar complains.
find . -mindepth 1 -maxdepth 1 '!' -name build '!' -name bin '!' -name lib '!' -name demo '!' -name .venv -print0 |
    tar -c --exclude-vcs --exclude=__pycache__ --null -T - | tar -x -C "$source"
cp -r "$source/packaging/debian" "$source/debian"
# nvcc's objects, which Debian's flags do not change: make compiles those again that are older than their sources.
if [ -e build/plain/cuda/.flags ]; then
    tar -c --exclude='*.keep' build/plain/cuda/.flags build/plain/cuda/kernels | tar -x -C "$source"
fi

# make's own variables are for the outer build
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
(cd "$source" && dpkg-buildpackage --build=binary --no-pre-clean --no-sign >"$out/build.log" 2>&1) || {
    tail -n 30 "$out/build.log" >&2
    echo "deb: dpkg-buildpackage failed; all of its output is in $out/build.log" >&2
    exit 1
}
rm -rf "$source"
lintian --fail-on error,warning "$out"/*.changes
echo "deb: packages in $out:"
(cd "$out" && ls -sh -- *.deb)
