/*
 * tests/unit/trainer_step.c - a rank's memory, messages and random start: what is said beforehand
 * is what happens, for random models and layouts.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layout/parallel_plan.h"
#include "tests/unit/random_model.h"
#include "tests/unit/trainer_ranks.h"
#include "trainer/comm_volume.h"
#include "trainer/memory_budget.h"
#include "trainer/step.h"

static const char TEXT[] = "/usr/share/common-licenses/GPL-3";

/* Tokens that the cp ranks can share, of few sequences. */
static void random_tokens(struct rng *r, const struct model *m, struct train_config *c)
{
    int64_t unit = c->spec.cp > 1 ? 2 * c->spec.cp : 1;
    int64_t most = m->max_positions < 16 ? m->max_positions : 16;

    if (most < unit)
        c->spec.cp = unit = 1;
    c->seq_length = unit * rng_int(r, 1, most / unit);
    c->micro_batch_size = rng_int(r, 1, 3);
}

/* Tensor shards of a rank, and what they ask of the run. */
static void want_same_bits(struct rng *r, struct model *m, struct train_config *c)
{
    c->same_bits = c->spec.tp;
    while (c->same_bits < m->heads && rng_int(r, 0, 2))
        c->same_bits *= 2;
    c->spec.cp = 1;
    c->spec.dp = c->spec.dp > 1 ? 2 : 1;
    if (c->spec.zero == 3) /* whose microbatches are a power of two */
        c->spec.zero = rng_int(r, 0, 1);
    m->vocab += 64;
    m->max_positions += 7;
    c->seq_length = 8;
}

/* Uncut: attention, MLP, embedding, head, or some of them. */
static void want_plan(struct rng *r, struct model *m, struct train_config *c)
{
    static struct parallel_plan plan; /* one a process; the model points to it */
    bool whole[] = { rng_int(r, 0, 1), rng_int(r, 0, 1), rng_int(r, 0, 1), rng_int(r, 0, 1) };

    plan = parallel_plan_builtin(m->family);
    for (int i = 0; i < plan.n; i++) {
        struct parallel_plan_entry *e = &plan.entries[i];
        bool attention = e->role >= ROLE_Q && e->role <= ROLE_OUT;

        if (e->cut == CUT_VOCABULARY && whole[e->role == ROLE_HEAD])
            e->cut = CUT_REPLICATED;
        if ((e->cut == CUT_COLUMN || e->cut == CUT_ROW) && whole[attention ? 2 : 3])
            e->cut = CUT_REPLICATED;
    }
    m->plan = &plan;
    c->spec.sp = 0;
}

/* A random run of the axes that tp-train has, at most max_world ranks; pipelines with microbatches
 * enough. */
static void random_run(struct rng *r, struct model *m, struct train_config *c, int max_world)
{
    struct tp_err err = { 0 };
    int64_t micros;

    *m = random_model(r);
    *c = train_config_default();
    c->data_path = TEXT;
    c->model_path = "a random model";
    c->steps = 3;
    c->dtype = rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
    do {
        c->spec = random_spec(r, m);
        c->spec.zero = (int)(int[]){ 0, 1, 3 }[rng_int(r, 0, 2)];
    } while (spec_world(&c->spec) > max_world);
    random_tokens(r, m, c);
    m->plan = NULL;
    if (rng_int(r, 0, 2) == 0)
        want_same_bits(r, m, c);
    else if (rng_int(r, 0, 2) == 0)
        want_plan(r, m, c);
    c->recompute = (enum recompute)rng_int(r, 0, RECOMPUTE_COUNT - 1);
    c->spec.sp = c->spec.sp && c->seq_length / c->spec.cp * c->micro_batch_size % c->spec.tp == 0 &&
                 (c->dtype == DTYPE_F32 || m->hidden % 2 == 0);
    micros = c->spec.vpp > 1 ? rng_int(r, 1, 3) * c->spec.pp : rng_int(r, 1, 2 * c->spec.pp);
    c->global_batch_size = c->micro_batch_size * micros * c->spec.dp;
    cr_assert_eq(train_config_check(c, m, &err), TP_OK, "%s", err.msg);
}

/* ---- memory ---- */

/* What alignment can cost, and the numbers of the norm and of the losses. */
static int64_t slack_of(const struct model *m, const struct train_config *c)
{
    int64_t buffers = 20 * (int64_t)m->layers + 30 + 20 * (int64_t)m->layers * c->spec.dp;

    return 64 * 5 * buffers + 8 * (20 * (int64_t)m->layers + 10) * (1 + c->same_bits) +
           8 * train_config_micros(c);
}

