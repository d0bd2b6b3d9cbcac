/* tests/unit/trainer_suggestions.c - the suggestions of a refusal can run. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/size.h"
#include "tests/unit/random_model.h"
#include "trainer/sizing/gpu_memory.h"
#include "trainer/suggestions.h"
#include "trainer/trainer.h"

static struct train_config random_config(struct rng *r, const struct model *m)
{
    struct train_config c = train_config_default();

    c.model_path = "a random model";
    c.steps = 1;
    c.dtype = rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
    c.seq_length = rng_int(r, 1, m->max_positions);
    c.global_batch_size = rng_int(r, 1, 64);
    c.micro_batch_size = rng_int(r, 0, 1) ? 0 : rng_int(r, 1, 4);
    c.spec.tp = (int)rng_int(r, 1, 9);
    c.spec.pp = (int)rng_int(r, 1, 6);
    c.spec.vpp = rng_int(r, 0, 3) ? 1 : 2;
    c.spec.dp = (int)rng_int(r, 1, 5);
    c.spec.sp = rng_int(r, 0, 2) == 0;
    c.spec.zero = (int)(int[]){ 0, 1, 3 }[rng_int(r, 0, 2)];
    return c;
}

static tp_status budget(const struct train_config *c, const struct model *m, struct tp_err *err)
{
    int most_threads;

    return suggestions_budget(&most_threads, c, m, err);
}

/* The run that a suggestion ("tp4pp2", "--micro 2", "--recompute full --micro 2") describes. */
static struct train_config as_suggested(const struct train_config *asked, const char *phrase)
{
    struct train_config c = *asked;
    const char *micro = strstr(phrase, "--micro ");
    struct tp_err err = { 0 };

    if (strstr(phrase, "--recompute")) {
        c.recompute = strstr(phrase, "full") ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE;
    }
    if (micro)
        c.micro_batch_size = strtoll(micro + 8, NULL, 10);
    if (phrase[0] != '-')
        cr_assert_eq(spec_parse(&c.spec, phrase, &err), TP_OK, "%s", err.msg);
    return c;
}

