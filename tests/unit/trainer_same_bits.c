/*
 * tests/unit/trainer_same_bits.c - --same-bits: for random models and pairs of layouts the losses
 * and norms are the same doubles, and the state after some steps has the same bits.
 */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/unit/random_model.h"
#include "tests/unit/trainer_ranks.h"
#include "trainer/same_bits/same_bits.h"
#include "trainer/step.h"

static const char TEXT[] = "/usr/share/common-licenses/GPL-3";

enum { STEPS = 2 };

/* The results of a run, in memory that its ranks share with the test. */
struct outcome {
    double loss[STEPS], norm[STEPS];
    int64_t state; /* a sum over all elements that does not depend on their order */
};

/* ---- random runs ---- */

static void random_job(struct rng *r, struct model *m, struct train_config *c)
{
    do
        *m = random_model(r);
    while (m->heads < 2);
    m->vocab = 256 + rng_int(r, 0, 40); /* bytes are tokens */
    m->max_positions += 15;
    m->head_norms = m->family == MODEL_LLAMA && rng_int(r, 0, 1);
    *c = train_config_default();
    c->data_path = TEXT;
    c->model_path = "a random model";
    c->steps = STEPS;
    c->opt.warmup = 1;
    c->dtype = rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
    c->same_bits = 2;
    while (c->same_bits < m->heads && rng_int(r, 0, 2))
        c->same_bits *= 2;
    if (m->family == MODEL_LLAMA && !m->head_norms && m->kv_heads % c->same_bits == 0 &&
        rng_int(r, 0, 1))
        m->family = MODEL_PHI3;
    c->seq_length = 8 * rng_int(r, 1, 2);
    c->micro_batch_size = rng_int(r, 1, 2);
    c->global_batch_size = c->micro_batch_size * (rng_int(r, 0, 3) ? 4 : 12);
}

/* A layout of at most 8 ranks that is allowed for this run. */
static struct train_config random_layout(struct rng *r, const struct model *m,
                                         const struct train_config *job)
{
    for (;;) {
        struct train_config c = *job;
        struct tp_err ignored = { 0 };

        c.spec = random_spec(r, m);
        c.spec.cp = 1;
        c.recompute = (enum recompute)rng_int(r, 0, RECOMPUTE_COUNT - 1);
        c.threads = 1; /* OpenMP's threads spin while they wait; 8 ranks need the cores */
        if (spec_world(&c.spec) <= 8 && train_config_check(&c, m, &ignored) == TP_OK)
            return c;
    }
}

/* ---- a run ---- */

/* A sum over all elements that this rank owns and counts, by their place in the tensor. */
static int64_t state_of(const struct trainer *t)
{
    uint64_t sum = 0;

    for (int i = 0; i < t->params.n; i++) {
        const struct param *q = &t->params.list[i];
        const struct param_owned o = params_owned(&t->params, q);
        const struct tensor *tensor = &t->layout.tensors[q->tensor];
        struct box whole = box_whole(tensor->ndim, tensor->shape), one = q->own.box;
        const float *const values[] = { o.value, o.exp_avg, o.exp_avg_sq };

        for (int64_t k = 0; q->counted && k < o.n; k++) {
            int64_t at = k;

            for (int d = one.ndim - 1; d >= 0; d--) {
                one.lo[d] = q->own.box.lo[d] + at % q->own.box.len[d];
                at /= q->own.box.len[d];
                one.len[d] = 1;
            }
            at = box_offset_in(&whole, &one);
            for (int v = 0; v < 3; v++) {
                uint32_t bits;
                struct rng hash = { (uint64_t)at * 4 + (uint64_t)v };

                memcpy(&bits, &values[v][k], sizeof bits);
                hash.state = rng_next(&hash) + (uint64_t)q->tensor;
                hash.state = rng_next(&hash) + bits;
                sum += rng_next(&hash);
            }
        }
    }
    return (int64_t)sum;
}

/* Run a few steps. Rank 0 writes the outcome to *ctx, which is shared memory. */
static int train(struct trainer *t, void *ctx)
{
    struct outcome outcome = { 0 }, *out = ctx;
    struct tp_err err = { 0 };
    tp_status st = TP_OK;

    for (int i = 0; i < STEPS; i++) {
        struct step_result r = { 0 };

        TP_TRY(step_run(t, &r, &err));
        TP_TRY(control_sum_f64(t->parallel.control, &r.loss_share, 1, &err));
        outcome.loss[i] = r.loss_share;
        outcome.norm[i] = r.grad_norm;
    }
    /* without ZeRO all dp replicas own the same, so only the first counts */
    outcome.state = t->params.n_owners > 1 || t->parallel.at.dp == 0 ? state_of(t) : 0;
    TP_TRY(control_sum_i64(t->parallel.control, &outcome.state, 1, &err));
    if (control_rank(t->parallel.control) == 0)
        *out = outcome;
done:
    return wrong_unless(st == TP_OK, err.msg);
}

Test(trainer_same_bits, any_two_layouts_have_the_same_losses_norms_and_state)
{
    struct rng r = rng_start("trainer_same_bits/layouts");
    struct outcome *out =
        mmap(NULL, 2 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(out, MAP_FAILED);
    for (int round = 0; round < 12; round++) {
        struct train_config job, c[2];
        struct model m;
        char spec[2][SPEC_TEXT_MAX];

        random_job(&r, &m, &job);
        for (int i = 0; i < 2; i++) {
            c[i] = random_layout(&r, &m, &job);
            spec_format(spec[i], &c[i].spec);
            memset(&out[i], 0, sizeof out[i]);
            cr_assert_eq(run_trainers(&c[i], &m, train, &out[i]), 0, "%s", spec[i]);
            cr_assert(out[i].norm[0] > 0);
        }
        cr_assert_eq(memcmp(&out[0], &out[1], sizeof *out), 0,
                     "--same-bits %d, %s and %s: losses %a %a, norms %a %a, last norms %a %a",
                     job.same_bits, spec[0], spec[1], out[0].loss[0], out[1].loss[0],
                     out[0].norm[0], out[1].norm[0], out[0].norm[1], out[1].norm[1]);
    }
    munmap(out, 2 * sizeof *out);
}
