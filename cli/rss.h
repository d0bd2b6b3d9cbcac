/*
 * cli/rss.h - this process's resident memory, as the kernel counts it (page cache that is not
 * mapped is not in it).
 */
#ifndef CLI_RSS_H
#define CLI_RSS_H

#include <stdint.h>

/* Resident now, and the most it ever was since the program started; 0 where /proc is missing. */
int64_t rss_now_bytes(void);
int64_t rss_peak_bytes(void);

#endif
