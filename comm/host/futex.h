/*
 * comm/host/futex.h - sleep until a word in shared memory changes.
 *
 * A waiter spins for some microseconds, where there are enough cores to make that worth it, then
 * sleeps in the kernel and costs nothing. A waker enters the kernel only when a thread sleeps.
 */
#ifndef COMM_HOST_FUTEX_H
#define COMM_HOST_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

struct futex_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* Where a thread sleeps, for the launcher to see: it is blocked if the word still has the value. */
struct futex_sleep {
    _Atomic(struct futex_word *) word;
    _Atomic uint32_t value;
};

/* Return when w->value is not `old` any more; what was written before that change is visible. */
void futex_word_wait(struct futex_word *w, uint32_t old, int spins, struct futex_sleep *sleep);

/* Set the value and wake all waiters; what was written before is visible to them. */
void futex_word_set(struct futex_word *w, uint32_t value);

#endif
