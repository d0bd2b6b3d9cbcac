#!/usr/bin/env bash
#
# tests/run.sh - run what `make tests` built and count it; `make test` calls this.
#
# Unit programs (Criterion) run side by side, MPI programs one per launch, then pytest. The last
# line is `N passed, N failed` (and `, N skipped` when any were); exit 1 when any failed.
#
# From the environment: BUILD BIN (where programs lie), T (pattern: SUITE/TEST with wildcards, or a
# part of a test's, file's or program's name), SANITIZE, LONG=1 (also the long tests), PYTHON, JOBS.
#
# Under a sanitizer a report counts as a failure even where the program exits 0: Criterion runs
# every test in a process of its own and does not notice what happens when that one ends.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

BUILD=${BUILD:-build/plain}
BIN=${BIN:-bin}
PYTHON=${PYTHON:-/usr/bin/python3}
JOBS=${JOBS:-2}
T=${T:-}
out=$PWD/$BUILD/test-results
export BUILD BIN T out

# name of a result file -> the program ran with this many passed, failed, skipped
record() { # NAME PASSED FAILED SKIPPED
    echo "$2 $3 $4" >"$out/$1.count"
    local note="$2 passed"
    [ "$3" -gt 0 ] && note="$note, $3 FAILED"
    [ "$4" -gt 0 ] && note="$note, $4 skipped"
    printf '  %-34s %s\n' "$1" "$note"
}

sanitizer_logs() { # NAME: reports written while it ran
    find "$out" -name "$1.san.*" 2>/dev/null
}

sanitizer_env() { # NAME
    export ASAN_OPTIONS="log_path=$out/$1.san:detect_leaks=1:abort_on_error=0"
    export UBSAN_OPTIONS="log_path=$out/$1.san:print_stacktrace=1"
    export TSAN_OPTIONS="log_path=$out/$1.san"
    export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
}

# ---- one program (called again through xargs) ------------------------------------------------

criterion_filter() { # NAME: the --filter for T, nothing when the whole program is meant
    case $T in
    "") ;;
    */*) echo "--filter=$T" ;;
    *) case $1 in
        *$T*) ;;
        *) echo "--filter=@(*$T*/*|*/*$T*)" ;;
        esac ;;
    esac
}

run_unit() { # NAME
    local name=$1 rc passed failed skipped filter
    filter=$(criterion_filter "$name")
    sanitizer_env "$name"
    timeout 900 "$BUILD/tests/$name" --jobs 1 --tap="$out/$name.tap" ${filter:+"$filter"} \
        >"$out/$name.log" 2>&1 </dev/null
    rc=$?
    touch "$out/$name.tap"
    passed=$(grep '^ok' "$out/$name.tap" | grep -vc '# SKIP')
    failed=$(grep -c '^not ok' "$out/$name.tap")
    skipped=$(grep -c '^ok.*# SKIP' "$out/$name.tap")
    # Those that the filter left out are listed as skipped too.
    [ -n "$filter" ] && skipped=$((skipped - $(grep -c '^ok.*# SKIP test was skipped' "$out/$name.tap")))
    [ -n "$filter" ] && [ $((passed + failed + skipped)) -eq 0 ] && [ $rc -eq 0 ] && return
    if [ $rc -ne 0 ] && [ "$failed" -eq 0 ]; then
        echo "$name ended with status $rc" >>"$out/$name.log"
        failed=1
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        echo "$name holds no test" >>"$out/$name.log"
        failed=1
    fi
    [ -n "$(sanitizer_logs "$name")" ] && failed=$((failed + 1))
    record "$name" "$passed" "$failed" "$skipped"
}

run_mpi() { # NAME RANKS
    local name=mpi-$1-$2 rc
    sanitizer_env "$name"
    # Whole stacks: what MPI's plugins leave is known by the libraries that called them.
    ASAN_OPTIONS+=:fast_unwind_on_malloc=0
    timeout 300 mpirun -n "$2" "$BUILD/tests/mpi/$1" >"$out/$name.log" 2>&1 </dev/null
    rc=$?
    if [ $rc -eq 0 ] && [ -z "$(sanitizer_logs "$name")" ]; then
        record "$name" 1 0 0
    else
        echo "$name ended with status $rc" >>"$out/$name.log"
        record "$name" 0 1 0
    fi
}

run_check() { # NAME COMMAND...
    local name=check-$1
    shift
    if "$@" >"$out/$name.log" 2>&1 </dev/null; then
        record "$name" 1 0 0
    else
        record "$name" 0 1 0
    fi
}

if [ "${1:-}" = --unit ]; then
    run_unit "$2"
    exit 0
fi

# ---- the whole -------------------------------------------------------------------------------

wanted() { # NAME: does the pattern mean this one (or is there none)?
    case $1 in
    *$T*) return 0 ;;
    esac
    return 1
}

units() {
    [ -d tests/unit ] || return 0
    local f
    for f in tests/unit/*.c; do
        [ -e "$f" ] && basename "$f" .c
    done | xargs -r -n 1 -P "$JOBS" "$0" --unit
}

# A program of tests/mpi says in its head with how many ranks it is to run: `ranks: 2 4`.
mpis() {
    local f name n ranks
    for f in tests/mpi/*.c; do
        [ -e "$f" ] || continue
        name=$(basename "$f" .c)
        wanted "mpi-$name" || continue
        ranks=$(sed -n 's/.*ranks: *\([0-9][0-9 ]*\).*/\1/p' "$f" | head -n 1)
        for n in ${ranks:-2}; do
            run_mpi "$name" "$n"
        done
    done
}

