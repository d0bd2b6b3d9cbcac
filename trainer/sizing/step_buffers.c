/* trainer/sizing/step_buffers.c - see trainer/sizing/step_buffers.h. */
#include "trainer/sizing/step_buffers.h"

void step_buffers_take(struct step_buffers *b, const struct rank_dims *d, struct buffer_pools *p)
{
    int64_t n_bytes = (int64_t)sizeof *b->numbers, rows = d->sequences * d->seq;
    int64_t losses = d->micros * (int64_t)sizeof *b->numbers->losses;

    b->numbers = buffer_pool_take(&p->own, BUFFER_NUMBERS, n_bytes + losses, 1);
    b->numbers_read = buffer_pool_take(&p->pinned, BUFFER_HOST, n_bytes, 1);
    b->rates = buffer_pool_take(&p->pinned, BUFFER_HOST, 1, sizeof *b->rates);
    b->tokens = buffer_pool_take(&p->pinned, BUFFER_HOST, d->micros * 2 * rows, sizeof *b->tokens);
}