/* The kernels' own memory, which the device allocates. */
static int64_t scratch_of(const struct model *m, const struct train_config *c)
{
    int64_t tokens = c->seq_length / c->spec.cp;

    return 4 * (tokens * (2 * m->head_dim + 64 * 5 / 2) + 64 * (m->head_dim + 1));
}

Test(trainer_step, the_estimate_is_what_is_allocated)
{
    struct rng r = rng_start("trainer_step/memory");

    for (int round = 0; round < 300; round++) {
        struct train_config c;
        struct trainer_size size;
        struct memory_need need;
        struct model m;
        struct tp_err err = { 0 };
        char spec[SPEC_TEXT_MAX];
        int64_t more;

        random_run(&r, &m, &c, 64);
        cr_assert_eq(trainer_measure(&size, &c, &m, &err), TP_OK, "%s", err.msg);
        need = budget_need(&c, &m);
        more = size.own + size.shared + scratch_of(&m, &c) - (need.total - need.overhead);
        cr_assert(more >= 0 && more <= slack_of(&m, &c),
                  "%s: allocated %lld, estimated %lld, slack %lld", spec_format(spec, &c.spec),
                  (long long)(size.own + size.shared), (long long)(need.total - need.overhead),
                  (long long)slack_of(&m, &c));
    }
}

/* ---- messages ---- */

static int64_t calls_of(const struct comm *c)
{
    const int64_t *calls = c ? comm_counts(c)->calls : NULL;

    return c ? calls[COMM_ALL_REDUCE] + calls[COMM_REDUCE_SCATTER] + calls[COMM_ALL_GATHER] : 0;
}

static int64_t bytes_of(const struct comm *c)
{
    const int64_t *bytes = c ? comm_counts(c)->bytes : NULL;

    return c ? bytes[COMM_ALL_REDUCE] + bytes[COMM_REDUCE_SCATTER] + bytes[COMM_ALL_GATHER] : 0;
}

static int64_t sent_on(const struct comm *c, bool bytes)
{
    if (!c)
        return 0;
    return bytes ? comm_counts(c)->bytes[COMM_SEND] : comm_counts(c)->calls[COMM_SEND];
}

/* Over dp, cp and both: collectives of gradients. */
static int64_t of_gradients(const struct parallel *p, int64_t (*count)(const struct comm *))
{
    return count(p->dp) + count(p->twins) + (p->replicas == p->dp ? 0 : count(p->replicas));
}

/* Two steps in this rank; 0 when everything that was sent is what was said. */
static int step_as_said(struct trainer *t, void *ctx)
{
    const struct train_config *c = t->config;
    const struct parallel *p = &t->parallel;
    struct messages said = messages_count(t);
    struct tp_err err = { 0 };
    struct step_result result;
    int wrong = 0;

    (void)ctx;
    for (int i = 0; i < 2 && !wrong; i++) {
        int64_t tp = calls_of(p->tp), kv = calls_of(p->kv), dp = of_gradients(p, calls_of);
        int64_t tp_bytes = bytes_of(p->tp), kv_bytes = bytes_of(p->kv);
        int64_t dp_bytes = of_gradients(p, bytes_of);
        int64_t ring = sent_on(p->cp, false), ring_bytes = sent_on(p->cp, true);
        int64_t ends = calls_of(p->ends), ends_bytes = bytes_of(p->ends);
        int64_t sent = sent_on(p->pp_forward, false) + sent_on(p->pp_backward, false);
        int64_t sent_bytes = sent_on(p->pp_forward, true) + sent_on(p->pp_backward, true);
        int norm = c->spec.tp > 1 && c->spec.pp == 1 &&
                   (t->params.n_owners == 1 || c->same_bits); /* else over other communicators */
        int64_t norm_bytes = (c->same_bits ? t->params.n_places : 1) * (int64_t)sizeof(double);

        wrong += step_run(t, &result, &err) != TP_OK;
        wrong += !isfinite(result.grad_norm) || !(result.grad_norm > 0);
        wrong += calls_of(p->tp) - tp != said.tp_calls + norm;
        wrong += bytes_of(p->tp) - tp_bytes != said.tp_bytes + norm * norm_bytes;
        wrong +=
            calls_of(p->kv) - kv != said.kv_calls || bytes_of(p->kv) - kv_bytes != said.kv_bytes;
        wrong += of_gradients(p, calls_of) - dp != said.dp_calls ||
                 of_gradients(p, bytes_of) - dp_bytes != said.dp_bytes;
        wrong += sent_on(p->cp, false) - ring != said.cp_calls ||
                 sent_on(p->cp, true) - ring_bytes != said.cp_bytes;
        wrong += calls_of(p->ends) - ends != said.ends_calls ||
                 bytes_of(p->ends) - ends_bytes != said.ends_bytes;
        wrong +=
            sent_on(p->pp_forward, false) + sent_on(p->pp_backward, false) - sent != said.pp_calls;
        wrong += sent_on(p->pp_forward, true) + sent_on(p->pp_backward, true) - sent_bytes !=
                 said.pp_bytes;
    }
    return wrong;
}

