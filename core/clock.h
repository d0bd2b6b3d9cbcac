/*
 * core/clock.h - how long things take, whatever the time of day is set to; and that time.
 */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

/* Seconds since some moment before this process began; only differences mean something. */
double clock_seconds(void);

/* Processor seconds that this process has used, all threads together. */
double clock_cpu_seconds(void);

/* Seconds since 1970, as the wall clock has it: for people, and set back at times. */
double clock_wall_seconds(void);

#endif
