/* trainer/describe.c - see trainer/describe.h. */
#include "trainer/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/size.h"
#include "kernels/thread.h"

struct messages describe_messages(const struct trainer *t)
{
    const struct train_config *c = t->config;
    const struct net *n = &t->net;
    int64_t rows = c->micro * c->seq, h = n->model->hidden, micros = train_config_micros(c);
    struct messages m = { 0 };

    if (c->spec.tp > 1) {
        /* of a microbatch: two all-reduces of rows x h a layer forward and two backward, one of
         * the embedding and one of the head's input, and three floats a row in two calls */
        m.tp_calls = micros * (4 * n->n_layers + 2 + 2);
        m.tp_bytes = micros * rows * 4 * (h * (4 * n->n_layers + 2) + 3);
        m.tiny_calls++;
    }
    if (t->parallel.kv) {
        m.kv_calls = n->n_layers;
        m.kv_bytes = n->n_layers * 2 * n->kv_width * h * 4;
    }
    if (c->spec.dp > 1) {
        m.dp_calls = 1;
        m.dp_bytes = t->params.n_elements * 4;
    }
    if (spec_world(&c->spec) > 1)
        m.tiny_calls++;
    return m;
}

static int64_t parameters(const struct trainer *t)
{
    int64_t n = 0;

    for (int i = 0; i < t->layout.n_tensors; i++) {
        const struct tensor *x = &t->layout.tensors[i];
        struct box whole = box_whole(x->ndim, x->shape);

        if (strcmp(x->group, GROUP_PARAM) == 0)
            n += box_elements(&whole);
    }
    return n;
}

static void line_model(char *buf, const struct trainer *t)
{
    const struct model *m = t->model;

    snprintf(buf, DESCRIBE_MAX,
             "model: %s, Llama, %" PRId64 " parameters, %d layers, hidden %" PRId64
             ", %d heads of %" PRId64 " (%d key-value), ffn %" PRId64 ", vocab %" PRId64 "%s, %s",
             t->config->model_path, parameters(t), m->layers, m->hidden, m->heads, m->head_dim,
             m->kv_heads, m->ffn, m->vocab, m->tied ? " (tied head)" : "",
             t->config->dtype == DTYPE_BF16 ? "bf16 with fp32 masters" : "fp32");
}

static void line_mesh(char *buf, const struct trainer *t)
{
    const struct net *n = &t->net;
    char spec[SPEC_TEXT_MAX];

    snprintf(buf, DESCRIBE_MAX,
             "mesh: %s, %d rank%s of %d thread%s; a rank has %" PRId64 " heads, %" PRId64
             " key-value heads%s, %" PRId64 " features, %" PRId64 " rows of the vocabulary",
             spec_format(spec, &t->config->spec), spec_world(&t->config->spec),
             spec_world(&t->config->spec) == 1 ? "" : "s", kernels_threads(),
             kernels_threads() == 1 ? "" : "s", n->heads, n->kv_heads,
             t->parallel.kv ? " (shared by neighbours)" : "", n->ffn, n->vocab);
}

static void line_batch(char *buf, const struct trainer *t)
{
    const struct train_config *c = t->config;

    snprintf(buf, DESCRIBE_MAX,
             "batch: %" PRId64 " sequences of %" PRId64 " tokens = %d dp x %" PRId64
             " microbatches x %" PRId64 "; %s has %" PRId64 " windows",
             c->batch, c->seq, c->spec.dp, train_config_micros(c), c->micro, c->data_path,
             t->data.windows);
}

static void line_bytes(char *buf, const struct trainer *t)
{
    const struct trainer_size *s = &t->size;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX], d[SIZE_TEXT_MAX], e[SIZE_TEXT_MAX];

    snprintf(buf, DESCRIBE_MAX,
             "bytes of a rank: weights %s, gradients %s, optimizer %s, activations %s; together %s",
             size_format(a, s->params), size_format(b, s->grads), size_format(c, s->moments),
             size_format(d, s->activations), size_format(e, s->shared + s->own));
}

static void line_messages(char *buf, const struct trainer *t)
{
    struct messages m = describe_messages(t);
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];

    snprintf(buf, DESCRIBE_MAX,
             "messages of a step and rank: %" PRId64 " all-reduces over tp (%s), %" PRId64
             " over shared key-value heads (%s), %" PRId64 " over dp (%s), %" PRId64
             " of a few words",
             m.tp_calls, size_format(a, m.tp_bytes), m.kv_calls, size_format(b, m.kv_bytes),
             m.dp_calls, size_format(c, m.dp_bytes), m.tiny_calls);
}

char *describe_line(char buf[DESCRIBE_MAX], const struct trainer *t, int i)
{
    static void (*const lines[DESCRIBE_LINES])(char *, const struct trainer *) = {
        line_model, line_mesh, line_batch, line_bytes, line_messages
    };

    lines[i](buf, t);
    return buf;
}
