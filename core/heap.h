/*
 * core/heap.h - how libc's heap treats memory that is freed.
 */
#ifndef CORE_HEAP_H
#define CORE_HEAP_H

/* Keep what is freed for the next who asks: blocks below 32 MiB are of the heap, and its end goes
 * back to the kernel only when 64 MiB of it are free. For programs that ask for the same memory
 * again and again, as oneDNN does for every product: pages that are given back are cleared and
 * faulted in anew each time. These are the values to which glibc's own adapt at most, so no program
 * keeps more than it might have kept anyway. Once, before threads begin; does nothing where
 * libc has no such settings. */
void heap_keep(void);

#endif
