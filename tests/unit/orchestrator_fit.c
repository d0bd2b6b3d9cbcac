/* tests/unit/orchestrator_fit.c - tp-train accepts what tp-run plans, and refuses what tp-run
 * refuses, with the same message. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_config.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/plan/candidates.h"
#include "tests/unit/random_model.h"
#include "tests/unit/temp_dir.h"
#include "trainer/suggestions.h"

enum { ROUNDS = 150, SPECS = 16, RANKS_MAX = 1 << 14 };

static struct tp_err err;

TestSuite(fit, .init = temp_dir_make, .fini = temp_dir_remove, .timeout = 120);

/* A random model, read from a config.json. */
static struct model read_random_model(struct rng *r, const char *path, struct arena *arena)
{
    static const char llama[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":%lld,"
        "\"hidden_size\":%lld,\"intermediate_size\":%lld,"
        "\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
        "\"head_dim\":%lld,\"max_position_embeddings\":%lld}";
    static const char gpt2[] =
        "{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":%lld,\"n_embd\":%lld,"
        "\"n_inner\":%lld,\"n_layer\":%d,\"n_head\":%d,\"n_positions\":%lld}";
    struct model m = random_model(r), read;
    const char *text;

    if (m.family == MODEL_LLAMA)
        text = arena_printf(arena, llama, (long long)m.vocab, (long long)m.hidden, (long long)m.ffn,
                            m.layers, m.heads, m.kv_heads, (long long)m.head_dim,
                            (long long)m.max_positions);
    else
        text = arena_printf(arena, gpt2, (long long)m.vocab, (long long)m.hidden, (long long)m.ffn,
                            m.layers, m.heads, (long long)m.max_positions);
    remove(path);
    cr_assert_eq(file_write_new(path, text, strlen(text), &err), TP_OK, "%s", err.msg);
    cr_assert_eq(model_config_parse(&read, text, strlen(text), path, arena, &err), TP_OK, "%s",
                 err.msg);
    return read;
}

/* A run that is usually possible at some layouts, and sometimes at none. */
static struct train_config random_run(struct rng *r, const struct model *m)
{
    static const int bits[] = { 2, 4, 8, 1, 3, 512, -2 };
    struct train_config c = train_config_default();

    c.steps = 1;
    c.ckpt = "somewhere";
    c.dtype = rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
    c.seq_length = rng_int(r, 0, 9) ? rng_int(r, 1, m->max_positions) : rng_int(r, 1, 80);
    if (rng_int(r, 0, 1))
        c.seq_length = c.seq_length / 4 * 4 + 4 * (c.seq_length < 4);
    c.global_batch_size =
        rng_int(r, 0, 19) ? rng_int(r, 1, 6) * (1 << rng_int(r, 0, 3)) : rng_int(r, -1, 0);
    c.micro_batch_size = rng_int(r, 0, 1) ? 0 : rng_int(r, 0, 9) ? rng_int(r, 1, 3) : -1;
    c.recompute = (enum recompute)rng_int(r, 0, RECOMPUTE_COUNT - 1);
    if (rng_int(r, 0, 2) == 0)
        c.same_bits = bits[rng_int(r, 0, rng_int(r, 0, 3) ? 3 : 6)];
    return c;
}

/* A random layout. Half of them divide the model. */
static struct spec any_spec(struct rng *r, const struct model *m)
{
    struct spec s = random_spec(r, m);

    s.dp = (int)rng_int(r, 1, 6);
    if (rng_int(r, 0, 1))
        return s;
    s.tp = (int)rng_int(r, 1, 9);
    s.pp = (int)rng_int(r, 1, 8);
    s.vpp = rng_int(r, 0, 2) ? 1 : (int)rng_int(r, 1, 3);
    s.cp = rng_int(r, 0, 2) ? 1 : (int)rng_int(r, 1, 4);
    return s;
}

/* The job of such a run, which allows these layouts. recompute: whether the command has the option
 * --recompute. */
static struct job job_of(const struct train_config *c, bool recompute, const struct spec *specs,
                         struct arena *arena)
{
    const char *more = "", *allow = "";
    char *text, spec[SPEC_TEXT_MAX];
    struct job job;

