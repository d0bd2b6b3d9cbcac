/*
 * core/heap.h - how libc's allocator treats freed memory.
 */
#ifndef CORE_HEAP_H
#define CORE_HEAP_H

/* Keep freed memory in the process: the heap serves blocks below 32 MiB, and returns its end to the
 * kernel only when 64 MiB of it are free. Pages that go back to the kernel are cleared and faulted
 * in again at the next allocation. That is slow in programs that allocate the same sizes again and
 * again, as oneDNN does for each matrix product. glibc's own thresholds may rise to these values at
 * run time, so no program keeps more than it might keep anyway. Call it once, before the first
 * thread starts. Does nothing when libc is not glibc. */
void heap_keep(void);

#endif
