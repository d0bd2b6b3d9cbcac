/* layout/memory.c - see layout/memory.h. */
#include "layout/memory.h"

#include <string.h>

/* Program, libraries, oneDNN's generated code, the ring buffers of collectives. */
static const int64_t OVERHEAD_BYTES = INT64_C(48) << 20;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Elements of the parameters that the first tp rank holds (parts are cut from the front, so it is
 * never smaller than the others). */
static int64_t shard_elements(const struct model *m, const struct spec *s)
{
    int64_t q = m->heads * m->head_dim / s->tp;
    int64_t kv = (m->kv_heads > s->tp ? m->kv_heads / s->tp : 1) * m->head_dim;
    int64_t layer = 2 * m->hidden + m->hidden * (2 * q + 2 * kv) + 3 * m->hidden * (m->ffn / s->tp);
    int64_t vocab = ceil_div(m->vocab, s->tp) * m->hidden * (m->tied ? 1 : 2);

    return m->layers * layer + vocab + m->hidden;
}

struct memory_need memory_estimate(const struct model *m, const struct spec *s, enum dtype dtype,
                                   int64_t micro, int64_t seq, bool saves)
{
    int64_t elements = shard_elements(m, s), rows = micro * seq, size = dtype_bytes(dtype);
    int64_t q = m->heads * m->head_dim / s->tp, ffn = m->ffn / s->tp;
    int64_t kv = (m->kv_heads > s->tp ? m->kv_heads / s->tp : 1) * m->head_dim;
    struct memory_need need = { 0 };

    need.params = elements * size;
    need.grads = elements * 4;
    need.moments = elements * 8;
    if (dtype != DTYPE_F32)
        need.master = elements * 4;
    /* a layer: two residual inputs (f32), two norm outputs, q k v, attention output, gate and up
     * (f32), their product, log-sum-exp and reciprocal deviations */
    need.activations = m->layers * rows *
                       (2 * 4 * m->hidden + 2 * size * m->hidden + size * (q + 2 * kv) + size * q +
                        4 * 2 * ffn + size * ffn + 4 * (m->heads / s->tp + 2));
    need.workspace =
        rows * 4 * (4 * m->hidden + 2 * (q + 2 * kv) + 3 * ffn + ceil_div(m->vocab, s->tp));
    if (saves)
        need.staging = need.params + need.master + need.moments;
    need.overhead = OVERHEAD_BYTES;
    need.total = need.params + need.grads + need.moments + need.master + need.activations +
                 need.workspace + need.staging + need.overhead;
    return need;
}