    if (c->micro_batch_size)
        more = arena_printf(arena, " --micro=%lld", (long long)c->micro_batch_size);
    if (c->same_bits)
        more = arena_printf(arena, "%s --same-bits %d", more, c->same_bits);
    if (recompute)
        more = arena_printf(arena, "%s --recompute %s", more, recompute_name(c->recompute));
    for (int i = 0; i < SPECS; i++)
        allow = arena_printf(arena, "%s%s%s", allow, i ? ", " : "", spec_format(spec, &specs[i]));
    text = arena_printf(arena,
                        "command: tp-train --model %s --steps 1 --dtype %s --seq %lld --batch %lld"
                        "%s\nckpt: c\nlayouts:\n  allow: [%s]\n",
                        c->model_path, dtype_name(c->dtype), (long long)c->seq_length,
                        (long long)c->global_batch_size, more, allow);
    cr_assert_eq(
        job_file_parse(&job, text, strlen(text), "/tmp/x.yaml", backends_job(), arena, &err), TP_OK,
        "%s", err.msg);
    return job;
}

/* Whether tp-train accepts a run at s. If not, *why has its message. */
static bool accepts(const struct train_config *c, const struct spec *s, const struct model *m,
                    struct tp_err *why)
{
    struct train_config asked = *c, checked;

    asked.spec = *s;
    return suggestions_check(&checked, &asked, m, why) == TP_OK;
}

/* Whether tp-train accepts the run at s with any microbatch. */
static bool accepts_any(const struct train_config *c, const struct spec *s, const struct model *m)
{
    struct train_config other = *c;
    struct tp_err ignored;

    for (other.micro_batch_size = 1; other.micro_batch_size <= c->global_batch_size;
         other.micro_batch_size++)
        if (accepts(&other, s, m, &ignored))
            return true;
    return false;
}

struct tally {
    int offered, refused, never;
};

static void compare(struct tally *n, const struct train_config *c, const struct model *m,
                    const struct plan_candidate *x, bool recompute)
{
    struct train_config as_planned = *c;
    struct tp_err why = { 0 };
    char config[RUN_CONFIG_TEXT_MAX];

    run_config_format(config, &x->config);
    if (x->legal) {
        n->offered++;
        as_planned.micro_batch_size = x->config.micro ? x->config.micro : c->micro_batch_size;
        as_planned.recompute = recompute ? c->recompute : x->config.recompute;
        cr_assert(accepts(&as_planned, &x->config.spec, m, &why), "tp-run offers %s, tp-train: %s",
                  config, why.msg);
        return;
    }
    n->refused++;
    cr_assert(!accepts(c, &x->config.spec, m, &why), "tp-train runs %s, tp-run: %s", config,
              x->why);
    cr_assert(x->why[0] && strncmp(why.msg, x->why, strlen(x->why)) == 0,
              "%s: tp-run says: %s; tp-train: %s", config, x->why, why.msg);
    cr_assert(c->micro_batch_size || c->same_bits || !accepts_any(c, &x->config.spec, m),
              "tp-train runs %s at another --micro, tp-run: %s", config, x->why);
}

/* For a run that is impossible everywhere: tp-run's error must be tp-train's at every layout that
 * fits the tensors. */
static void compare_never(struct tally *n, const struct train_config *c, const struct model *m,
                          const struct spec *specs)
{
    const char *reason = strstr(err.msg, "--");
    struct tp_err why = { 0 };

    cr_assert_not_null(reason, "%s", err.msg);
    n->never++;
    for (int i = 0; i < SPECS; i++) {
        cr_assert(!accepts(c, &specs[i], m, &why), "tp-run: %s", err.msg);
        cr_assert(strncmp(why.msg, "layout ", 7) == 0 || strcmp(why.msg, reason) == 0,
                  "tp-run says: %s; tp-train: %s", err.msg, why.msg);
    }
}

Test(fit, tp_run_offers_what_tp_train_accepts_and_refuses_what_it_refuses)
{
    struct rng r = rng_start("fit/rules");
    struct tally all = { 0 };
    char path[64];

    snprintf(path, sizeof path, "%s/config.json", temp_dir);
    for (int round = 0; round < ROUNDS; round++) {
        struct arena arena = { 0 };
        struct model m = read_random_model(&r, path, &arena);
        struct train_config c = random_run(&r, &m);
        bool recompute = rng_int(&r, 0, 1);
        struct spec specs[SPECS];
        struct plan_candidate *x;
        struct job job;
        tp_status st;
        int n;

        c.model_path = path;
        for (int i = 0; i < SPECS; i++)
            specs[i] = any_spec(&r, &m);
        job = job_of(&c, recompute, specs, &arena);
        st = candidates_find(&x, &n, &job, NULL, RANKS_MAX, &arena, &err);
        cr_assert(st == TP_OK || st == TP_E_USAGE, "%s", err.msg);
        if (st)
            compare_never(&all, &c, &m, specs);
        for (int i = 0; !st && i < n; i++)
            compare(&all, &c, &m, &x[i], recompute);
        arena_free(&arena);
    }
    fprintf(stderr, "fit/rules: %d offered, %d refused, %d runs impossible\n", all.offered,
            all.refused, all.never);
    cr_assert(all.offered > ROUNDS && all.refused > ROUNDS && all.never > ROUNDS / 50);
}
