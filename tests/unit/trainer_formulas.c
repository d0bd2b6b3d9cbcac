/*
 * tests/unit/trainer_formulas.c - compares what each kind of parallelism sends and keeps with the
 * formulas of the papers. Counters and allocations must be equal to the formulas, because all
 * degrees divide the sizes here.
 *
 * t, p, v, d: degrees; m microbatches of b sequences of s tokens; h hidden, f ffn, a heads, V
 * vocabulary, L layers, P parameters. Wire bytes of a ring (Chan et al. 2007): all-reduce
 * 2 (n - 1) / n of the buffer, all-gather and reduce-scatter (n - 1) of a rank's part.
 * trainer_schedule.c checks the bubble, the microbatches in flight and the order of messages.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/trainer_ranks.h"
#include "trainer/step.h"

/* Every row is a multiple of 16 floats, a cache line, so that alignment adds no bytes. */
enum { B = 2, S = 8, H = 64, HEADS = 4, HEAD_DIM = 16, F = 64, FLOAT = 4 };

static struct model llama(int layers, int kv_heads, int64_t vocab, bool tied)
{
    return (struct model){ .family = MODEL_LLAMA,
                           .vocab = vocab,
                           .hidden = H,
                           .ffn = F,
                           .layers = layers,
                           .heads = HEADS,
                           .kv_heads = kv_heads,
                           .head_dim = HEAD_DIM,
                           .max_positions = 64,
                           .norm_eps = 1e-5,
                           .rope_theta = 10000,
                           .init_std = 0.02,
                           .tied = tied };
}

static struct model gpt2(int layers)
{
    struct model m = llama(layers, HEADS, 256, true);

    m.family = MODEL_GPT2;
    m.ffn = 4 * H;
    return m;
}

static struct train_config config(const char *spec, int64_t micros)
{
    struct train_config c = train_config_default();
    struct tp_err err = { 0 };

    cr_assert_eq(spec_parse(&c.spec, spec, &err), TP_OK, "%s", err.msg);
    c.data_path = "bytes:/usr/share/common-licenses/GPL-3";
    c.model_path = "a model";
    c.steps = 1;
    c.seq_length = S;
    c.micro_batch_size = B;
    c.global_batch_size = B * micros * c.spec.dp;
    return c;
}

static int64_t parameters(const struct model *m)
{
    int64_t kv = (int64_t)m->kv_heads * m->head_dim;
    int64_t layer = 2 * H * H + 2 * kv * H + 3 * F * H + 2 * H;

    return m->layers * layer + H + (m->tied ? 1 : 2) * m->vocab * H;
}

/* ---- what is sent ---- */

/* What this rank sent in one step, by collectives and by messages. */
struct sent {
    struct comm_counts tp, dp, embedding_ends;
    int64_t sends, send_bytes;
};

/* Compares a rank's traffic with formulas. Returns the number of differences. */
typedef int (*check_fn)(const struct sent *s, const struct trainer *t);

static struct comm_counts minus(const struct comm *c, const struct comm_counts *before)
{
    struct comm_counts n = { .calls = { 0 } };

    for (int i = 0; c && i < COMM_KINDS; i++) {
        n.calls[i] = comm_counts(c)->calls[i] - before->calls[i];
        n.bytes[i] = comm_counts(c)->bytes[i] - before->bytes[i];
    }
    return n;
}

static struct comm_counts now(const struct comm *c)
{
    return c ? *comm_counts(c) : (struct comm_counts){ .calls = { 0 } };
}

static int step_and_check(struct trainer *t, void *ctx)
{
    const check_fn *check = ctx;
    const struct process_groups *p = &t->parallel;
    struct comm_counts tp = now(p->tp), dp = now(p->dp_cp), ends = now(p->embedding_ends);
    struct comm_counts forward = now(p->pp_forward), backward = now(p->pp_backward);
    struct step_result result;
    struct tp_err err = { 0 };
    struct sent sent;
    int wrong = wrong_unless(step_run(t, &result, &err) == TP_OK, err.msg);

    sent = (struct sent){ .tp = minus(p->tp, &tp),
                          .dp = minus(p->dp_cp, &dp),
                          .embedding_ends = minus(p->embedding_ends, &ends) };
    forward = minus(p->pp_forward, &forward);
    backward = minus(p->pp_backward, &backward);
    sent.sends = forward.calls[COMM_SEND] + backward.calls[COMM_SEND];
    sent.send_bytes = forward.bytes[COMM_SEND] + backward.bytes[COMM_SEND];
    return wrong + (*check)(&sent, t);
}

