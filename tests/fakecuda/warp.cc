/*
 * tests/fakecuda/warp.cc - the functions of a warp: its lanes wait for each other, and exchange
 * values.
 */
#include "tests/fakecuda/block.h"

namespace fake
{

static void run_together(const fiber *warp)
{
    void *of_lane[WARP];

    for (unsigned l = 0; l < WARP; l++)
        of_lane[l] = warp[l].exchange;
    warp->together(of_lane);
}

static void exchange(fiber *warp, unsigned mask)
{
    fakecuda_shuffle *s[WARP] = {};
    unsigned ballot = 0;
    warp_operation operation = warp[__builtin_ctz(mask)].operation;

    for (unsigned l = 0; l < WARP; l++) {
        if (!(mask >> l & 1) || operation == WARP_BARRIER)
            continue;
        s[l] = (fakecuda_shuffle *)warp[l].exchange;
        ballot |= (unsigned)(s[l]->in & 1) << l;
    }
    for (unsigned l = 0; l < WARP && operation != WARP_BARRIER; l++) {
        if (!s[l])
            continue;
        if (operation == WARP_SHUFFLE && !s[s[l]->from])
            report(nullptr, "%s: lane %u reads lane %d, which is not in the mask %#x", warp[l].name,
                   l, s[l]->from, mask);
        s[l]->out = operation == WARP_BALLOT ? ballot : s[s[l]->from]->in;
    }
}

/* mma.sync and ldmatrix are .aligned: all lanes execute the same instruction. */
static bool waits_like(const fiber *a, const fiber *b)
{
    return a->state == IN_WARP && a->mask == b->mask && a->operation == b->operation &&
           a->name == b->name && (a->operation != WARP_TOGETHER || a->waits_at == b->waits_at);
}

/* Whether lanes of f's mask are sure to be missing: a quick answer for most of the lanes that
 * come. */
static bool are_missing(const fiber *f)
{
    unsigned w = (unsigned)(f - block.f) / WARP;

    return block.ended[w] == 0 && (w + 1) * WARP <= block.n &&
           block.in_warp[w] < (unsigned)__builtin_popcount(f->mask);
}

void warp_try(const fiber *f)
{
    unsigned first = (unsigned)(f - block.f) / WARP * WARP;
    fiber *warp = block.f + first;
    bool all = true;

    if (are_missing(f))
        return;
    for (unsigned l = 0; l < WARP; l++) {
        if (first + l < block.n && warp[l].state != ENDED)
            all = all && (f->mask >> l & 1);
        if (!(f->mask >> l & 1))
            continue;
        if (first + l >= block.n || warp[l].state == ENDED)
            report(nullptr, "%s: the mask %#x has lane %u, which %s", f->name, f->mask, l,
                   first + l >= block.n ? "does not exist" : "has ended");
        if (!waits_like(&warp[l], f))
            return;
    }
    if (f->operation == WARP_TOGETHER)
        run_together(warp);
    else
        exchange(warp, f->mask);
    if (f->operation == WARP_BARRIER && all)
        here.warp_barrier[first / WARP]++;
    unsigned mask = f->mask;
    block.in_warp[first / WARP] -= (unsigned)__builtin_popcount(mask);
    for (unsigned l = 0; l < WARP; l++)
        if (mask >> l & 1)
            block_make_ready(&warp[l]);
}

/* ---- called by kernels ---- */

static void wait_in_warp(warp_operation operation, unsigned mask, void *exchange, const char *name,
                         const void *pc)
{
    fiber *f = block.current;

    if (!(mask >> here.thread % WARP & 1))
        report(pc, "%s: the mask %#x does not have the calling lane %u", name, mask,
               (unsigned)(here.thread % WARP));
    f->operation = operation;
    f->mask = mask;
    f->exchange = exchange;
    f->name = name;
    block.in_warp[here.thread / WARP]++;
    block_wait(f, IN_WARP, pc);
}

void warp_together(const char *name, void (*together)(void *const *of_lane), void *mine,
                   const void *pc)
{
    block.current->together = together;
    wait_in_warp(WARP_TOGETHER, 0xffffffffu, mine, name, pc);
}

} // namespace fake

int fakecuda_lane()
{
    return fake::here.thread % 32;
}

void fakecuda_warp_barrier(unsigned mask)
{
    fake::wait_in_warp(fake::WARP_BARRIER, mask, nullptr, "__syncwarp",
                       __builtin_return_address(0));
}

void fakecuda_warp_shuffle(unsigned mask, fakecuda_shuffle *s, const char *name)
{
    fake::wait_in_warp(fake::WARP_SHUFFLE, mask, s, name, __builtin_return_address(0));
}

unsigned fakecuda_warp_ballot(unsigned mask, int predicate)
{
    fakecuda_shuffle s = { (uint64_t) !!predicate, 0, 0 };

    fake::wait_in_warp(fake::WARP_BALLOT, mask, &s, "__ballot_sync", __builtin_return_address(0));
    return (unsigned)s.out;
}
