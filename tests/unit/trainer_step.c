/*
 * tests/unit/trainer_step.c - for random models and layouts, a rank uses the memory and sends the
 * messages that are counted beforehand. Random initialization is checked too.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layout/family.h"
#include "layout/parallel_plan.h"
#include "tests/deferred/deferred.h"
#include "tests/unit/device_read.h"
#include "tests/unit/random_model.h"
#include "tests/unit/trainer_ranks.h"
#include "trainer/sizing/gpu_memory.h"
#include "trainer/step.h"
#include "trainer/step_messages.h"

static const char TEXT[] = "/usr/share/common-licenses/GPL-3";

/* A few short sequences, whose length the cp ranks divide. */
static void random_tokens(struct rng *r, const struct model *m, struct train_config *c)
{
    int64_t unit = c->spec.cp > 1 ? 2 * c->spec.cp : 1;
    int64_t most = m->max_positions < 16 ? m->max_positions : 16;

    if (most < unit)
        c->spec.cp = unit = 1;
    c->seq_length = unit * rng_int(r, 1, most / unit);
    c->micro_batch_size = rng_int(r, 1, 3);
}

/* --same-bits with a random number of tensor shards, and the settings that it requires. */
static void want_same_bits(struct rng *r, struct model *m, struct train_config *c)
{
    c->same_bits = c->spec.tp;
    while (c->same_bits < m->heads && rng_int(r, 0, 2))
        c->same_bits *= 2;
    c->spec.cp = 1;
    c->spec.dp = c->spec.dp > 1 ? 2 : 1;
    if (c->spec.zero == 3) /* zero3 needs microbatches in a power of two */
        c->spec.zero = rng_int(r, 0, 1);
    m->vocab += 64;
    m->max_positions += 7;
    c->seq_length = 8;
}

/* A plan in which attention, MLP, embedding and head are each replicated at random. */
static void want_plan(struct rng *r, struct model *m, struct train_config *c)
{
    static struct parallel_plan plan; /* the model points to it */
    bool replicated[] = { rng_int(r, 0, 1), rng_int(r, 0, 1), rng_int(r, 0, 1), rng_int(r, 0, 1) };

    plan = parallel_plan_of(m);
    for (int i = 0; i < plan.n; i++) {
        struct parallel_plan_entry *e = &plan.entries[i];
        bool attention = e->role >= ROLE_Q && e->role <= ROLE_OUT;

        if (e->cut == CUT_VOCABULARY && replicated[e->role == ROLE_HEAD])
            e->cut = CUT_REPLICATED;
        if ((e->cut == CUT_COLUMN || e->cut == CUT_ROW) && replicated[attention ? 2 : 3])
            e->cut = CUT_REPLICATED;
    }
    m->plan = &plan;
    c->spec.sp = 0;
}

/* Gemma 2 or 3: norms after blocks, caps, and layers with a window and a rotary embedding of their
 * own. */
static void random_gemma(struct rng *r, struct model *m)
{
    static const bool full[64] = { false, true, false, false, true }; /* the model points to it */

    m->family = m->head_norms ? MODEL_GEMMA3 : MODEL_GEMMA2;
    m->sliding_window = rng_int(r, 0, 12);
    m->full_layers = rng_int(r, 0, 1) && m->layers <= 64 ? full : NULL;
    m->local_rope_theta = rng_int(r, 0, 1) ? 100 : 0;
    m->attention_scalar = (double)rng_int(r, 1, 40);
    m->attention_cap = rng_int(r, 0, 1) ? 0.5 : 0;
    m->logit_cap = rng_int(r, 0, 1) ? 0.5 : 0;
}

/* Whether the Llama can be a Phi-3, whose key-value heads no two ranks share. */
static bool can_be_fused(const struct model *m, const struct train_config *c)
{
    return m->kv_heads % (c->same_bits ? c->same_bits : c->spec.tp) == 0;
}

/* What relatives of Llama have and a Llama may have: fused tensors, biases, norms of heads, norms
 * of 1 + weight. A relative of GPT-2 is OPT. */
