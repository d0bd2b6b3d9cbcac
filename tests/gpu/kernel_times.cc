/*
 * tests/gpu/kernel_times.cc - what a GPU does while a program runs, by CUPTI. CUDA's driver loads
 * this library into the program where CUDA_INJECTION64_PATH names it. The file that KERNEL_TIMES
 * names then gets a line for each kernel, copy and fill: its start and its time in ns, and its
 * name, with tabs between them. Lines are in no order. tests/gpu/kernel_times.py reads them.
 */
#include <cupti.h>
#include <cxxabi.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <mutex>

static const size_t BUFFER_BYTES = 8 << 20;
static const uint32_t FLUSH_MS = 100;

static FILE *file; /* NULL after the last flush */
static std::mutex lock;

static void check(CUptiResult r, const char *what)
{
    if (r != CUPTI_SUCCESS)
        fprintf(stderr, "kernel_times: %s fails: CUPTI error %d\n", what, (int)r);
}

/* A forced flush gives what has not ended, and what has no times, too: with zeros. */
static void write(uint64_t start, uint64_t end, const char *name)
{
    int status;
    char *readable;

    if (start == CUPTI_TIMESTAMP_UNKNOWN || end < start)
        return;
    readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    fprintf(file, "%" PRIu64 "\t%" PRIu64 "\t%s\n", start, end - start, readable ? readable : name);
    free(readable);
}

static void write_record(const CUpti_Activity *r)
{
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto *k = reinterpret_cast<const CUpti_ActivityKernel9 *>(r);

        write(k->start, k->end, k->name);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto *k = reinterpret_cast<const CUpti_ActivityMemcpy5 *>(r);

        write(k->start, k->end, "copy");
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto *k = reinterpret_cast<const CUpti_ActivityMemset4 *>(r);

        write(k->start, k->end, "fill");
    }
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *n_records)
{
    *buffer = static_cast<uint8_t *>(aligned_alloc(8, BUFFER_BYTES));
    *size = *buffer ? BUFFER_BYTES : 0;
    *n_records = 0; /* as many as fit */
}

static void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid)
{
    const std::lock_guard<std::mutex> guard(lock);
    CUpti_Activity *record = nullptr;

    while (file && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        write_record(record);
    free(buffer);
}

/* CUPTI has a thread that flushes, too, until the process has ended. */
static void finish(void)
{
    check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "the last flush");

    const std::lock_guard<std::mutex> guard(lock);

    fclose(file);
    file = nullptr;
}

/* The driver calls it when it starts. */
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void)
{
    const char *path = getenv("KERNEL_TIMES");

    file = path ? fopen(path, "w") : nullptr;
    if (!file) {
        fprintf(stderr, "kernel_times: KERNEL_TIMES names no file that can be written\n");
        return 0;
    }
    check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "the registration of buffers");
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "recording kernels");
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "recording copies");
    check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET), "recording fills");
    check(cuptiActivityFlushPeriod(FLUSH_MS), "the time between flushes");
    atexit(finish);
    return 1;
}
