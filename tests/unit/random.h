/*
 * tests/unit/random.h - random numbers for property tests.
 *
 * The seed comes from the environment variable TP_SEED, or from the clock. A test prints it when it
 * starts, so that a failure can be repeated.
 */
#ifndef TESTS_UNIT_RANDOM_H
#define TESTS_UNIT_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct rng {
    uint64_t state;
};

/* splitmix64 (Steele, Lea and Flood 2014). */
static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A whole number from lo to hi, both included. */
static inline int64_t rng_int(struct rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

/* A real number in [-1, 1). */
static inline double rng_real(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-52 - 1.0;
}

static inline struct rng rng_start(const char *test)
{
    const char *text = getenv("TP_SEED");
    struct timespec ts;
    struct rng r;

    clock_gettime(CLOCK_REALTIME, &ts);
    r.state = text ? strtoull(text, NULL, 0) : (uint64_t)ts.tv_sec ^ (uint64_t)ts.tv_nsec << 20;
    fprintf(stderr, "%s: TP_SEED=%llu\n", test, (unsigned long long)r.state);
    return r;
}

#endif
