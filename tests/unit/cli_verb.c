/*
 * tests/unit/cli_verb.c - programs with verbs: which word runs what, and the exit codes.
 *
 * covers: cli/report
 */
#include "cli/verb.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <string.h>

#include "cli/report.h"

static int run_first(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[0], "first") == 0 && strcmp(argv[1], "x") == 0 ? 41 : 1;
}

static int run_hidden(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 42;
}

static int run_none(int argc, char **argv)
{
    return strcmp(argv[0], "prog") == 0 ? 40 + argc : 1;
}

static const struct verb verbs[] = { { "first", "A B", "the first", run_first },
                                     { "hidden", "", NULL, run_hidden },
                                     { 0 } };

static int start(int (*no_verb)(int, char **), int argc, char **argv)
{
    const struct verb_program p = {
        .name = "prog", .intro = "INTRO", .tail = "TAIL", .verbs = verbs, .no_verb = no_verb
    };

    return verb_main(&p, argc, argv);
}

#define START(no_verb, ...)                                                   \
    start(no_verb, (int)(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)), \
          (char *[]){ __VA_ARGS__, NULL })

static void redirect(void)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
}

Test(verb, the_first_word_chooses_what_runs)
{
    cr_expect_eq(START(NULL, "prog", "first", "x"), 41);
    cr_expect_eq(START(NULL, "prog", "hidden"), 42);
    cr_expect_eq(START(run_none, "prog", "job.yaml", "x"), 43, "another word");
}

Test(verb, options_may_come_before_the_first_word, .init = redirect)
{
    static const struct verb_program p = { .name = "prog", .verbs = verbs, .no_verb = run_none };
    char *argv[] = { "prog", "--a", "-b", "job.yaml", "--c", NULL };

    cr_expect_eq(START(NULL, "prog", "--a", "-b", "hidden", "x"), 42);
    cr_expect_eq(verb_main(&p, 5, argv), 45);
    cr_expect_str_eq(argv[1], "job.yaml");
    cr_expect_str_eq(argv[2], "--a");
    cr_expect_str_eq(argv[3], "-b");
    cr_expect_str_eq(argv[4], "--c");
    cr_expect_eq(START(run_none, "prog", "--a"), 42, "the program names what is missing");
    cr_expect_eq(START(run_none, "prog", "--", "first"), 43, "a file of this name");
    cr_expect_eq(START(NULL, "prog", "--step", "5", "hidden"), 2, "5 may be its value");
    fflush(stderr);
    cr_expect_stderr_eq_str("prog: '--step' comes before the verb; write the verb first (prog "
                            "--help lists the verbs)\n");
}

Test(verb, an_unknown_word_is_a_usage_error, .init = redirect)
{
    cr_expect_eq(START(NULL, "prog", "something"), 2);
    fflush(stderr);
    cr_expect_stderr_eq_str("prog: unknown verb 'something'; prog --help lists the verbs\n");
}

Test(verb, with_json_an_unknown_word_is_an_object_too, .init = redirect)
{
    cr_expect_eq(START(NULL, "prog", "something", "--json"), 2);
    fflush(stdout);
    cr_expect_stdout_eq_str(
        "{\"error\": \"unknown verb 'something'; prog --help lists the verbs\", \"exit\": 2}\n");
}

Test(verb, help_that_cannot_be_written_is_a_failure, .init = cr_redirect_stderr)
{
    cr_assert(freopen("/dev/full", "w", stdout));
    cr_expect_eq(START(NULL, "prog", "--help"), 3);
}

Test(verb, a_similar_verb_is_suggested, .init = redirect)
{
    cr_expect_eq(START(NULL, "prog", "frist"), 2);
    cr_expect_eq(START(run_none, "prog", "fist"), 2, "no file has this name");
    cr_expect_eq(START(run_none, "prog", "fist.yaml"), 42, "it may be a file");
    cr_expect_eq(START(run_none, "prog", "other", "-q"), 43, "it may be a file");
    cr_expect_eq(START(run_none, "prog", "other", "job.yaml"), 2, "the file comes after the verb");
    cr_expect_eq(START(run_none, "prog", "tests"), 42, "it is a file");
    cr_expect_eq(START(run_none, "prog", "hiden"), 42, "hidden verbs are not suggested");
    fflush(stderr);
    cr_expect_stderr_eq_str(
        "prog: unknown verb 'frist'; did you mean 'first'? prog --help lists the verbs\n"
        "prog: unknown verb 'fist'; did you mean 'first'? prog --help lists the verbs\n"
        "prog: unknown verb 'other'; prog --help lists the verbs\n");
}

Test(verb, help_lists_the_public_verbs_on_stdout, .init = redirect)
{
    cr_expect_eq(START(NULL, "prog", "--help"), 0);
    fflush(stdout);
    cr_expect_stdout_eq_str("INTRO\n  first  A B  the first\n\nTAIL\n");
}

Test(verb, no_word_prints_the_help_as_an_error, .init = redirect)
{
    cr_expect_eq(START(NULL, "prog"), 2);
    fflush(stderr);
    cr_expect_stderr_eq_str("INTRO\n  first  A B  the first\n\nTAIL\n");
}

Test(verb, where_no_verb_is_needed_no_word_is_still_an_error, .init = redirect)
{
    cr_expect_eq(START(run_none, "prog"), 2);
    fflush(stderr);
    cr_expect_stderr_eq_str("INTRO\n  first  A B  the first\n\nTAIL\n");
}

Test(report, a_failure_is_one_line_and_its_exit_code, .init = redirect)
{
    struct tp_err err = { 0 };

    cr_expect_eq(report("prog", tp_fail(&err, TP_E_CORRUPT, "x\ny\x1b: is damaged"), &err), 3);
    cr_expect_eq(report("prog", TP_OK, &err), 0);
    cr_expect_eq(report("prog", tp_fail(&err, TP_E_NO, "%s", ""), &err), 1, "printed before");
    report_note("prog", "%d notes", 2);
    fflush(stderr);
    cr_expect_stderr_eq_str("prog: x\\ny\\x1b: is damaged\nprog: 2 notes\n");
}

Test(report, options_decide_whether_the_program_continues, .init = redirect)
{
    int n = 0, code = -1;
    const struct opt opts[] = { OPT_INT('n', "number", "N", &n, "a number"), OPT_END };

    cr_expect(report_options(&code, "prog verb", opts, 2, (char *[]){ "verb", "--number=5", NULL },
                             "INTRO", "TAIL"));
    cr_expect(n == 5 && code == 0);
    cr_expect_not(report_options(&code, "prog verb", opts, 2,
                                 (char *[]){ "verb", "--unknown", NULL }, "INTRO", "TAIL"));
    cr_expect_eq(code, 2);
    cr_expect_not(report_options(&code, "prog verb", opts, 2, (char *[]){ "verb", "--help", NULL },
                                 "INTRO", "TAIL"));
    cr_expect_eq(code, 0);
}
