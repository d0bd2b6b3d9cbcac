/* tests/unit/orchestrator_job.c - the job file. */
#include "orchestrator/job/job_option.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct tp_err err;

static tp_status parse(struct job *j, const char *text)
{
    return job_parse(j, text, strlen(text), "/tmp/x.yaml", &arena, &err);
}

Test(job, the_example_parses_and_has_the_defaults)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    struct job example, plain;

    job_example(f);
    fclose(f);
    cr_assert_eq(job_parse(&example, text, size, "/tmp/x.yaml", &arena, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(parse(&plain, "command: tp-train --steps 1000\nckpt: ckpt\n"), TP_OK, "%s",
                 err.msg);
    cr_expect(example.is_tp_train && example.steps == 1000 && plain.steps == 1000);
    cr_expect_eq(memcmp(&example.restart, &plain.restart, sizeof plain.restart), 0);
    cr_expect_eq(memcmp(&example.watch, &plain.watch, sizeof plain.watch), 0);
    cr_expect_str_eq(example.ckpt, "/tmp/ckpt");
    cr_expect_str_eq(plain.state, "/tmp/x.run");
    cr_expect_eq(example.n_nodes, 2);
    cr_expect_eq(job_ranks(&example), 4);
    cr_expect_eq(job_ranks(&plain), 1);
    free(text);
}

Test(job, words_are_cut_like_a_shell_does)
{
    struct job_words w;

    cr_assert_eq(job_split(&w, " a 'b c'\t\"d \\\" e\" f\\ g '' ", &arena, &err), TP_OK);
    cr_assert_eq(w.n, 5);
    cr_expect_str_eq(w.word[1], "b c");
    cr_expect_str_eq(w.word[2], "d \" e");
    cr_expect_str_eq(w.word[3], "f g");
    cr_expect_str_eq(w.word[4], "");
    cr_expect_eq(job_split(&w, "a 'b", &arena, &err), TP_E_USAGE);
}

Test(job, mistakes_are_named_with_their_line)
{
    static const char *const bad[][2] = {
        { "command: x\n", "\"ckpt\" is missing" },
        { "ckpt: y\n", "\"command\" is missing" },
        { "command: x\nckpt: ~/y\n", ":2: ckpt: expected a path from / or" },
        { "command: x\nckpt: ~\n", ":2: ckpt: is null" },
        { "command: null\nckpt: y\n", ":1: command: is null" },
        { "command: x\nckpt: \"y\\0z\"\n", ":2: ckpt: expected one value" },
        { "command: x\nckpt: y\n---\nckpt: z\n", ":3: a second document" },
        { "command: x\nckpt: y\nnodes: -3\n", "\"-3\" is no name for a node" },
        { "command: x\nckpt: y\nnodes: 5000\n", "or a number from 1 to 4096" },
        { "command: x\nckpt: y\nnodes: [a:65536, b:1]\n", "hold 65537 ranks, at most 65536" },
        { "command: x\nckpt: y\nlayouts: {min_ranks: 8, max_ranks: 2}\n", "8 is more than" },
        { "command: x\nckpt: y\nwach: {}\n", ":3: there is no key \"wach\"" },
        { "command: x\nckpt: y\nwatch: {flor: 3}\n", "no key \"watch.flor\"" },
        { "command: x\nckpt: y\nwatch: {floor: soon}\n", "expected a time such as" },
        { "command: x\nckpt: y\nnodes: [a:0]\n", "expected name:slots" },
        { "command: x\nckpt: y\nnodes: [a, a]\n", "stands there twice" },
        { "command: x\nckpt: y\nckpt: z\n", "stands there twice" },
        { "command: x\nckpt: y\nnodes: 0\n", "expected a list such as" },
        { "command: x\nckpt: y\nlayouts: {allow: [tp3x]}\n", "tp3x" },
        { "command: x\nckpt: y\nbackend: k8s\n", "local|slurm" },
        { "command: x\nckpt: y\nrestart: {max: -1}\n", "whole number" },
        { "command: x\nckpt: y\nnodes: 2\nrestart: {spares: 2}\n", "leave none to work" },
        { "command: x\nckpt: y\nslurm: {options: [-A, me, --array=0-3]}\n", "'--array=0-3' makes" },
        { "command: x\nckpt: y\nslurm: {options: [--time=1, \":\"]}\n", "several jobs of one" },
        { "command: 'x\n", "not YAML" },
        { "[1, 2]\n", "a job file is keys and values" },
        { "", "a job file is keys and values" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct job j;

        cr_expect_eq(parse(&j, bad[i][0]), TP_E_USAGE, "%s", bad[i][0]);
        cr_expect(strstr(err.msg, bad[i][1]), "expected \"%s\" in: %s", bad[i][1], err.msg);
    }
}

Test(job, the_command_gets_layout_checkpoint_and_resume)
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
}

/* Half a terabyte and minutes if each character is a copy of what came before. */
Test(job, a_long_word_is_filled_in_one_go, .timeout = 20)
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

/* As getopt_long reads tp-train's options; another program's only as they are written. */
Test(job, options_of_the_command_are_read_as_tp_train_reads_them)
{
    static const char *const models[] = { "--model m",      "--model=m",
                                          "-m m",           "-mm",
                                          "-qm m",          "-qmm",
                                          "--mod m",        "--mo=m",
                                          "--model x -m m", "-m x -n 5 --model m",
                                          "-n 5 -t 2 -m m" };
    struct job j;
    char text[256];

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        snprintf(text, sizeof text, "command: tp-train %s --steps 9\nckpt: c\n", models[i]);
        cr_assert_eq(parse(&j, text), TP_OK, "%s", err.msg);
        cr_assert_str_eq(j.layouts.model, "/tmp/m", "%s", models[i]);
        cr_assert_eq(j.steps, 9, "%s", models[i]);
        cr_assert_eq(j.layouts.n_allow, 0);
    }
    cr_assert_eq(parse(&j, "command: [my, -m, x, --mod, y, --models, z]\nckpt: c\n"), TP_OK);
    cr_expect_null(job_option(&j, "--model"));
}

