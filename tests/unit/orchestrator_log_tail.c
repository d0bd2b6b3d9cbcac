/* tests/unit/orchestrator_log_tail.c - the rank at fault, from the end of a log. */
#include "orchestrator/watch/log_tail.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A launcher that writes "launcher: N". */
static int rank_of_line(const char *line)
{
    return strncmp(line, "launcher: ", 10) == 0 ? (int)strtol(line + 10, NULL, 10) : -1;
}

static struct log_tail parse(const char *text)
{
    struct log_tail t;

    log_tail_parse(&t, text, rank_of_line);
    return t;
}

Test(log_tail, the_first_rank_that_a_signal_killed_is_at_fault)
{
    struct log_tail t = parse("rank 3 was killed by signal 9\nrank 1 was killed by signal 6\n");

    cr_expect(t.rank == 3 && t.end == LOG_TAIL_KILLED);
    cr_expect_eq(parse("process rank 2 with PID 17 on node n1 exited on signal 9").rank, 2);
    t = parse("tp-run relay: rank 0 ended with exit code 3\n"
              "tp-run relay: rank 2 was killed by signal 11\n");
    cr_expect_eq(t.rank, 2, "the errors of the other ranks follow from it");
    cr_expect_str_eq(t.line, "tp-run relay: rank 2 was killed by signal 11");
}

Test(log_tail, a_rank_that_ended_takes_precedence_over_the_launchers_lines)
{
    struct log_tail t = parse("launcher: 5\nrank 1 ended with exit code 1\nlauncher: 6\n");

    cr_expect(t.rank == 1 && t.end == LOG_TAIL_EXITED);
    t = parse("launcher: 5\nsomething else\nlauncher: 6\n");
    cr_expect(t.rank == 5 && t.end == LOG_TAIL_LAUNCHER);
    cr_expect_str_eq(t.line, "launcher: 5");
    log_tail_parse(&t, "launcher: 5\n", NULL);
    cr_expect_eq(t.rank, -1, "without the backend its launcher's lines are not understood");
}

Test(log_tail, without_a_named_rank_the_last_line_is_reported)
{
    struct log_tail t = parse("rank 3 trains\nno space left on the device\n\n");

    cr_expect(t.rank == -1 && t.end == LOG_TAIL_UNKNOWN);
    cr_expect_str_eq(t.line, "no space left on the device");
    cr_expect_eq(parse("rank 99999999999999999999 was killed by signal 9").rank, -1);
    cr_expect(parse("").rank == -1 && parse(NULL).rank == -1);
    cr_expect_str_eq(parse(NULL).line, "");
}

Test(log_tail, only_the_end_of_a_long_file_is_read)
{
    char path[] = "/tmp/tp-log-XXXXXX", *text;
    FILE *f = fdopen(mkstemp(path), "w");

    for (int i = 0; i < 10000; i++)
        fprintf(f, "line %d\n", i);
    fclose(f);
    text = log_tail_read(path);
    cr_assert_not_null(text);
    cr_expect_str_eq(text + strlen(text) - 10, "line 9999\n");
    cr_expect_lt(strlen(text), 20000);
    free(text);
    unlink(path);
    cr_expect_null(log_tail_read(path));
}
