/*
 * core/clock.h - clocks: one to measure durations, and the time of day to show to people.
 */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdint.h>

/* Seconds, or nanoseconds, since an arbitrary moment in the past (CLOCK_MONOTONIC). The clock is
 * the same in all processes of a host, and setting the time of day does not change it. */
double clock_seconds(void);
int64_t clock_ns(void);

/* CPU time of this process so far, of all its threads, in seconds. */
double clock_cpu_seconds(void);

/* Time of day in seconds since 1970: only to show to people, because it can be set back. */
double clock_wall_seconds(void);

enum { CLOCK_TEXT_MAX = 32 };

/* A duration for people, with one or two units: "0.8 s", "42 s", "12 min", "3 h 20 min", "2 d 4 h".
 * Returns text. */
const char *clock_format_duration(char text[CLOCK_TEXT_MAX], double seconds);

#endif
