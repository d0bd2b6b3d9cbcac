/* tests/unit/layout_parallel_plan.c - parallel plans are read, checked and applied to the tensors.
 * covers: layout/parallel_plan_text layout/parallel_plan_check */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/layout.h"
#include "layout/model_tensors.h"
#include "layout/parallel_plan.h"
#include "tests/unit/random_model.h"

/* Replace runs of spaces by one space. */
static void squeeze(char *text)
{
    char *to = text;

    for (const char *from = text; *from; from++)
        if (*from != ' ' || to == text || to[-1] != ' ')
            *to++ = *from;
    *to = 0;
}

/* The built-in plan's text with single spaces, and with the first `from` replaced by `to`. */
static char *edited(const struct model *m, const char *from, const char *to, struct arena *arena)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    char *text = parallel_plan_format(&plan, arena), *at = NULL;

    squeeze(text);
    cr_assert(text && (at = strstr(text, from)), "no '%s' in the plan", from);
    return arena_printf(arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static tp_status parse_and_check(struct parallel_plan *p, const char *text, const struct model *m,
                                 struct arena *arena, struct tp_err *err)
{
    tp_status st = parallel_plan_parse(p, text, strlen(text), "my.plan", arena, err);

    return st ? st : parallel_plan_check(p, m, "my.plan", err);
}

Test(parallel_plan, built_in_plans_are_valid_and_read_back_as_printed)
{
    const struct model models[] = { small_llama(), small_gpt2() };

    for (int i = 0; i < 2; i++) {
        const struct parallel_plan want = parallel_plan_of(&models[i]);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct parallel_plan got;

        cr_assert_eq(parallel_plan_check(&want, &models[i], "built in", &err), TP_OK, "%s",
                     err.msg);
        cr_assert_eq(
            parse_and_check(&got, parallel_plan_format(&want, &arena), &models[i], &arena, &err),
            TP_OK, "%s", err.msg);
        cr_assert_eq(got.n, want.n);
        for (int k = 0; k < want.n; k++) {
            cr_assert_eq(got.entries[k].role, want.entries[k].role);
            cr_assert_eq(got.entries[k].cut, want.entries[k].cut);
            cr_assert_str_eq(got.entries[k].pattern, want.entries[k].pattern);
        }
        arena_free(&arena);
    }
}

Test(parallel_plan, a_refusal_names_what_does_not_fit_and_what_fits)
{
    static const struct {
        enum model_family family;
        const char *from, *to, *says[3];
    } bad[] = {
        { MODEL_LLAMA,
          "o_proj.weight row head",
          "o_proj.weight replicated",
          { "self_attn.q_proj.weight (attention.q) is column-parallel",
            "o_proj.weight (attention.out), which reads it, is replicated",
            "make attention.out row, or attention.q replicated" } },
        { MODEL_LLAMA,
          "down_proj.weight row",
          "down_proj.weight column",
          { "mlp.gate", "column-parallel", "make mlp.down row" } },
        { MODEL_LLAMA,
          "q_proj.weight column",
          "q_proj.weight row",
          { "(attention.q) is row-parallel", "attention.norm", "column or replicated" } },
        { MODEL_LLAMA,
          "gate_proj.weight column",
          "gate_proj.weight replicated",
          { "(mlp.down) is row-parallel", "(mlp.gate)", "replicated" } },
        { MODEL_LLAMA,
          "input_layernorm.weight sequence",
          "input_layernorm.weight column",
          { "attention.norm", "cannot be cut by column" } },
        { MODEL_LLAMA,
          "model.norm.weight",
          "lm_head.weight",
          { "same name", "lm_head.weight", "norm" } },
        { MODEL_LLAMA,
          "norm model.norm.weight",
          "positions model.norm.weight",
          { "positions", "not part of a LlamaForCausalLM" } },
        { MODEL_GPT2,
          "c_fc.bias column",
          "c_fc.bias replicated",
          { "c_fc.weight is column", "c_fc.bias is replicated", "must be column too" } },
        { MODEL_GPT2,
          "transformer.wpe.weight replicated",
          "transformer.wpe.weight vocabulary",
          { "wpe", "cannot be cut by vocabulary" } },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct parallel_plan p;
        struct model m = bad[i].family == MODEL_GPT2 ? small_gpt2() : small_llama();
        char *text = edited(&m, bad[i].from, bad[i].to, &arena);

        cr_expect_eq(parse_and_check(&p, text, &m, &arena, &err), TP_E_USAGE, "case %zu", i);
        for (int k = 0; k < 3 && bad[i].says[k]; k++)
            cr_expect(strstr(err.msg, bad[i].says[k]) && strstr(err.msg, "my.plan"),
                      "case %zu: '%s' is not in: %s", i, bad[i].says[k], err.msg);
        arena_free(&arena);
    }
}

Test(parallel_plan, names_the_line_that_cannot_be_read)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "attention.q", "my.plan:1: has 1 words" },
        { "# x\n\nattention.z a.*.b column", "my.plan:3: role 'attention.z'" },
        { "attention.q a.b column", "pattern with one '*'" },
        { "attention.q a.*.*.b column", "pattern with one '*'" },
        { "embedding a.*.b vocabulary", "without '*'" },
        { "embedding a.b diagonal", "cut 'diagonal'" },
        { "attention.q a.*.b column kv_head", "unit of attention.q is 'head', not 'kv_head'" },
        { "attention.q a.*.b column head more", "more than 4 words" },
        { "attention.q a.*.b column\nattention.q c.*.d column", "my.plan:2: a second line" },
        { "attention.q a.*%s column", "plain ASCII" },
        { "attention.q a.*\xff column", "plain ASCII" },
        { "", "no line for embedding" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct model m = small_llama();
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct parallel_plan p;

        cr_expect_eq(parse_and_check(&p, bad[i].text, &m, &arena, &err), TP_E_USAGE);
        cr_expect(strstr(err.msg, bad[i].says), "'%s' is not in: %s", bad[i].says, err.msg);
        arena_free(&arena);
    }
}

