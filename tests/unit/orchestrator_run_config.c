/* tests/unit/orchestrator_run_config.c - run configs as text. */
#include "orchestrator/job/run_config.h"

#include <criterion/criterion.h>

Test(run_config, what_is_written_is_read_back)
{
    static const char *const texts[] = { "tp1", "tp2pp2", "tp2pp2 micro1",
                                         "tp2dp2zero1 micro12 recompute-full",
                                         "cp2 recompute-selective" };
    struct tp_err err;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct run_config c, again;
        char text[RUN_CONFIG_TEXT_MAX];

        cr_assert_eq(run_config_parse(&c, texts[i], &err), TP_OK, "%s", err.msg);
        run_config_format(text, &c);
        cr_assert_eq(run_config_parse(&again, text, &err), TP_OK, "%s", err.msg);
        cr_expect(run_config_same(&c, &again), "%s, %s", texts[i], text);
    }
}

Test(run_config, other_texts_are_refused)
{
    static const char *const texts[] = { "",
                                         "tpx",
                                         "tp2 micro",
                                         "tp2 micro0",
                                         "tp2 micro-1",
                                         "tp2 recompute-most",
                                         "tp2 recompute-none",
                                         "tp2 micro1 more",
                                         "tp2  micro1" };
    struct tp_err err;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct run_config c;

        cr_expect_neq(run_config_parse(&c, texts[i], &err), TP_OK, "\"%s\"", texts[i]);
    }
}

Test(run_config, it_replaces_only_what_it_sets)
{
    const struct workload asked = { .micro_batch_size = 4,
                                    .global_batch_size = 8,
                                    .recompute = RECOMPUTE_SELECTIVE };
    const struct run_config none = { .spec = spec_default() },
                            some = { .micro = 2, .recompute = RECOMPUTE_FULL };

    cr_expect_eq(run_config_work(&asked, &none).micro_batch_size, 4);
    cr_expect_eq(run_config_work(&asked, &none).recompute, RECOMPUTE_SELECTIVE);
    cr_expect_eq(run_config_work(&asked, &some).micro_batch_size, 2);
    cr_expect_eq(run_config_work(&asked, &some).recompute, RECOMPUTE_FULL);
    cr_expect_eq(run_config_work(&asked, &some).global_batch_size, 8);
}