Test(trainer_step, what_is_sent_is_what_was_said)
{
    struct rng r = rng_start("trainer_step/messages");

    for (int round = 0; round < 12; round++) {
        struct train_config c;
        struct model m;
        char spec[SPEC_TEXT_MAX];
        int wrong;

        random_run(&r, &m, &c, 8);
        m.vocab = 256;      /* bytes are tokens */
        if (round % 3 == 0) /* several buckets of gradients */
            m.ffn = 16384;
        wrong = run_trainers(&c, &m, step_as_said, NULL);
        cr_assert_eq(wrong, 0, "%s, %d heads, %d of keys: %d things are wrong",
                     spec_format(spec, &c.spec), m.heads, m.kv_heads, wrong);
    }
}

/* ---- the random start ---- */

Test(trainer_step, a_random_start_is_a_function_of_name_and_index)
{
    struct rng r = rng_start("trainer_step/init");
    const struct cpu_options options = { .threads = 1 };
    struct device *device;

    cr_assert_eq(cpu_device_open(&device, &options, &(struct tp_err){ 0 }), TP_OK);
    for (int round = 0; round < 30; round++) {
        struct train_config c;
        struct model m;
        struct layout l;
        struct params p;
        struct arena a = { 0 };
        struct buffer_pool shared = { 0 }, own = { 0 };
        struct tp_err err = { 0 };

        random_run(&r, &m, &c, 64);
        cr_assert_eq(trainer_layout(&l, &c, &m, &a, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(
            params_init(&p, &l, (int)rng_int(&r, 0, spec_world(&c.spec) - 1), c.dtype, 0, &a, &err),
            TP_OK);
        params_take(&p, &shared, &own);
        own = (struct buffer_pool){ .base = calloc(1, (size_t)own.used + 1) };
        shared = (struct buffer_pool){ .base = calloc(1, (size_t)shared.used + 1) };
        params_take(&p, &shared, &own);
        cr_assert_eq(device_queue_open(device, &p.k.queue, DEVICE_QUEUE_COMPUTE, &err), TP_OK);
        cr_assert_eq(init_weights(&p, &l, &m, 99, &err), TP_OK, "%s", err.msg);
        for (int i = 0; i < p.n; i++) {
            const struct param *q = &p.list[i];
            const struct tensor *t = &l.tensors[q->tensor];
            const struct owned o = params_owned(&p, q);
            struct box whole = box_whole(t->ndim, t->shape), one = q->own.box;
            int64_t pick = o.n ? rng_int(&r, 0, o.n - 1) : 0, at = pick;

            if (o.n == 0)
                continue;
            for (int d = one.ndim - 1; d >= 0; d--) {
                one.lo[d] += at % one.len[d];
                at /= one.len[d];
                one.len[d] = 1;
            }
            at = box_offset_in(&whole, &one);
            cr_expect_eq(o.value[pick],
                         q->decay ? (float)(m.init_std * init_normal(99, t->name, at))
                         : tensor_role_is_bias(t->role) ? 0.0f
                                                        : 1.0f,
                         "%s", t->name);
        }
        device_queue_close(p.k.queue);
        free(own.base);
        free(shared.base);
        arena_free(&a);
    }
    device_close(device);
}

Test(trainer_step, random_numbers_are_normal)
{
    double sum = 0, squares = 0, fourth = 0, neighbours = 0, last = 0;
    int64_t n = 200000;

    for (int64_t i = 0; i < n; i++) {
        double x = init_normal(1234, "model.layers.0.self_attn.q_proj.weight", i);

        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        neighbours += x * last;
        last = x;
    }
    cr_expect(fabs(sum / (double)n) < 0.012, "mean %g", sum / (double)n);
    cr_expect(fabs(squares / (double)n - 1) < 0.016, "variance %g", squares / (double)n);
    cr_expect(fabs(fourth / (double)n - 3) < 0.12, "fourth moment %g", fourth / (double)n);
    cr_expect(fabs(neighbours / (double)n) < 0.012, "correlation %g", neighbours / (double)n);
}
