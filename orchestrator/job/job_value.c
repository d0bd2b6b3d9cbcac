/* orchestrator/job/job_value.c - see orchestrator/job/job_value.h. */
#include "orchestrator/job/job_value.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"
#include "storage/location.h"

static const double LONGEST_S = 1e9; /* 31 years; its nanoseconds are an int64_t */

static tp_status read_seconds(double *out, const char *text, const char **expected)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {
        { "", 1 }, { "ms", 1e-3 }, { "s", 1 }, { "m", 60 }, { "h", 3600 }, { "d", 86400 }
    };
    char *end;
    double v = strtod(text, &end);

    *expected = "a time such as 0.5, 30s, 5m or 2h";
    if (end == text || !isfinite(v) || v < 0)
        return TP_E_USAGE;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].unit) == 0) {
            *out = v * units[i].seconds < LONGEST_S ? v * units[i].seconds : LONGEST_S;
            return TP_OK;
        }
    return TP_E_USAGE;
}

static tp_status read_enum(int *out, const char *text, const char *names)
{
    int i = 0;

    for (const char *p = names; *p; i++) {
        size_t n = strcspn(p, "|");

        if (strlen(text) == n && strncmp(text, p, n) == 0) {
            *out = i;
            return TP_OK;
        }
        p += n + (p[n] == '|');
    }
    return TP_E_USAGE;
}

tp_status job_value(void *out, const char **expected, const struct job_key *k, const char *text,
                    const char *dir, struct arena *arena, struct tp_err *err)
{
    char *end;
    long long v;
    double d;

    switch (k->kind) {
    case JOB_KIND_STR:
        *(const char **)out = arena_strdup(arena, text);
        return *(const char **)out ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory");
    case JOB_KIND_PATH:
    case JOB_KIND_PLACE:
        *expected = "a path that is absolute or relative to this file's folder (~ is not expanded)";
        if (text[0] == '~' && (!text[1] || text[1] == '/'))
            return TP_E_USAGE;
        if (location_is_remote(text) && k->kind == JOB_KIND_PATH)
            return TP_E_USAGE;
        *(const char **)out = !text[0] ? NULL
                              : text[0] == '/' || location_is_remote(text)
                                  ? arena_strdup(arena, text)
                                  : arena_printf(arena, "%s/%s", dir, text);
        return TP_OK;
    case JOB_KIND_INT:
        errno = 0;
        v = strtoll(text, &end, 10);
        *expected = "a whole number, 0 or more";
        if (end == text || *end || errno || v < 0 || v > INT64_C(1) << 53)
            return TP_E_USAGE;
        *(int64_t *)out = v;
        return TP_OK;
    case JOB_KIND_DOUBLE:
        d = strtod(text, &end);
        *expected = "a number, 0 or more";
        if (end == text || *end || !isfinite(d) || d < 0)
            return TP_E_USAGE;
        *(double *)out = d;
        return TP_OK;
    case JOB_KIND_SECONDS:
        return read_seconds(out, text, expected);
    case JOB_KIND_SIZE:
        *expected = "a size such as 512M or 2G";
        return size_parse(out, text, err);
    case JOB_KIND_BOOL:
        *expected = "true or false";
        *(bool *)out = strcmp(text, "true") == 0;
        return *(bool *)out || strcmp(text, "false") == 0 ? TP_OK : TP_E_USAGE;
    case JOB_KIND_ENUM:
        *expected = k->names;
        return read_enum(out, text, k->names);
    default:
        *expected = "a list";
        return TP_E_USAGE;
    }
}
