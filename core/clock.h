/*
 * core/clock.h - how long things take. Setting the time of day changes nothing.
 */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

/* Seconds since some moment before this process began; only differences mean something. */
double clock_seconds(void);

/* Processor seconds that this process has used, all threads together. */
double clock_cpu_seconds(void);

#endif