/* Damaged text is parsed or refused, and never causes a crash. */
Test(parallel_plan, damaged_text_is_read_or_refused_with_a_sentence)
{
    struct rng r = rng_start("plan/hostile");

    for (int i = 0; i < 500; i++) {
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct model m = small_llama();
        const struct parallel_plan plan = parallel_plan_of(&m);
        struct parallel_plan p;
        char *text = parallel_plan_format(&plan, &arena), *copy;
        size_t size = strlen(text);
        tp_status st;

        copy = malloc(size); /* exact size, so the sanitizer detects a read past the end */
        memcpy(copy, text, size);
        for (int64_t k = rng_int(&r, 1, 6); k > 0; k--)
            copy[rng_int(&r, 0, (int64_t)size - 1)] = (char)rng_int(&r, 0, 255);
        st =
            parallel_plan_parse(&p, copy, (size_t)rng_int(&r, 0, (int64_t)size), "x", &arena, &err);
        if (!st)
            st = parallel_plan_check(&p, &m, "x", &err);
        cr_expect(st ? st == err.status && err.msg[0] : !err.msg[0], "round %d: %s", i, err.msg);
        free(copy);
        arena_free(&arena);
    }
}

/* Other names, and an MLP that is not cut. */
Test(parallel_plan, other_names_and_cuts_reach_the_layout)
{
    static const char text[] = "embedding tok.weight vocabulary token\n"
                               "attention.norm blk.*.n1 sequence\n"
                               "attention.q blk.*.wq column head\n"
                               "attention.k blk.*.wk column kv_head\n"
                               "attention.v blk.*.wv column kv_head # shared when tp > 2\n"
                               "attention.out blk.*.wo row head\n"
                               "mlp.norm blk.*.n2 sequence\n"
                               "mlp.gate blk.*.w1 replicated\n"
                               "mlp.up blk.*.w3 replicated\n"
                               "mlp.down blk.*.w2 replicated\n"
                               "norm out.norm sequence\n"
                               "head out.weight vocabulary\n";
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m = small_llama();
    struct spec s = spec_default();
    struct parallel_plan p;
    struct tensor *t;
    struct box b[TENSOR_BOXES_MAX];
    int n, seen = 0;

    s.tp = 8;
    cr_assert_eq(parse_and_check(&p, text, &m, &arena, &err), TP_OK, "%s", err.msg);
    m.plan = &p;
    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < n; i++)
        if (strcmp(t[i].name, "blk.2.wq") == 0) {
            cr_assert(layout_tp_boxes(&t[i], &s, 3, b) == 1 && b[0].lo[0] == 48);
            seen++;
        } else if (strcmp(t[i].name, "blk.2.w1") == 0) {
            cr_assert(layout_tp_boxes(&t[i], &s, 3, b) == 1 && b[0].len[0] == 344);
            seen++;
        }
    cr_assert_eq(seen, 2);
    arena_free(&arena);
}
