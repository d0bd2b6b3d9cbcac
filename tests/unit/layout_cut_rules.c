/* tests/unit/layout_cut_rules.c - rules that say how tensors are cut: what they mean, and what is
 * refused. */
#include "layout/cut_rules.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/random.h"

static const char good[] = "# name  axis  options\n"
                           "embed.weight  0  pad\n"
                           "\n"
                           "blocks.*.wqkv.weight 0 unit=4 blocks=3 first=32 # grouped\n"
                           "blocks.*.wk.weight\t0 share unit=4\r\n"
                           "blocks.*.experts.*.w1 1\n"
                           "blocks.*.experts.*.w2 1 expert optional\n"
                           "blocks.*.norm -\n"
                           "head.weight 0 pad\n";

static struct tensor matrix(const char *name, int64_t rows, int64_t cols)
{
    return (struct tensor){ .name = name, .ndim = 2, .shape = { rows, cols } };
}

static tp_status parse(struct cut_rules *r, const char *text, struct arena *arena,
                       struct tp_err *err)
{
    return cut_rules_parse(r, text, strlen(text), "my.rules", arena, err);
}

Test(cut_rules, a_line_gives_a_tensor_its_cut_and_its_layer)
{
    static const struct {
        const char *name;
        int layer, dim;
        struct placement want;
    } cases[] = {
        { "embed.weight", LAYER_FIRST, 0, { .dim = 0, .unit = 1, .blocks = 1, .uneven = true } },
        { "blocks.0.wqkv.weight", 0, 0, { .dim = 0, .unit = 4, .blocks = 3, .first_block = 32 } },
        { "blocks.12.wk.weight", 12, 0, { .dim = 0, .unit = 4, .blocks = 1, .replicate = true } },
        { "blocks.3.experts.7.w1", 3, 1, { .dim = 1, .unit = 1, .blocks = 1 } },
        { "blocks.9999.norm", 9999, -1, { .dim = -1, .unit = 1, .blocks = 1 } },
        { "head.weight", LAYER_LAST, 0, { .dim = 0, .unit = 1, .blocks = 1, .uneven = true } },
    };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct cut_rules r;

    cr_assert_eq(parse(&r, good, &arena, &err), TP_OK, "%s", err.msg);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor t = matrix(cases[i].name, 48, 8);
        const struct placement *p = &t.placement, *q = &cases[i].want;

        cr_assert_eq(cut_rules_check_used(&r, &err), TP_E_USAGE);
        cr_assert_eq(cut_rules_apply(&r, &t, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(t.layer, cases[i].layer, "%s: layer %d", t.name, t.layer);
        cr_expect(p->dim == q->dim && p->unit == q->unit && p->blocks == q->blocks &&
                      p->first_block == q->first_block && p->replicate == q->replicate &&
                      p->uneven == q->uneven,
                  "%s", t.name);
    }
    cr_assert_eq(cut_rules_check_used(&r, &err), TP_OK, "%s", err.msg);
    arena_free(&arena);
}

Test(cut_rules, bad_lines_are_refused_by_number)
{
    static const struct {
        const char *text, *named;
    } bad[] = {
        { "", "no rule" },
        { "# nothing\n", "no rule" },
        { "a\n", "my.rules:1" },
        { "a 0\nb 9\n", "my.rules:2: '9'" },
        { "a column\n", "'column'" },
        { "a 0 unit=0\n", "unit=0" },
        { "a 0 unit=4x\n", "unit=4x" },
        { "a 0 blocks=9\n", "blocks=9" },
        { "a 0 unit=99999999999999999999\n", "unit=9999" },
        { "a 0 unit=1073741825\n", "1 to 2^30" },
        { "a - pad\n", "'pad'" },
        { "a 0 paf\n", "'paf'" },
        { "a optional\n", "'optional' is not an axis" },
        { "a.*.b.* - expert\n", "'expert' is not possible for a tensor that is not cut" },
        { "a.* 0 expert\n", "'a.*' has too few '*'" },
        { "a 0 expert last\n", "'a' has too few '*'" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct cut_rules r;

        cr_expect_eq(parse(&r, bad[i].text, &arena, &err), TP_E_USAGE, "%s", bad[i].text);
        cr_expect(strstr(err.msg, bad[i].named), "%s", err.msg);
        arena_free(&arena);
    }
}

Test(cut_rules, tensors_that_do_not_fit_are_refused_by_name)
{
    static const struct {
        const char *rules, *name, *named;
    } bad[] = {
        { "a 0\n", "b", "no line for tensor b" },
        { "a.* 0\n", "a.x", "no line for tensor a.x" },
        { "a.* 0\n", "a.", "no line" },
        { "a.* 0\na.1 0\n", "a.1", "lines 1 and 2" },
        { "a 2\n", "a", "has no axis 2" },
        { "a 0 first=40\n", "a", "first=40" },
        { "a 0 blocks=3 first=48\n", "a", "first=48" },
        { "a 0 blocks=3 first=20\n", "a", "first=20" },
        { "a 0 blocks=3 first=32 unit=16\n", "a", "a unit at least" },
        { "a.* 0\n", "a.10000", "is not below" },
        { "a.* 0\n", "a.99999999999999999999", "is not below" },
        { "a.*.* 0 expert\n", "a.1.4096", "the expert of tensor a.1.4096 is not below 4096" },
        { "a.* 0 last expert\n", "a.99999999999999999999", "is not below 4096" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tensor t = matrix(bad[i].name, 48, 8);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct cut_rules r;

        cr_assert_eq(parse(&r, bad[i].rules, &arena, &err), TP_OK, "%s", err.msg);
        cr_expect_eq(cut_rules_apply(&r, &t, &err), TP_E_USAGE, "%s", bad[i].rules);
        cr_expect(strstr(err.msg, bad[i].named), "%s", err.msg);
        arena_free(&arena);
    }
}

Test(cut_rules, only_optional_lines_may_have_no_tensor)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor t = matrix("a", 8, 8);
    struct cut_rules r;

    cr_assert_eq(
        parse(&r, "a 0\nb 0 optional unit=4\nc - optional\nd.* 1 optional\n", &arena, &err), TP_OK,
        "%s", err.msg);
    cr_expect_eq(cut_rules_check_used(&r, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "my.rules:1: there is no tensor a; if the model may lack it, add the "
                              "word 'optional'"),
              "%s", err.msg);
    cr_assert_eq(cut_rules_apply(&r, &t, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(cut_rules_check_used(&r, &err), TP_OK, "%s", err.msg);
    t = matrix("b", 8, 8);
    cr_assert_eq(cut_rules_apply(&r, &t, &err), TP_OK, "%s", err.msg);
    cr_expect(t.placement.dim == 0 && t.placement.unit == 4,
              "an optional tensor is cut as it says");
    arena_free(&arena);
}

Test(cut_rules, an_expert_has_its_number_and_that_of_all_experts)
{
    static const struct {
        const char *name;
        int expert, experts, layer;
    } want[] = {
        { "l.0.experts.5.w1", 5, 8, 0 },
        { "l.1.experts.0.w1", 0, 8, 1 },
        { "mtp.9.experts.7.w1", 7, 8, LAYER_LAST },
        { "l.2.router", 0, 0, 2 },
        { "tail.3.experts.6.w1", 6, 8, LAYER_LAST },
    };
    enum { N = sizeof want / sizeof *want };
    struct tensor t[N];
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct cut_rules r;

    cr_assert_eq(parse(&r,
                       "mtp.*.experts.*.w1 0 last expert\nl.*.experts.*.w1 0 expert\n"
                       "l.*.router -\ntail.3.experts.*.w1 0 expert last optional\n",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    for (int i = 0; i < N; i++) {
        t[i] = matrix(want[i].name, 8, 8);
        cr_assert_eq(cut_rules_apply(&r, &t[i], &err), TP_OK, "%s", err.msg);
    }
    cut_rules_count_experts(t, N);
    for (int i = 0; i < N; i++)
        cr_expect(t[i].placement.expert == want[i].expert &&
                      t[i].placement.experts == want[i].experts && t[i].layer == want[i].layer,
                  "%s: expert %d of %d, layer %d", t[i].name, t[i].placement.expert,
                  t[i].placement.experts, t[i].layer);
    arena_free(&arena);
}

/* A line with `last` before the layers does not end the first stage. */
Test(cut_rules, last_is_of_one_line)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor t = matrix("embed", 8, 8), tail = matrix("mtp.0", 8, 8);
    struct cut_rules r;

    cr_assert_eq(parse(&r, "mtp.* - last\nembed 0 pad\nl.* -\n", &arena, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(cut_rules_apply(&r, &t, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(cut_rules_apply(&r, &tail, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(t.layer, LAYER_FIRST);
    cr_expect_eq(tail.layer, LAYER_LAST);
    arena_free(&arena);
}

/* Bytes that are changed at random are rules or are refused. */
Test(cut_rules, any_bytes_are_read_or_refused)
{
    struct rng r = rng_start("cut_rules/bytes");

    for (int i = 0; i < 3000; i++) {
        struct tensor t = matrix("blocks.1.wqkv.weight", 48, 8);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct cut_rules rules;
        char text[sizeof good];

        memcpy(text, good, sizeof good);
        for (int64_t k = rng_int(&r, 1, 8); k > 0; k--)
            text[rng_int(&r, 0, sizeof good - 2)] = (char)rng_int(&r, 0, 255);
        if (!cut_rules_parse(&rules, text, sizeof good - 1, "my.rules", &arena, &err))
            cut_rules_apply(&rules, &t, &err);
        arena_free(&arena);
    }
}
