/* tests/unit/orchestrator_job.c - splitting words, and the axes of a job. */
#include "orchestrator/job/job.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(job, words_are_split_as_a_shell_does)
{
    struct arena arena = { 0 };
    struct tp_err err;
    struct job_words w;

    cr_assert_eq(job_split(&w, " a 'b c'\t\"d \\\" e\" f\\ g '' ", &arena, &err), TP_OK);
    cr_assert_eq(w.n, 5);
    cr_expect_str_eq(w.word[1], "b c");
    cr_expect_str_eq(w.word[2], "d \" e");
    cr_expect_str_eq(w.word[3], "f g");
    cr_expect_str_eq(w.word[4], "");
    cr_expect_eq(job_split(&w, "a 'b", &arena, &err), TP_E_USAGE);
    arena_free(&arena);
}

Test(job, the_axis_zero_allows_all_its_levels)
{
    char *axes[] = { "tp", "zero", NULL };
    const struct job j = { .layouts.axes = { 2, axes } };

    cr_expect(job_has_axis(&j, "tp") && job_has_axis(&j, "zero1") && job_has_axis(&j, "zero3"));
    cr_expect_not(job_has_axis(&j, "pp"));
}
