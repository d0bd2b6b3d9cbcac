/* layout/workload.c - see layout/workload.h. */
#include "layout/workload.h"

struct workload workload_default(void)
{
    return (struct workload){ .dtype = DTYPE_F32, .seq_length = 64, .global_batch_size = 8 };
}

int64_t workload_micro(const struct workload *w, const struct spec *s)
{
    if (w->micro_batch_size)
        return w->micro_batch_size;
    return w->same_bits ? 1 : w->global_batch_size / s->dp;
}

int64_t workload_micros(const struct workload *w, const struct spec *s)
{
    int64_t micro = workload_micro(w, s);

    return micro ? w->global_batch_size / s->dp / micro : 0;
}
