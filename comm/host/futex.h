/*
 * comm/host/futex.h - sleep until a word in shared memory changes.
 *
 * If there are enough cores, a waiter first spins for some microseconds. Then it sleeps in the
 * kernel and uses no CPU time. A waker calls the kernel only when a thread sleeps.
 */
#ifndef COMM_HOST_FUTEX_H
#define COMM_HOST_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

struct futex_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* The word on which a thread sleeps. The thread is blocked if the word still has this value; the
 * launcher looks at this. */
struct futex_sleep {
    _Atomic(struct futex_word *) word;
    _Atomic uint32_t value;
};

/* Return when w->value is not `old` any more. Everything written before that change is visible. */
void futex_word_wait(struct futex_word *w, uint32_t old, int spins, struct futex_sleep *sleep);

/* Set the value and wake all waiters. Everything written before this call is visible to them. */
void futex_word_set(struct futex_word *w, uint32_t value);

#endif