static void random_relative(struct rng *r, struct model *m, const struct train_config *c)
{
    if (m->family == MODEL_GPT2 && !m->plan && rng_int(r, 0, 1)) {
        m->family = MODEL_OPT;
        m->tied = rng_int(r, 0, 1);
    }
    if (m->family != MODEL_LLAMA || m->plan)
        return;
    if (can_be_fused(m, c) && rng_int(r, 0, 3) == 0) {
        m->family = MODEL_PHI3;
        return;
    }
    m->qkv_bias = rng_int(r, 0, 1);
    m->out_bias = rng_int(r, 0, 1);
    m->mlp_bias = rng_int(r, 0, 1);
    if (rng_int(r, 0, 3) == 0) { /* no norms before blocks, and norms of all heads */
        m->family = MODEL_OLMO2;
        m->mlp_bias = false;
        return;
    }
    m->head_norms = rng_int(r, 0, 2) == 0;
    m->family = m->head_norms || rng_int(r, 0, 2) ? MODEL_LLAMA : MODEL_GEMMA;
    if (rng_int(r, 0, 3) == 0)
        random_gemma(r, m);
}

/* A mixture of experts, which there is without --same-bits and with experts that the plan cuts. */
static void random_experts(struct rng *r, struct model *m, struct train_config *c)
{
    if (m->family != MODEL_LLAMA || m->plan || c->same_bits || rng_int(r, 0, 1))
        return;
    m->family = m->head_norms ? MODEL_QWEN3_MOE : MODEL_MIXTRAL;
    m->experts = (int)rng_int(r, 1, 5);
    m->experts_per_token = (int)rng_int(r, 1, m->experts);
    m->expert_ffn = m->head_norms ? 8 * rng_int(r, 1, 2) : 0;
    m->normalized_experts = rng_int(r, 0, 1);
    m->balances_experts = rng_int(r, 0, 1);
    m->balance_factor = 0.01;
    if (c->spec.dp * c->spec.cp > 1 && rng_int(r, 0, 3)) {
        c->spec.ep = c->spec.dp * c->spec.cp;
        while (c->spec.ep % 2 == 0 && rng_int(r, 0, 1))
            c->spec.ep /= 2;
        m->experts *= c->spec.ep;
    }
}

/* A random run on any axes and at most max_world ranks. With vpp, pp divides the number of
 * microbatches. */
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
    random_relative(r, m, c);
    random_experts(r, m, c);
    c->recompute = (enum recompute)rng_int(r, 0, RECOMPUTE_COUNT - 1);
    c->spec.sp = c->spec.sp && c->seq_length / c->spec.cp * c->micro_batch_size % c->spec.tp == 0 &&
                 (c->dtype == DTYPE_F32 || m->hidden % 2 == 0);
    micros = c->spec.vpp > 1 ? rng_int(r, 1, 3) * c->spec.pp : rng_int(r, 1, 2 * c->spec.pp);
    c->global_batch_size = c->micro_batch_size * micros * c->spec.dp;
    cr_assert_eq(train_config_check(c, m, &err), TP_OK, "%s", err.msg);
}

/* ---- memory ---- */

/* The counted memory of stage pp of c. */
static struct memory_rank counted(const struct model *m, const struct train_config *c, int pp,
                                  struct arena *a)
{
    const struct workload w = train_config_work(c);
    struct memory_model mm;
    struct memory_rank rank;
    struct tp_err err = { 0 };

    cr_assert_eq(memory_model_make(&mm, m, a, &err), TP_OK, "%s", err.msg);
    cr_assert(memory_rank_count(&rank, &mm, &c->spec, &w, pp));
    return rank;
}

/* Floats of the largest bucket when it is packed. */
static int64_t largest_pack(const struct params *p)
{
    int64_t most = 0;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct param_bucket *b = &p->buckets[i];
        int64_t each =
            p->sharded || b->owner_weights > b->owner_grads ? b->owner_weights : b->owner_grads;

        if (b->is_expert) /* zero1 does not send them, and zero3 has another pack */
            continue;
        most = p->n_owners * each > most ? p->n_owners * each : most;
    }
    return p->n_owners > 1 ? (most + PARAM_GAP - 1) / PARAM_GAP * PARAM_GAP : 0;
}

/* The parameters of a stage's first rank fill exactly the sizes that were counted by one layer. */
static void expect_full(const struct params *p, const struct param_sizes *z, const char *spec)
{
    cr_expect_eq(p->n, z->n_entries, "%s", spec);
    cr_expect_eq(p->n_elements, z->n_elements, "%s", spec);
    cr_expect_eq((p->n_vectors + PARAM_GAP - 1) / PARAM_GAP * PARAM_GAP, z->n_vectors, "%s", spec);
    cr_expect_eq(p->n_partial, z->n_partial, "%s", spec);
    cr_expect_eq(p->n_packs, z->n_packs, "%s", spec);
    if (p->n_owners > 1)
        cr_expect_eq(largest_pack(p), z->pack_floats, "%s: %lld of %lld", spec,
                     (long long)largest_pack(p), (long long)z->pack_floats);
    if (p->same_bits)
        cr_expect(p->n_rows == z->n_rows && p->n_places == z->n_places, "%s", spec);
    if (p->n_shards == 1 || p->n_owners == 1)
        cr_expect_eq((p->n_owned + PARAM_GAP - 1) / PARAM_GAP * PARAM_GAP, z->n_owned, "%s", spec);
    cr_expect_eq(p->head.n > 0, z->n_head > 0, "%s", spec);
}

