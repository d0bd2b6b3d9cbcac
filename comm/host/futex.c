/* comm/host/futex.c - see comm/host/futex.h. */
#include "comm/host/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void futex_word_wait(struct futex_word *w, uint32_t old, int spins, struct futex_sleep *sleep)
{
    for (int i = 0; i <= spins; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return;
        pause_briefly();
    }
    atomic_store_explicit(&sleep->value, old, memory_order_relaxed);
    atomic_store_explicit(&sleep->word, w, memory_order_release);
    /* The waker sets the value and then looks for sleepers. The waiter counts itself as a sleeper
     * and then looks at the value. Both are sequentially consistent, so one of the two sees the
     * other. The kernel compares the value again before this thread sleeps. */
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
    atomic_store_explicit(&sleep->word, NULL, memory_order_release);
}

void futex_word_set(struct futex_word *w, uint32_t value)
{
    atomic_store(&w->value, value);
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
