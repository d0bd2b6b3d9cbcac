/*
 * comm/futex.h - sleep until a word in shared memory changes.
 *
 * A waiter spins for some microseconds, where there are cores enough to make that worth it, then
 * sleeps in the kernel and costs nothing. A waker enters the kernel only when somebody sleeps.
 */
#ifndef COMM_FUTEX_H
#define COMM_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

struct shm_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* Where a rank sleeps, for the launcher to see: blocked if the word still has the value. */
struct shm_sleep {
    _Atomic(struct shm_word *) word;
    _Atomic uint32_t value;
};

/* Return when w->value is not `old` any more; what was written before that change is visible. */
void shm_word_wait(struct shm_word *w, uint32_t old, int spins, struct shm_sleep *sleep);

/* Set the value and wake all waiters; what was written before is visible to them. */
void shm_word_set(struct shm_word *w, uint32_t value);

#endif