static void expect(const char *spec, int64_t micros, const struct model *m, check_fn check)
{
    struct train_config c = config(spec, micros);
    struct tp_err err = { 0 };
    int wrong;

    cr_assert_eq(train_config_check(&c, m, &err), TP_OK, "%s", err.msg);
    wrong = run_trainers(&c, m, step_and_check, &check);
    cr_expect_eq(wrong, 0, "%s, %d layers: %d numbers differ from the formula", spec, m->layers,
                 wrong);
}

static int differs(const char *what, int64_t is, int64_t formula)
{
    if (is != formula)
        fprintf(stderr, "%s: %lld, but %lld by the formula\n", what, (long long)is,
                (long long)formula);
    return is != formula;
}

/* Per microbatch: in each layer two all-reduces of b s h forward and two backward; one of b s h for
 * the embedding and one for the gradient of the head's input; for the loss three floats per token,
 * which do not depend on V. Per step: one double for the gradient norm. */
static int check_tp(const struct sent *s, const struct trainer *t)
{
    int64_t m = train_config_micros(t->config), L = t->model->layers;
    int64_t bsh = (int64_t)B * S * H * FLOAT, bs = (int64_t)B * S * FLOAT;

    return differs("all-reduces over tp", s->tp.calls[COMM_ALL_REDUCE], m * (4 * L + 2 + 2) + 1) +
           differs("their bytes", s->tp.bytes[COMM_ALL_REDUCE],
                   m * ((4 * L + 2) * bsh + 3 * bs) + (int64_t)sizeof(double)) +
           differs("gathers over tp", s->tp.calls[COMM_ALL_GATHER], 0) +
           differs("reduce-scatters over tp", s->tp.calls[COMM_REDUCE_SCATTER], 0);
}

Test(formulas, tensor_parallelism_and_a_loss_whose_bytes_do_not_depend_on_the_vocabulary)
{
    for (int layers = 1; layers <= 3; layers++)
        for (int64_t vocab = 256; vocab <= 4096; vocab *= 4) {
            const struct model m = llama(layers, 2, vocab, false);

            expect("tp2", 3, &m, check_tp);
        }
}

/* Each all-reduce becomes a reduce-scatter and an all-gather. Backward gathers two inputs per layer
 * again, because a rank keeps only a part of them. So the layers send 5/4 of the wire bytes of
 * tensor parallelism alone. Each rank has a part of the norms' gradients, which are summed once per
 * step. */
static int check_sp(const struct sent *s, const struct trainer *t)
{
    int64_t m = train_config_micros(t->config), L = t->model->layers, n = t->config->spec.tp;
    int64_t part = (int64_t)B * S * H * FLOAT / n, gathers = s->tp.calls[COMM_ALL_GATHER];
    int64_t scatters = s->tp.calls[COMM_REDUCE_SCATTER], ends_gathers = 3 * m,
            ends_scatters = 2 * m;
    int64_t wire = (n - 1) * (gathers - ends_gathers + scatters - ends_scatters) * part;
    int64_t wire_of_tp = m * 4 * L * 2 * (n - 1) * part;

    return differs("gathers over tp", gathers, m * 6 * L + ends_gathers) +
           differs("reduce-scatters over tp", scatters, m * 4 * L + ends_scatters) +
           differs("bytes of gathers", s->tp.bytes[COMM_ALL_GATHER], gathers * part) +
           differs("bytes of reduce-scatters", s->tp.bytes[COMM_REDUCE_SCATTER], scatters * part) +
           differs("wire bytes of layers, four times", 4 * wire, 5 * wire_of_tp) +
           differs("bytes of the loss, the norms' gradients and the gradient norm",
                   s->tp.bytes[COMM_ALL_REDUCE],
                   m * 3 * (int64_t)B * S * FLOAT + (2 * L + 1) * H * FLOAT +
                       (int64_t)sizeof(double));
}