/* On every rank, params_init fails when the parameters need more than was counted. */
Test(trainer_step, parameters_need_what_is_counted_by_one_layer)
{
    struct rng r = rng_start("trainer_step/params");

    for (int round = 0; round < 300; round++) {
        struct train_config c;
        struct model m;
        struct layout l;
        struct params p;
        struct arena a = { 0 };
        struct tp_err err = { 0 };
        char spec[SPEC_TEXT_MAX];
        bool first = rng_int(&r, 0, 1);
        struct mesh_coord at;
        struct memory_rank rank;
        int world;

        random_run(&r, &m, &c, 64);
        if (rng_int(&r, 0, 3) == 0) /* several buckets per layer, or several layers per bucket */
            m.ffn *= (int64_t[]){ 64, 1024, 16384 }[rng_int(&r, 0, 2)];
        world = spec_world(&c.spec);
        at = mesh_coord_of(&c.spec, (int)rng_int(&r, 0, world - 1));
        if (first)
            at = (struct mesh_coord){ .pp = at.pp };
        rank = counted(&m, &c, at.pp, &a);
        cr_assert_eq(trainer_layout(&l, &c, &m, &a, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(params_init(&p, &l, mesh_rank_of(&c.spec, at), &rank.params, &a, &err), TP_OK,
                     "%s: %s", spec_format(spec, &c.spec), err.msg);
        if (first)
            expect_full(&p, &rank.params, spec_format(spec, &c.spec));
        arena_free(&a);
    }
}

/* ---- memory that is allocated ---- */

/* The CPU device, and how many bytes are allocated on it. */
static struct {
    const struct device_ops *ops;
    int64_t n_bytes, pinned, adopted;
} allocated;

static tp_status count_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    allocated.n_bytes += n_bytes;
    return allocated.ops->alloc(d, out, n_bytes, err);
}

static tp_status count_pinned(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    allocated.pinned += n_bytes;
    return allocated.ops->alloc_pinned(d, out, n_bytes, err);
}

static tp_status count_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    allocated.adopted += n_bytes;
    return allocated.ops->adopt(d, p, n_bytes, err);
}

/* Whether tp-run's estimate for a GPU has the bytes that this rank has allocated; the last stages
 * of a pipeline may have fewer. */
static bool is_estimated(const struct trainer *t)
{
    const struct workload w = train_config_work(t->config);
    const int64_t is = allocated.n_bytes + allocated.adopted;
    struct memory_model mm;
    struct gpu_memory was;
    struct arena a = { 0 };
    struct tp_err err = { 0 };
    bool made = memory_model_make(&mm, t->model, &a, &err) == TP_OK;

    was = made ? gpu_memory_estimate(&mm, &t->config->spec, &w) : (struct gpu_memory){ 0 };
    arena_free(&a);
    return t->config->spec.pp == 1 ? is == was.tensors : is <= was.tensors;
}

/* In a rank: check that all memory that a trainer allocates on its device was counted. */
static int open_counted(struct comm_world *ranks, void *ctx)
{
    const struct trainer_ranks *r = ctx;
    const struct cpu_options options = { .threads = 1, .no_comm_thread = !comm_has_threads(ranks) };
    struct kernel_ops kernels = kernels_cpu;
    struct trainer_device d = { .ops = &kernels };
    struct device_ops ops;
    struct trainer_size largest;
    struct trainer t;
    struct tp_err err = { 0 };
    int wrong = 0;

    kernels.keeps_bf16 = r->config->seed % 2; /* nothing is computed */
    wrong += wrong_unless(cpu_device_open(&d.device, &options, &err) == TP_OK, err.msg);
    allocated.ops = d.device->ops;
    ops = *allocated.ops;
    ops.alloc = count_alloc;
    ops.alloc_pinned = count_pinned;
    ops.adopt = count_adopt;
    d.device->ops = &ops;
    wrong +=
        wrong_unless(trainer_measure(&largest, r->config, r->model, d.ops, &err) == TP_OK, err.msg);
    wrong += wrong_unless(trainer_open(&t, r->config, r->model, &d, ranks, &err) == TP_OK, err.msg);
    if (!wrong) {
        wrong += wrong_unless(allocated.n_bytes == t.memory.pools.own.used, "own memory");
        wrong += wrong_unless(allocated.pinned == t.memory.pools.pinned.used, "pinned memory");
        wrong += wrong_unless(t.pools.own.used == t.memory.pools.own.used, "own buffers");
        wrong += wrong_unless(allocated.adopted == largest.shared, "memory of collectives");
        wrong += wrong_unless(t.pools.shared.used <= largest.shared, "buffers of collectives");
        wrong += wrong_unless(!kernels.keeps_bf16 || is_estimated(&t), "memory of a GPU");
    }
    trainer_close(&t);
    device_close(d.device);
    return wrong;
}