pytest_words() { # T as an expression for pytest -k
    tr -s '/*?[]:, ' '\n' <<<"$T" | sed '/^$/d' | paste -sd ' ' | sed 's/ / and /g'
}

pythons() {
    local rc args=(-q -rs -n "$JOBS" --dist loadfile -p no:cacheprovider
        -c tests/pytest.ini --rootdir=. --junitxml="$out/pytest.xml")
    [ -n "$T" ] && args+=(-k "$(pytest_words)")
    [ -z "${LONG:-}" ] && args+=(-m "not long")
    ls tests/cli/test_*.py >/dev/null 2>&1 || return 0
    sanitizer_env pytest
    # For ranks of mpirun whole stacks, as above; for all programs they would cost too much time.
    [ -n "${SANITIZE:-}" ] &&
        export OMPI_MCA_mca_base_env_list="ASAN_OPTIONS=$ASAN_OPTIONS:fast_unwind_on_malloc=0"
    TP_BIN=$PWD/$BIN TP_BUILD=$PWD/$BUILD TP_SANITIZE=${SANITIZE:-} PYTHONDONTWRITEBYTECODE=1 \
        timeout 5000 "$PYTHON" -m pytest "${args[@]}" tests/cli </dev/null 2>&1 |
        tee "$out/pytest.log"
    rc=${PIPESTATUS[0]}
    [ "$rc" -eq 5 ] && [ -n "$T" ] && return 0
    count_junit "$rc"
}

count_junit() { # RC of pytest
    local counts passed failed skipped
    counts=$("$PYTHON" -c '
import sys, xml.etree.ElementTree as et
s = next(et.parse(sys.argv[1]).getroot().iter("testsuite"))
bad = int(s.get("failures")) + int(s.get("errors"))
print(int(s.get("tests")) - bad - int(s.get("skipped")), bad, s.get("skipped"))' \
        "$out/pytest.xml" 2>/dev/null) || counts="0 1 0"
    read -r passed failed skipped <<<"$counts"
    [ "$1" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
    [ -n "$(sanitizer_logs pytest)" ] && failed=$((failed + 1))
    record pytest "$passed" "$failed" "$skipped"
}

checks() {
    wanted check-deps && run_check deps make --no-print-directory check-deps
    if [ -n "${LONG:-}" ] && wanted check-fresh-debian; then
        run_check fresh-debian tests/check/fresh-debian.sh
    fi
}

# What went wrong, once more and together, so that it need not be searched for.
show_failures() {
    grep -h '^ok.*# SKIP' "$out"/*.tap 2>/dev/null | grep -v 'test was skipped' | sed 's/^ok - /  skipped: /'
    local f name failed
    for f in "$out"/*.count; do
        [ -e "$f" ] || continue
        name=$(basename "$f" .count)
        read -r _ failed _ <"$f"
        [ "$failed" -eq 0 ] && continue
        echo
        echo "---- $name failed"
        [ "$name" = pytest ] || tail -n 60 "$out/$name.log"
        find "$out" -name "$name.san.*" | head -n 3 | while read -r log; do
            echo "-- $log"
            head -n 40 "$log"
        done
    done
}

main() {
    rm -rf "$out"
    mkdir -p "$out"
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_WAIT_POLICY=passive
    if [ "$(id -u)" -eq 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    [ -n "${LONG:-}" ] && export TP_LONG=1
    units
    mpis
    checks
    pythons
    show_failures
    cat "$out"/*.count 2>/dev/null | awk -v t="$T" '
        { passed += $1; failed += $2; skipped += $3 }
        END {
            if (passed + failed + skipped == 0) {
                print "no test matches " t
                failed = 1
            }
            printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
            exit failed > 0
        }'
}

main
