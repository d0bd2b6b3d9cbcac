/*
 * tests/fakecuda/traffic.h - counts how the accesses of a kernel's warps fit a GPU's memory system,
 * if FAKECUDA_TRAFFIC names a file for the result; see traffic.cc.
 */
#ifndef TESTS_FAKECUDA_TRAFFIC_H
#define TESTS_FAKECUDA_TRAFFIC_H

#include <cstddef>

namespace fake
{

extern bool traffic_is_on;
void traffic_begin(); /* before the first kernel */

/* The thread that runs accesses memory; calls a function and returns; waits for other threads, or
 * ends. */
void traffic_access(const void *p, size_t n, bool is_write, const void *pc);
void traffic_call(const void *pc);
void traffic_return();
void traffic_wait();

void traffic_end_block();
void traffic_end_grid();

} // namespace fake

#endif
