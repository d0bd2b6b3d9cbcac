/* core/clock.c - see core/clock.h. */
#include "core/clock.h"

#include <stdio.h>
#include <time.h>

static double seconds_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

int64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double clock_cpu_seconds(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double clock_wall_seconds(void)
{
    return seconds_of(CLOCK_REALTIME);
}

const char *clock_format_duration(char text[CLOCK_TEXT_MAX], double seconds)
{
    double whole = seconds < 0 ? 0 : seconds > 1e15 ? 1e15 : seconds;
    long long minutes = (long long)(whole / 60 + 0.5), hours = (long long)(whole / 3600 + 0.5);

    if (whole < 9.95)
        snprintf(text, CLOCK_TEXT_MAX, "%.1f s", whole);
    else if (whole < 59.5)
        snprintf(text, CLOCK_TEXT_MAX, "%.0f s", whole);
    else if (minutes < 60)
        snprintf(text, CLOCK_TEXT_MAX, "%lld min", minutes);
    else if (minutes < 24 * 60)
        snprintf(text, CLOCK_TEXT_MAX, "%lld h %lld min", minutes / 60, minutes % 60);
    else
        snprintf(text, CLOCK_TEXT_MAX, "%lld d %lld h", hours / 24, hours % 24);
    return text;
}
