/* reshard/memory_budget.c - see reshard/memory_budget.h. */
#include "reshard/memory_budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"
#include "storage/location.h"
#include "storage/remote.h"
#include "storage/remote_object.h"

/* A tile often reads from as many shards as there are connections: as many requests of 4 MiB that
 * it uses, as many on their way, and some that wait. */
enum { REMOTE_BYTES_MIN = 4 << 20, REMOTE_BYTES_MAX = 96 << 20, CONNECTION_BYTES = 512 << 10 };
enum { TLS_BYTES = 8 << 20 };   /* libcurl, OpenSSL and their tables */
enum { LATER_BYTES = 4 << 20 }; /* code and buffers that become resident while tables are read */
enum { THREAD_BYTES = 512 << 10, BUFFER_BYTES_MIN = 4 << 20 };
enum { PART = 8 }; /* of the limit, for what is faster with more memory */

/* The least is named larger by a hundredth: the text has three digits, and what is resident differs
 * a little from run to run. */
enum { MARGIN_PART = 100 };

/* A field of /proc/self/status in bytes. getrusage cannot be used: its maximum includes that of the
 * process which called exec. */
static int64_t status_bytes(const char *field)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long long kib = 0;

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) /* "VmRSS:      1234 kB" */
        if (strncmp(line, field, strlen(field)) == 0) {
            kib = strtoll(line + strlen(field), NULL, 10);
            break;
        }
    fclose(f);
    return kib * 1024;
}

int64_t memory_peak_bytes(void)
{
    return status_bytes("VmHWM:");
}

int64_t memory_budget_tables(int64_t limit_bytes)
{
    const int64_t left = limit_bytes - memory_peak_bytes() - LATER_BYTES;

    return left > 1 ? left : 1;
}

tp_status memory_budget_explain(tp_status st, int64_t limit_bytes, struct tp_err *err)
{
    char limit[SIZE_TEXT_MAX], message[TP_ERR_MAX];

    if (st != TP_E_NOMEM)
        return st;
    snprintf(message, sizeof message, "%s", err->msg);
    return tp_fail(err, TP_E_BUDGET,
                   "--mem %s is too little for the tables of the source; give "
                   "more (%s)",
                   size_format(limit, limit_bytes), message);
}

int64_t memory_budget_connections(void)
{
    return (int64_t)remote_connections() * CONNECTION_BYTES + TLS_BYTES;
}

static int64_t clamp(int64_t bytes, int64_t least, int64_t most)
{
    bytes = bytes < most ? bytes : most;
    return bytes > least ? bytes : least;
}

static int64_t base_bytes(int64_t later_bytes, int threads)
{
    return status_bytes("VmRSS:") + later_bytes + (int64_t)threads * THREAD_BYTES;
}

int64_t memory_budget_part(int64_t limit_bytes, int64_t later_bytes, int threads,
                           int64_t least_bytes, int64_t most_bytes)
{
    const int64_t left = limit_bytes - base_bytes(later_bytes, threads) - BUFFER_BYTES_MIN;
    const int64_t part = limit_bytes / PART, fits = least_bytes + left / 2;

    return clamp(part < fits ? part : fits, least_bytes, most_bytes);
}

int64_t memory_budget_remote(const char *source, int64_t limit_bytes)
{
    if (!location_is_remote(source))
        return 0;
    remote_object_limit(clamp(limit_bytes / PART, REMOTE_BYTES_MIN, REMOTE_BYTES_MAX));
    return REMOTE_BYTES_MIN + memory_budget_connections();
}

int64_t memory_budget_remote_more(const char *source, int64_t limit_bytes, int64_t later_bytes,
                                  int threads)
{
    int64_t bytes;

    if (!location_is_remote(source))
        return 0;
    bytes =
        memory_budget_part(limit_bytes, later_bytes, threads, REMOTE_BYTES_MIN, REMOTE_BYTES_MAX);
    remote_object_limit(bytes);
    return bytes - REMOTE_BYTES_MIN;
}

tp_status memory_budget_make(struct memory_budget *out, int64_t limit_bytes, int64_t later_bytes,
                             int threads, struct tp_err *err)
{
    char least[SIZE_TEXT_MAX], program[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];
    int64_t least_bytes;

    out->base_bytes = base_bytes(later_bytes, threads);
    out->buffer_bytes = limit_bytes - out->base_bytes;
    if (out->buffer_bytes >= BUFFER_BYTES_MIN)
        return TP_OK;
    least_bytes = out->base_bytes + BUFFER_BYTES_MIN;
    least_bytes += least_bytes / MARGIN_PART;
    return tp_fail(err, TP_E_BUDGET,
                   "--mem %s is too little; at least %s is needed (%s for the program and its "
                   "tables, the rest for buffers)",
                   size_format(limit, limit_bytes), size_format(least, least_bytes),
                   size_format(program, out->base_bytes));
}