Test(formulas, sequence_parallelism_sends_a_quarter_more)
{
    for (int layers = 1; layers <= 3; layers++) {
        const struct model m = llama(layers, 4, 256, false);

        expect("tp2sp", 2, &m, check_sp);
        expect("tp4sp", 1, &m, check_sp);
    }
}

/* With and without ZeRO, the gradients and weights cost 2 (d - 1) / d of P on the wire. */
static int check_dp(const struct sent *s, const struct trainer *t)
{
    int64_t d = t->config->spec.dp, P = parameters(t->model) * FLOAT;
    int64_t wire = s->dp.bytes[COMM_ALL_REDUCE] / d * 2 * (d - 1) +
                   (s->dp.bytes[COMM_REDUCE_SCATTER] + s->dp.bytes[COMM_ALL_GATHER]) * (d - 1);
    bool zero = t->config->spec.zero;

    return differs("wire bytes over dp", wire, 2 * (d - 1) * P / d) +
           differs("bytes of all-reduces over dp", s->dp.bytes[COMM_ALL_REDUCE], zero ? 0 : P);
}

Test(formulas, zero1_sends_as_much_as_an_all_reduce)
{
    const struct model m = llama(2, 2, 256, false);

    expect("dp2", 2, &m, check_dp);
    expect("dp2zero1", 2, &m, check_dp);
    expect("dp4", 1, &m, check_dp);
    expect("dp4zero1", 1, &m, check_dp);
}

/* A message has b s h elements, under sp b s h / t. A pipeline sends 2 m (p v - 1) messages. */
static int check_pp(const struct sent *s, const struct trainer *t)
{
    const struct spec *spec = &t->config->spec;
    int64_t m = train_config_micros(t->config), all = s->sends;
    struct tp_err err = { 0 };
    int wrong = differs("bytes of messages", s->send_bytes,
                        s->sends * B * S * H * FLOAT / (spec->sp ? spec->tp : 1));

    if (control_sum_i64(t->parallel.control, &all, 1, &err))
        return 1;
    return wrong + differs("messages of all ranks", all,
                           spec->tp * 2 * m * ((int64_t)spec->pp * spec->vpp - 1));
}

Test(formulas, pipelines_send_two_messages_per_boundary_and_microbatch)
{
    const struct model m = llama(4, 2, 256, false);

    expect("pp2", 3, &m, check_pp);
    expect("pp4", 5, &m, check_pp);
    expect("pp2vpp2", 4, &m, check_pp);
    expect("tp2pp2sp", 2, &m, check_pp);
}

/* A tied head on another stage: the embedding's gradient, V h / t, is summed once per step. */
static int check_tied(const struct sent *s, const struct trainer *t)
{
    bool end = t->net.is_first || t->net.is_last;

    return differs("sums over the first and the last stage",
                   s->embedding_ends.calls[COMM_ALL_REDUCE], end) +
           differs("their bytes", s->embedding_ends.bytes[COMM_ALL_REDUCE],
                   end * t->model->vocab / t->config->spec.tp * H * FLOAT);
}

Test(formulas, a_tied_head_costs_one_sum_between_the_first_and_the_last_stage)
{
    const struct model m = llama(3, 2, 256, true);

    expect("tp2pp3", 3, &m, check_tied);
    expect("pp2", 2, &m, check_tied);
}

/* ---- what is kept ---- */

