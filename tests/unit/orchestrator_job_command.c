/* tests/unit/orchestrator_job_command.c - the command line of an attempt. */
#include "orchestrator/backends.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/job/job_file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct tp_err err;

static tp_status parse(struct job *j, const char *text)
{
    return job_file_parse(j, text, strlen(text), "/tmp/x.yaml", backends_job(), &arena, &err);
}

Test(job_command, the_command_gets_layout_checkpoint_and_resume)
{
    struct job j;
    struct job_words w;
    struct run_config s;

    cr_assert_eq(run_config_parse(&s, "tp2dp2", &err), TP_OK);
    cr_assert_eq(parse(&j, "command: tp-train --steps 9 --resume\nckpt: c\n"), TP_OK);
    cr_assert_eq(job_command(&w, &j, &s, 3, true, &arena, &err), TP_OK);
    cr_assert_eq(w.n, 7);
    cr_expect_str_eq(w.word[3], "--layout=tp2dp2");
    cr_expect_str_eq(w.word[4], "--ckpt=/tmp/c");
    cr_expect_str_eq(w.word[6], "--resume=must");
    cr_assert_eq(run_config_parse(&s, "tp2pp2 micro3 recompute-full", &err), TP_OK);
    cr_assert_eq(job_command(&w, &j, &s, 3, true, &arena, &err), TP_OK);
    cr_expect_str_eq(w.word[4], "--micro=3");
    cr_expect_str_eq(w.word[5], "--recompute=full");
    cr_assert_eq(run_config_parse(&s, "tp2dp2", &err), TP_OK);
    cr_assert_eq(parse(&j, "command: [my, '{layout}@{ranks}', '-c{ckpt}']\nckpt: /c\n"), TP_OK);
    cr_assert_eq(job_command(&w, &j, &s, 3, true, &arena, &err), TP_OK);
    cr_assert_eq(w.n, 3);
    cr_expect_str_eq(w.word[1], "tp2dp2@4");
    cr_expect_str_eq(w.word[2], "-c/c");
    cr_assert_eq(parse(&j, "command: [my, '{tp}/{pp}/{vpp}/{dp}/{cp}/{ep}/{x}']\nckpt: /c\n"),
                 TP_OK);
    cr_assert_eq(run_config_parse(&s, "tp2pp4vpp3dp5cp7ep35", &err), TP_OK);
    cr_assert_eq(job_command(&w, &j, &s, 3, true, &arena, &err), TP_OK);
    cr_expect_str_eq(w.word[1], "2/4/3/5/7/35/{x}");
    cr_assert_eq(parse(&j, "command: tp-train\nckpt: c\nsteps: 9\n"), TP_OK);
    cr_assert_eq(job_command(&w, &j, &s, 3, true, &arena, &err), TP_OK);
    cr_expect_str_eq(w.word[2], "--steps=9");
}

/* If each character copied the text before it, half a terabyte would be copied, in minutes. */
Test(job_command, a_long_word_is_filled_in_one_pass, .timeout = 60)
{
    enum { N = 1000000 };
    char *text = calloc(1, N + 10);
    char *word[] = { text, NULL };
    const struct job_words in = { .n = 1, .word = word };
    const struct spec layout = spec_default();
    const struct job j = { .ckpt = "/root", .state = "/state" };
    struct job_words out;

    memset(text, '{', N);
    strcat(text, "ckpt}!");
    cr_assert_eq(job_fill(&out, &j, &in, &layout, 1, &arena, &err), TP_OK);
    cr_expect_eq(strlen(out.word[0]), N - 1 + strlen("/root!"));
    cr_expect_str_eq(out.word[0] + N - 2, "{/root!");
    free(text);
}

Test(job_command, tp_train_behind_another_program_without_resume_is_noticed)
{
    static const struct {
        const char *command;
        bool never;
    } table[] = {
        { "tp-train --steps 9", false },
        { "env A=1 tp-train --steps 9", true },
        { "numactl --cpunodebind=0 /opt/bin/tp-train --steps 9", true },
        { "env A=1 tp-train --steps 9 --ckpt {ckpt} --resume", false },
        { "env A=1 tp-train --resume=must", false },
        { "python train.py", false },
        { "sh -c 'tp-train --steps 9'", false },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[200];
        struct job j;

        snprintf(text, sizeof text, "command: \"%s\"\nckpt: c\n", table[i].command);
        cr_assert_eq(parse(&j, text), TP_OK, "%s", err.msg);
        cr_expect_eq(job_command_never_resumes(&j), table[i].never, "%s", table[i].command);
    }
}