/* Check every "NAME (BYTES), ..." after `lead` in a sentence. Returns their number. */
static int check_phrases(const struct train_config *asked, const struct model *m,
                         const char *sentence, const char *lead)
{
    const char *list = strstr(sentence, lead);
    char copy[TP_ERR_MAX], *rest = copy, *phrase;
    int n = 0;

    if (!list)
        return 0;
    snprintf(copy, sizeof copy, "%s", list + strlen(lead));
    while ((phrase = strtok_r(NULL, ",", &rest))) {
        struct train_config c, run;
        struct tp_err err = { 0 };
        struct arena arena = { 0 };
        struct layout layout;

        phrase += strspn(phrase, " ");
        phrase[strcspn(phrase, "(")] = 0;
        while (phrase[0] && phrase[strlen(phrase) - 1] == ' ')
            phrase[strlen(phrase) - 1] = 0;
        run = c = as_suggested(asked, phrase);
        cr_assert_eq(suggestions_check(&run, &c, m, &err), TP_OK, "%s: %s", sentence, err.msg);
        cr_assert_eq(trainer_layout(&layout, &run, m, &arena, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(budget(&c, m, &err), TP_OK, "%s: %s", sentence, err.msg);
        arena_free(&arena);
        n++;
    }
    return n;
}

Test(suggestions, layouts_suggested_for_one_that_cannot_run_can_run)
{
    struct rng r = rng_start("advice/layouts");
    int refused = 0, named = 0;

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct train_config asked = random_config(&r, &m), c;
        struct tp_err err = { 0 };

        if (suggestions_check(&c, &asked, &m, &err) != TP_E_LAYOUT)
            continue;
        refused++;
        named += check_phrases(&asked, &m, err.msg, "nearest that would run: ");
    }
    cr_assert(refused > 50 && named > refused, "%d refused, %d named", refused, named);
}

/* Bytes of the largest rank of a run. */
static int64_t need_of(const struct train_config *c, const struct model *m)
{
    const struct workload w = train_config_work(c);
    struct arena a = { 0 };
    struct memory_model mm;
    struct tp_err err = { 0 };
    int64_t need;

    cr_assert_eq(memory_model_make(&mm, m, &a, &err), TP_OK, "%s", err.msg);
    need = memory_estimate(&mm, &c->spec, &w, c->ckpt != NULL).total;
    arena_free(&a);
    return need;
}

/* A number of threads that was asked for counts. Else there are as many as fit. */
Test(suggestions, the_memory_of_each_thread_counts)
{
    struct rng r = rng_start("advice/threads");
    struct train_config c = { .ckpt = NULL };
    struct model m;
    struct tp_err err = { 0 };
    int64_t one, each;
    int threads;

    do {
        m = random_model(&r);
        c = random_config(&r, &m);
    } while (train_config_check(&c, &m, &err) || c.micro_batch_size < 2);
    c.ckpt = "ckpt";
    one = need_of(&c, &m);
    c.threads = 2;
    each = need_of(&c, &m) - one;
    cr_expect_gt(each, 0);
    c.mem_bytes = one + each - 1;
    cr_expect_eq(suggestions_budget(&threads, &c, &m, &err), TP_E_BUDGET);
    c.threads = 0;
    for (int more = 0; more < 4; more++) {
        c.mem_bytes = one + more * each;
        cr_expect_eq(suggestions_budget(&threads, &c, &m, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(threads, 1 + more);
    }
    m.hidden = m.ffn = c.global_batch_size = c.micro_batch_size = 1 << 20;
    m.max_positions = c.seq_length = 1 << 10;
    c.spec = spec_default();
    c.mem_bytes = INT64_MAX;
    cr_assert_eq(need_of(&c, &m), MEMORY_MOST);
    cr_expect_eq(suggestions_budget(&threads, &c, &m, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(threads, INT_MAX, "what cannot be counted needs no more for a thread");
}

/* What --ckpt-zstd needs counts. (Without --ckpt it is refused.) */
Test(suggestions, the_memory_of_compression_counts)
{
    struct rng r = rng_start("advice/zstd");
    struct train_config c = { .ckpt = NULL };
    struct model m;
    struct tp_err err = { 0 };

    do {
        m = random_model(&r);
        c = random_config(&r, &m);
    } while (train_config_check(&c, &m, &err));
    c.ckpt = "ckpt";
    c.ckpt_zstd = 0;
    c.mem_bytes = need_of(&c, &m);
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
    c.ckpt_zstd = 19;
    cr_expect_eq(budget(&c, &m, &err), TP_E_BUDGET);
    c.mem_bytes += INT64_C(512) << 20;
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
}

/* What --logits gathers on rank 0 counts, and the refusal says what fits without it. */
Test(suggestions, the_memory_of_logits_counts)
{
    struct rng r = rng_start("advice/logits");
    struct train_config c = { .ckpt = NULL };
    struct model m;
    struct tp_err err = { 0 };
    int64_t bytes;

    do {
        m = random_model(&r);
        c = random_config(&r, &m);
    } while (train_config_check(&c, &m, &err));
    c.mem_bytes = need_of(&c, &m);
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
    c.logits = "logits";
    bytes = c.global_batch_size * c.seq_length * m.vocab * (int64_t)sizeof(float);
    c.mem_bytes += 3 * bytes; /* gathered, the tensor, the file */
    cr_expect_eq(budget(&c, &m, &err), TP_E_BUDGET);
    cr_expect(strstr(err.msg, ", --logits ") && strstr(err.msg, "would fit: no --logits ("), "%s",
              err.msg);
    c.mem_bytes += (int64_t)c.spec.tp * bytes + (INT64_C(1) << 20);
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
}

/* tp-run compares the same estimate with a GPU. */
Test(suggestions, with_gpus_the_limit_is_that_of_a_gpus_memory)
{
    struct rng r = rng_start("advice/gpu");
    struct train_config c = { .ckpt = NULL };
    struct memory_model mm;
    struct workload w;
    struct model m;
    struct arena a = { 0 };
    struct tp_err err = { 0 };

    do {
        m = random_model(&r);
        c = random_config(&r, &m);
    } while (train_config_check(&c, &m, &err));
    w = train_config_work(&c);
    cr_assert_eq(memory_model_make(&mm, &m, &a, &err), TP_OK, "%s", err.msg);
    c.on_gpu = true;
    c.mem_bytes = gpu_memory_estimate(&mm, &c.spec, &w).total;
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
    c.mem_bytes--;
    cr_expect_eq(budget(&c, &m, &err), TP_E_BUDGET);
    cr_expect(strstr(err.msg, "(tensors ") && strstr(err.msg, ", CUDA "), "%s", err.msg);
    c.on_gpu = false;
    cr_expect_eq(budget(&c, &m, &err), TP_OK, "%s", err.msg);
    arena_free(&a);
}

Test(suggestions, suggestions_for_a_run_that_is_too_large_fit)
{
    struct rng r = rng_start("advice/budget");
    int refused = 0, named = 0;

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct train_config asked, c;
        struct tp_err err = { 0 };

        m.hidden *= m.family == MODEL_GPT2 ? 1 : 64;
        m.vocab *= 100;
        asked = random_config(&r, &m);
        asked.spec = random_spec(&r, &m);
        asked.spec.cp = 1;
        if (suggestions_check(&c, &asked, &m, &err) != TP_OK)
            continue;
        asked.mem_bytes = need_of(&c, &m) * rng_int(&r, 70, 99) / 100;
        cr_assert_eq(budget(&asked, &m, &err), TP_E_BUDGET);
        refused++;
        named += check_phrases(&asked, &m, err.msg, "would fit: ");
    }
    cr_assert(refused > 20 && named > 10, "%d refused, %d named", refused, named);
}

/* The cost does not depend on the number of layers. This is a model with very many layers, at
 * layouts that cannot run and in memory that is too small. */
Test(suggestions, for_10000_layers_take_no_time)
{
    static const char *const specs[] = { "tp1", "tp7", "tp7pp2000", "tp16pp2000", "tp16pp300dp8" };
    const struct model m = { .family = MODEL_LLAMA,
                             .vocab = 4096,
                             .hidden = 1024,
                             .ffn = 4096,
                             .layers = 10000,
                             .heads = 16,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .max_positions = 8192 };
    double start = clock_cpu_seconds();

    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct train_config c = train_config_default(), checked;
        struct tp_err err = { 0 };

        c.model_path = "a deep model";
        c.global_batch_size = 4096;
        c.mem_bytes = INT64_C(64) << 20;
        cr_assert_eq(spec_parse(&c.spec, specs[i], &err), TP_OK);
        if (!suggestions_check(&checked, &c, &m, &err))
            cr_assert_eq(budget(&c, &m, &err), TP_E_BUDGET);
        cr_log_info("%s: %s", specs[i], err.msg);
    }
    cr_assert_lt(clock_cpu_seconds() - start, 2);
}