Test(trainer_step, all_device_memory_of_a_trainer_is_counted)
{
    struct rng r = rng_start("trainer_step/allocated");

    for (int round = 0; round < 24; round++) {
        struct train_config c;
        struct model m;
        struct trainer_size size;
        struct tp_err err = { 0 };
        char spec[SPEC_TEXT_MAX];
        int wrong;

        random_run(&r, &m, &c, 8);
        m.vocab = 256; /* bytes are tokens */
        c.seed = round;
        cr_assert_eq(trainer_measure(&size, &c, &m, NULL, &err), TP_OK, "%s", err.msg);
        wrong = run_ranks(spec_world(&c.spec), size.shared + (1 << 20), open_counted,
                          &(struct trainer_ranks){ .config = &c, .model = &m });
        cr_assert_eq(wrong, 0, "%s: %d things are wrong", spec_format(spec, &c.spec), wrong);
    }
}

/* ---- messages ---- */

/* Run two steps in this rank. Returns 0 when each sends what step_messages_count, which runs a step
 * on a device that does nothing, has counted. */
static int step_as_counted(struct trainer *t, void *ctx)
{
    struct step_messages expected, before, after;
    struct tp_err err = { 0 };
    struct step_result result;
    int wrong = wrong_unless(step_messages_count(&expected, t, &err) == TP_OK, err.msg);

    (void)ctx;
    expected.few_words_calls -= spec_world(&t->config->spec) > 1; /* of the loop */
    for (int i = 0; i < 2 && !wrong; i++) {
        before = step_messages_now(t);
        wrong += step_run(t, &result, &err) != TP_OK;
        wrong += !isfinite(result.grad_norm) || !(result.grad_norm > 0);
        after = step_messages_now(t);
        for (size_t k = 0; k < sizeof expected / sizeof(int64_t); k++)
            wrong += ((int64_t *)&after)[k] - ((int64_t *)&before)[k] != ((int64_t *)&expected)[k];
    }
    return wrong;
}

Test(trainer_step, a_step_sends_what_was_counted)
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
        wrong = run_trainers(&c, &m, step_as_counted, NULL);
        cr_assert_eq(wrong, 0, "%s, %d heads, %d of keys: %d things are wrong",
                     spec_format(spec, &c.spec), m.heads, m.kv_heads, wrong);
    }
}

/* ---- operations that a device does not have ---- */

static int open_refused(struct comm_world *ranks, void *ctx)
{
    const struct trainer_ranks *r = ctx;
    const struct cpu_options options = { .threads = 1, .no_comm_thread = !comm_has_threads(ranks) };
    struct kernel_ops ops = kernels_cpu;
    struct trainer_device d = { .ops = &ops };
    struct trainer t;
    struct tp_err err = { 0 };
    int wrong = 0;

    ops.grouped_gemm = NULL;
    wrong += wrong_unless(cpu_device_open(&d.device, &options, &err) == TP_OK, err.msg);
    wrong += wrong_unless(trainer_open(&t, r->config, r->model, &d, ranks, &err) == TP_E_USAGE,
                          "it opened");
    wrong += wrong_unless(strstr(err.msg, "mixtures of experts of a Mixtral") != NULL, err.msg);
    trainer_close(&t);
    device_close(d.device);
    return wrong;
}