Test(job, what_the_command_fixes_is_what_is_run)
{
    static const char *const wrong[][2] = {
        { "-l tp2\nckpt: c\nlayouts: {allow: [tp1, tp4]}\n", "layouts.allow" },
        { "-l tpx\nckpt: c\n", "--layout in the command" },
        { "--ckpt other\nckpt: c\n", "--ckpt other" },
    };
    struct job j;
    char text[256];

    cr_assert_eq(parse(&j, "command: tp-train -l pp2tp2 --ckpt ./c\nckpt: c\n"), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(j.layouts.n_allow, 1);
    cr_expect(j.layouts.allow[0].tp == 2 && j.layouts.allow[0].pp == 2);
    cr_assert_eq(
        parse(&j, "command: tp-train --layout tp2\nckpt: c\nlayouts: {allow: [tp4, tp2]}\n"), TP_OK,
        "%s", err.msg);
    cr_expect(j.layouts.n_allow == 1 && j.layouts.allow[0].tp == 2);
    cr_assert_eq(parse(&j, "command: tp-train --layout {layout} --ckpt {ckpt}\nckpt: c\n"), TP_OK);
    cr_expect_eq(j.layouts.n_allow, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(text, sizeof text, "command: tp-train %s", wrong[i][0]);
        cr_expect_eq(parse(&j, text), TP_E_USAGE, "%s", text);
        cr_expect(strstr(err.msg, wrong[i][1]), "%s", err.msg);
    }
}

Test(job, damaged_text_never_crashes)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    unsigned seed = 7;

    job_example(f);
    fclose(f);
    for (int i = 0; i < 3000; i++) {
        struct arena local = { 0 };
        struct job j;
        char *copy = malloc(size);

        memcpy(copy, text, size);
        for (int k = 0; k < 3; k++)
            copy[(size_t)rand_r(&seed) % size] = "\0:{}[]-'\"\n#\xff"[rand_r(&seed) % 12];
        (void)job_parse(&j, copy, size, "/tmp/x.yaml", &local, &err);
        arena_free(&local);
        free(copy);
    }
    free(text);
}
