/* tests/unit/orchestrator_conversion.c - whether a checkpoint of another layout is converted. */
#include "orchestrator/plan/conversion.h"

#include <criterion/criterion.h>
#include <string.h>

static struct tp_err err;

static struct spec spec(const char *text)
{
    struct spec s;

    cr_assert_eq(spec_parse(&s, text, &err), TP_OK, "%s", err.msg);
    return s;
}

static struct conversion_plan decide(bool tp_train, int reshard, const char *from, const char *to,
                                     struct conversion_rates rates)
{
    struct job job = { .is_tp_train = tp_train, .reshard = reshard, .ckpt = "ckpt" };
    struct spec a = spec(from), b = spec(to);
    struct conversion_plan p;

    conversion_decide(&p, &job, &a, &b, 1000000000, &rates);
    cr_assert(p.message[0]);
    return p;
}

/* What is stored does not depend on replicas or on sequence parallelism. */
Test(conversion, for_tp_train_only_axes_that_cut_shards_make_a_difference)
{
    static const struct {
        const char *from, *to;
        bool differs;
    } cases[] = {
        { "tp2", "tp2", false },
        { "tp2", "tp2dp4", false },
        { "tp2sp", "tp2", false },
        { "tp2cp2", "tp2", false },
        { "tp2", "tp4", true },
        { "tp1pp2", "tp1pp2vpp2", true },
        { "tp1dp2", "tp1dp2zero1", true },
        { "tp1dp2zero1", "tp1dp4zero1", true },
        { "tp1dp2zero3", "tp1dp2zero1", true },
        { "dp4ep2", "dp4ep4", true },
        { "dp4ep2", "dp4", true },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct conversion_rates none = { 0 };
        struct conversion_plan p = decide(true, JOB_RESHARD_AUTO, cases[i].from, cases[i].to, none);

        cr_expect_eq(p.differs, cases[i].differs, "%s to %s", cases[i].from, cases[i].to);
        cr_expect(!p.convert);
        p = decide(true, JOB_RESHARD_ALWAYS, cases[i].from, cases[i].to, none);
        cr_expect_eq(p.convert, cases[i].differs);
    }
    cr_expect(
        decide(false, JOB_RESHARD_AUTO, "tp2", "tp2dp2", (struct conversion_rates){ 0 }).convert,
        "another program may read only the same layout");
    cr_expect(
        !decide(false, JOB_RESHARD_NEVER, "tp2", "tp4", (struct conversion_rates){ 0 }).convert);
}

Test(conversion, a_step_in_a_store_is_read_at_the_other_layout)
{
    const struct conversion_rates slow_load = { 1e9, 0.1e9, 0.4e9 };
    const struct job job = { .is_tp_train = true, .ckpt = "s3://bucket/ckpt" };
    const struct spec from = spec("tp2"), to = spec("tp4");
    struct conversion_plan p;

    conversion_decide(&p, &job, &from, &to, 1000000000, &slow_load);
    cr_expect(p.differs && !p.convert);
    cr_expect_eq(p.reason, REASON_STORE_NOT_CONVERTED);
}

Test(conversion, measured_times_decide_which_way_is_faster)
{
    const struct conversion_rates nothing = { 0 }, usual = { 1e9, 0.8e9, 0.4e9 };
    const struct conversion_rates slow_load = { 1e9, 0.1e9, 0.4e9 };
    struct conversion_plan p = decide(true, JOB_RESHARD_AUTO, "tp2", "tp4", nothing);

    cr_expect(!p.convert && p.resume_seconds > 0 && p.resume_seconds < p.convert_seconds);
    p = decide(true, JOB_RESHARD_AUTO, "tp2", "tp4", usual);
    cr_expect(!p.convert);
    cr_expect_float_eq(p.resume_seconds, 1 / 0.8, 1e-9);
    cr_expect_float_eq(p.convert_seconds, 1 / 0.4 + 1, 1e-9);
    p = decide(true, JOB_RESHARD_AUTO, "tp2", "tp4", slow_load);
    cr_expect(p.convert, "%s", p.message);
}

Test(conversion, every_axis_is_named_so_that_none_keeps_its_old_degree)
{
    static const char *const texts[] = { "tp2", "tp1", "dp4ep4", "tp4pp2vpp2cp2dp2spzero3" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct spec to = spec(texts[i]), source = spec("tp8pp2vpp2dp2ep2zero1"), read;
        char text[CONVERSION_SPEC_MAX], a[SPEC_TEXT_MAX], b[SPEC_TEXT_MAX];

        cr_assert_eq(spec_parse(&read, conversion_spec(text, &to), &err), TP_OK, "%s", err.msg);
        spec_fill(&read, &source);
        cr_expect_str_eq(spec_format(a, &read), spec_format(b, &to));
    }
}