Test(trainer_step, a_device_without_an_operation_refuses_the_model)
{
    struct model m = small_llama();
    struct train_config c = train_config_default();
    struct trainer_size size;
    struct tp_err err = { 0 };

    c.data_path = TEXT;
    c.model_path = "a model";
    c.steps = 1;
    c.seq_length = 16;
    m.family = MODEL_MIXTRAL;
    m.max_positions = 64;
    m.norm_eps = 1e-5;
    m.rope_theta = 10000;
    m.experts = 4;
    m.experts_per_token = 2;
    cr_assert_eq(train_config_check(&c, &m, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(trainer_measure(&size, &c, &m, NULL, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(run_ranks(1, size.shared + (1 << 20), open_refused,
                           &(struct trainer_ranks){ .config = &c, .model = &m }),
                 0);
}

/* ---- random initialization ---- */

/* Odd rounds are on a device whose memory host code cannot write. */
static struct device *open_device(int round)
{
    const struct deferred_options deferred = { .threads = 1, .seed = (uint64_t)round };
    const struct cpu_options options = { .threads = 1 };
    struct device *device;
    struct tp_err err = { 0 };

    cr_assert_eq(round % 2 ? deferred_device_open(&device, &deferred, &err)
                           : cpu_device_open(&device, &options, &err),
                 TP_OK, "%s", err.msg);
    return device;
}

Test(trainer_step, random_weights_are_a_function_of_name_and_index)
{
    struct rng r = rng_start("trainer_step/init");
    for (int round = 0; round < 30; round++) {
        struct train_config c;
        struct model m;
        struct layout l;
        struct params p;
        struct arena a = { 0 };
        struct buffer_pools pools = { 0 }, counts = { 0 };
        struct memory_rank rank;
        int rank_number;
        struct device *device = open_device(round);
        struct staging s;
        void *own, *shared;
        struct tp_err err = { 0 };

        random_run(&r, &m, &c, 64);
        c.same_bits = 0;
        cr_assert_eq(trainer_layout(&l, &c, &m, &a, &err), TP_OK, "%s", err.msg);
        rank_number = (int)rng_int(&r, 0, spec_world(&c.spec) - 1);
        rank = counted(&m, &c, mesh_coord_of(&c.spec, rank_number).pp, &a);
        cr_assert_eq(params_init(&p, &l, rank_number, &rank.params, &a, &err), TP_OK, "%s",
                     err.msg);
        params_take(&p, &rank.params, &counts);
        cr_assert_eq(device_alloc(device, &own, counts.own.used, &err), TP_OK);
        cr_assert_eq(device_alloc(device, &shared, counts.shared.used, &err), TP_OK);
        pools.own.base = own;
        pools.shared.base = shared;
        params_take(&p, &rank.params, &pools);
        cr_assert_eq(device_queue_open(device, &p.k.queue, DEVICE_QUEUE_COMPUTE, &err), TP_OK);
        cr_assert_eq(staging_open(&s, p.k.queue, 4096, &err), TP_OK);
        cr_assert_eq(weight_init(&p, &l, &m, 99, 1 + round % 4, &err), TP_OK, "%s", err.msg);
        for (int i = 0; i < p.n; i++) {
            const struct param *q = &p.list[i];
            const struct tensor *t = &l.tensors[q->tensor];
            const struct param_owned o = params_owned(&p, q);
            struct box whole = box_whole(t->ndim, t->shape), one = q->own.box;
            int64_t pick = o.n ? rng_int(&r, 0, o.n - 1) : 0, at = pick;
            float found;
            bool is_zero =
                tensor_role_is_bias(t->role) || family_of(&m)->norm == FAMILY_UNIT_RMS_NORM;

            if (o.n == 0)
                continue;
            for (int d = one.ndim - 1; d >= 0; d--) {
                one.lo[d] += at % one.len[d];
                at /= one.len[d];
                one.len[d] = 1;
            }
            at = box_offset_in(&whole, &one);
            cr_assert_eq(device_read(&s, &found, o.value + pick, sizeof found, &err), TP_OK);
            cr_expect_eq(found,
                         q->decay  ? (float)(m.init_std * weight_init_normal(99, t->name, at))
                         : is_zero ? 0.0f
                                   : 1.0f,
                         "%s", t->name);
        }
        staging_close(&s);
        device_queue_close(p.k.queue);
        device_close(device);
        arena_free(&a);
    }
}

Test(trainer_step, random_numbers_are_normal)
{
    double sum = 0, squares = 0, fourth = 0, neighbours = 0, last = 0;
    int64_t n = 200000;

    for (int64_t i = 0; i < n; i++) {
        double x = weight_init_normal(1234, "model.layers.0.self_attn.q_proj.weight", i);

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
