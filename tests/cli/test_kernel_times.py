"""tests/gpu/kernel_times.cc, which writes what a GPU does, with a CUPTI of this test: what it does at the end of a program."""
import harness

SOURCE = harness.REPO / "tests" / "gpu" / "kernel_times.cc"

CUPTI = r"""#pragma once
#include <cstddef>
#include <cstdint>
#define CUPTIAPI
#define CUPTI_TIMESTAMP_UNKNOWN 0LL
typedef void *CUcontext;
enum CUptiResult { CUPTI_SUCCESS, CUPTI_ERROR_MAX_LIMIT_REACHED };
enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };
enum CUpti_ActivityKind {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET
};
struct CUpti_Activity { CUpti_ActivityKind kind; uint64_t start, end; const char *name; };
typedef CUpti_Activity CUpti_ActivityKernel9, CUpti_ActivityMemcpy5, CUpti_ActivityMemset4;
typedef void (*give_fn)(uint8_t **, size_t *, size_t *);
typedef void (*take_fn)(CUcontext, uint32_t, uint8_t *, size_t, size_t);
CUptiResult cuptiActivityRegisterCallbacks(give_fn, take_fn);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind);
CUptiResult cuptiActivityFlushPeriod(uint32_t);
CUptiResult cuptiActivityFlushAll(uint32_t);
CUptiResult cuptiActivityGetNextRecord(uint8_t *, size_t, CUpti_Activity **);
"""

PROGRAM = r"""
#include <cstdlib>
#include <cstring>
#include "cupti.h"

extern "C" int InitializeInjection(void);
static give_fn give;
static take_fn take;

CUptiResult cuptiActivityRegisterCallbacks(give_fn g, take_fn t) { give = g; take = t; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityFlushPeriod(uint32_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **r)
{
    CUpti_Activity *next = *r ? *r + 1 : reinterpret_cast<CUpti_Activity *>(buffer);
    if (reinterpret_cast<uint8_t *>(next) >= buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *r = next;
    return CUPTI_SUCCESS;
}

template <size_t N> static void deliver(const CUpti_Activity (&records)[N])
{
    uint8_t *buffer;
    size_t size, n;
    give(&buffer, &size, &n);
    memcpy(buffer, records, sizeof records);
    take(nullptr, 0, buffer, size, sizeof records);
}

static const CUpti_Activity RECORDS[] = { RECORDS_HERE }, LATE[] = { { CUPTI_ACTIVITY_KIND_MEMSET, 300, 310, nullptr } };
CUptiResult cuptiActivityFlushAll(uint32_t) { deliver(RECORDS); return CUPTI_SUCCESS; }
static void flush_late(void) { if (IS_LATE) deliver(LATE); }

int main(void)
{
    atexit(flush_late); /* before the library's, so it is called after that */
    return !InitializeInjection();
}
"""

WHOLE = '{ CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 100, 150, "_Z4workv" }, { CUPTI_ACTIVITY_KIND_MEMCPY, 200, 230, nullptr }'


def times(folder, records, is_late):
    """The lines of a program whose last flush gives these records, and which may flush once more after it."""
    (folder / "cupti.h").write_text(CUPTI)
    program = folder / "program.cc"
    program.write_text(PROGRAM.replace("RECORDS_HERE", records).replace("IS_LATE", str(is_late).lower()))
    harness.ok("clang++", "-std=c++17", "-I", folder, program, SOURCE, "-o", folder / "program")
    r = harness.ok(folder / "program", env={"KERNEL_TIMES": str(folder / "times"), "MALLOC_PERTURB_": "165"})
    assert r.err == "", r
    return (folder / "times").read_text().splitlines()


def test_a_flush_after_the_last_one_writes_nothing(tmp_path):
    """CUPTI's thread flushes until the process has ended, so also when the file is closed."""
    assert times(tmp_path, WHOLE, True) == ["100\t50\twork()", "200\t30\tcopy"]


def test_what_has_no_times_is_left_out(tmp_path):
    """A kernel that has not ended at the forced flush, and one of which CUPTI knows no time."""
    kernels = "".join(', { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, %s, "_Z4workv" }' % x for x in ("300, 0", "0, 0"))
    assert times(tmp_path, WHOLE + kernels, False) == ["100\t50\twork()", "200\t30\tcopy"]
