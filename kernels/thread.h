/*
 * kernels/thread.h - how many threads the kernels of this process use (OpenMP; default 1).
 */
#ifndef KERNELS_THREAD_H
#define KERNELS_THREAD_H

/* n >= 1. Results do not depend on it, but for sums whose order the header of a kernel names. */
void kernels_set_threads(int n);
int kernels_threads(void);

#endif