static struct trainer_size size_of(const char *spec, int64_t micros, enum recompute recompute,
                                   const struct model *m)
{
    struct train_config c = config(spec, micros);
    struct trainer_size size;
    struct tp_err err = { 0 };

    c.recompute = recompute;
    cr_assert_eq(train_config_check(&c, m, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(trainer_measure(&size, &c, m, NULL, &err), TP_OK, "%s", err.msg);
    return size;
}

/* Bytes of activations of one layer. */
static int64_t of_a_layer(const char *spec, enum recompute recompute, struct model m)
{
    int64_t before = size_of(spec, 1, recompute, &m).activations;

    m.layers++;
    return size_of(spec, 1, recompute, &m).activations - before;
}

static int64_t aligned(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* Korthikanti et al. 2022 without dropout and without stored scores: b s (4 h + (h (2 + 2 k) + 3 f)
 * / t) elements with k = kv heads / heads, GPT-2 b s (4 h + 12 h / t); sp divides the 4 h too. A
 * layer also keeps the statistics of two norms and of the softmax, and under sp a buffer for the
 * gradients of the parameters that are not cut. */
Test(formulas, activations_of_a_layer)
{
    static const struct {
        const char *spec;
        int t, split;
    } cases[] = {
        { "tp1", 1, 1 }, { "tp2", 2, 1 }, { "tp4", 4, 1 }, { "tp2sp", 2, 2 }, { "tp4sp", 4, 4 }
    };
    int64_t rows = (int64_t)B * S;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *spec = cases[i].spec;
        int t = cases[i].t, split = cases[i].split;
        int64_t uncut = split > 1 ? FLOAT * H : 0; /* a norm's weight, a bias */

        cr_expect_eq(of_a_layer(spec, RECOMPUTE_NONE, llama(2, 4, 256, false)),
                     FLOAT * rows * (4 * H / split + (4 * H + 3 * F) / t + HEADS / t) +
                         2 * aligned(FLOAT * rows / split) + 2 * uncut,
                     "%s: %lld", spec,
                     (long long)of_a_layer(spec, RECOMPUTE_NONE, llama(2, 4, 256, false)));
        cr_expect_eq(of_a_layer(spec, RECOMPUTE_NONE, gpt2(2)),
                     FLOAT * rows * (4 * H / split + 12 * H / t + HEADS / t) +
                         2 * aligned(2 * FLOAT * rows / split) + 6 * uncut,
                     "%s", spec);
        cr_expect_eq(of_a_layer(spec, RECOMPUTE_FULL, llama(2, 4, 256, false)),
                     FLOAT * rows * H / split + 2 * uncut, "%s", spec);
        cr_expect_eq(of_a_layer(spec, RECOMPUTE_NONE, llama(2, 4, 256, false)) -
                         of_a_layer(spec, RECOMPUTE_SELECTIVE, llama(2, 4, 256, false)),
                     FLOAT * rows * (H + HEADS) / t, "%s", spec);
    }
}

/* The first of p stages keeps min(m, p) microbatches of L / p layers. */
Test(formulas, a_pipeline_keeps_as_many_microbatches_as_stages)
{
    const struct model m = llama(8, 4, 8, false); /* small vocabulary: stage 0 is largest */
    int64_t rows = (int64_t)B * S, layer = of_a_layer("tp1", RECOMPUTE_NONE, m);
    int64_t slot = 2 * layer + FLOAT * rows * (H + 2); /* its output; inputs and targets */

    for (int64_t micros = 3; micros <= 9; micros++)
        cr_expect_eq(size_of("pp4", micros, RECOMPUTE_NONE, &m).activations -
                         size_of("pp4", micros - 1, RECOMPUTE_NONE, &m).activations,
                     micros <= 4 ? slot : 0, "%lld microbatches", (long long)micros);
}

/* The moments need 8 P bytes; under zero1 and zero3 each of d replicas has 1 / d of them. */
Test(formulas, optimizer_state_is_partitioned)
{
    const struct model m = llama(2, 2, 256, false);
    int64_t P = parameters(&m);

    cr_expect_eq(size_of("dp4", 1, RECOMPUTE_NONE, &m).moments, 8 * P);
    cr_expect_eq(size_of("dp4zero1", 1, RECOMPUTE_NONE, &m).moments, 8 * P / 4);
    cr_expect_eq(size_of("dp4zero3", 1, RECOMPUTE_NONE, &m).moments, 8 * P / 4, "%lld of %lld",
                 (long long)size_of("dp4zero3", 1, RECOMPUTE_NONE, &m).moments, (long long)P);
}
