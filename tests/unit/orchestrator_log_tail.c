/* tests/unit/orchestrator_log_tail.c - the rank at fault, from the end of a log. */
#include "orchestrator/watch/log_tail.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

Test(log_tail, a_line_names_the_signal_that_killed_a_rank_by_number_or_name)
{
    cr_expect_eq(parse("rank 3 was killed by signal 9\nrank 1 was killed by signal 6\n").signal, 9);
    cr_expect_eq(parse("rank 3 exited on signal 11 (Segmentation fault)").signal, 11);
    cr_expect_eq(parse("rank 3 was killed by SIGKILL").signal, 9);
    cr_expect_eq(parse("rank 3 was killed").signal, 0, "the line does not say which one");
    cr_expect_eq(parse("rank 3 was killed by signal 99999999999999999999").signal, 0);
    cr_expect_eq(parse("rank 3 ended with exit code 1").signal, 0);
}

Test(log_tail, the_first_rank_of_tp_train_that_says_that_it_failed_is_at_fault)
{
    struct log_tail t = parse("tp-train: steps: rank 1: one by one\n"
                              "tp-train: rank 2: GPU 2: queued work failed\n"
                              "tp-train: rank 0: NCCL: an all-reduce failed\n");

    cr_expect(t.rank == 2 && t.end == LOG_TAIL_EXITED);
    cr_expect_str_eq(t.line, "tp-train: rank 2: GPU 2: queued work failed");
    t = parse("step 3/9\ntp-train: rank 2: GPU 0: NCCL failed: remote process exited\n");
    cr_expect(t.rank == 2 && t.end == LOG_TAIL_EXITED);
    cr_expect_str_eq(t.line, "tp-train: rank 2: GPU 0: NCCL failed: remote process exited");
    t = parse("tp-train: rank 2: a\ntp-train: rank 1 was killed by signal 9\n");
    cr_expect(t.rank == 1 && t.end == LOG_TAIL_KILLED);
    t = parse("tp-train: rank 2: a\nlauncher: 5\n");
    cr_expect(t.rank == 5 && t.end == LOG_TAIL_LAUNCHER);
    cr_expect_str_eq(t.line, "tp-train: rank 2: a");
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

/* ---- what launchers print after the reason ---- */

#define TORCHRUN_END                                                                         \
    "E1121 12:00:01.000000 17 torch/distributed/elastic/multiprocessing/api.py:882] failed " \
    "(exitcode: 1)\n"                                                                        \
    "Traceback (most recent call last):\n"                                                   \
    "  File \"/usr/bin/torchrun\", line 8, in <module>\n"                                    \
    "    sys.exit(main())\n"                                                                 \
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"                  \
    "============================================================\n"                         \
    "train.py FAILED\n"                                                                      \
    "------------------------------------------------------------\n"                         \
    "Failures:\n"                                                                            \
    "[1]:\n"                                                                                 \
    "  time      : 2026-11-21_12:00:01\n"                                                    \
    "  rank      : 1 (local_rank: 1)\n"                                                      \
    "  exitcode  : 1 (pid: 19)\n"                                                            \
    "------------------------------------------------------------\n"                         \
    "Root Cause (first observed failure):\n"                                                 \
    "[0]:\n"                                                                                 \
    "  time      : 2026-11-21_12:00:00\n"                                                    \
    "  host      : n1\n"                                                                     \
    "  rank      : 3 (local_rank: 3)\n"
#define TORCHRUN_LAST                                                                              \
    "  error_file: <N/A>\n"                                                                        \
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n" \
    "============================================================\n"

Test(log_tail, below_torchruns_table_the_exception_is_found)
{
    struct log_tail t =
        parse("step 12 loss 3.4\n"
              "[rank3]: Traceback (most recent call last):\n"
              "[rank3]:   File \"train.py\", line 12, in <module>\n"
              "[rank3]:     read(batch)\n"
              "[rank3]: FileNotFoundError: [Errno 2] No such file: 'data.bin'\n"
              "Traceback (most recent call last):\n"
              "  File \"train.py\", line 14, in <module>\n"
              "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711\n" TORCHRUN_END
              "  exitcode  : 1 (pid: 17)\n" TORCHRUN_LAST);

    cr_expect(t.rank == 3 && t.end == LOG_TAIL_EXITED, "rank %d, end %d", t.rank, (int)t.end);
    cr_expect_str_eq(t.line, "FileNotFoundError: [Errno 2] No such file: 'data.bin'");
}

Test(log_tail, torchrun_names_the_rank_that_a_signal_killed)
{
    struct log_tail t =
        parse("step 12 loss 3.4\n" TORCHRUN_END "  exitcode  : -9 (pid: 17)\n" TORCHRUN_LAST);

    cr_expect(t.rank == 3 && t.end == LOG_TAIL_KILLED && t.signal == 9);
    cr_expect_str_eq(t.line, "rank 3 was killed by signal 9");
}

Test(log_tail, without_a_traceback_it_is_the_last_line_before_the_launchers)
{
    struct log_tail t = parse(
        "cannot open data.bin\n"
        "--------------------------------------------------------------------------\n"
        "Primary job  terminated normally, but 1 process returned\n"
        "a non-zero exit code. Per user-direction, the job has been aborted.\n"
        "--------------------------------------------------------------------------\n"
        "--------------------------------------------------------------------------\n"
        "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
        "the job to be terminated. The first process to do so was:\n\n"
        "  Process name: [[34,1],2]\n"
        "  Exit code:    3\n"
        "--------------------------------------------------------------------------\n");

    cr_expect(t.rank == 2 && t.end == LOG_TAIL_EXITED);
    cr_expect_str_eq(t.line, "cannot open data.bin");
    t = parse("cannot open data.bin\nlauncher: 1\n"
              "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T12:00:00 ***\n");
    cr_expect_eq(t.rank, 1);
    cr_expect_str_eq(t.line, "cannot open data.bin");
    t = parse("tp-train: rank 3: GPU 1: it failed\n"
              "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T12:00:00 ***\n"
              "tp-run relay: rank 3 ended with exit code 3\n");
    cr_expect_str_eq(t.line, "tp-train: rank 3: GPU 1: it failed");
    t = parse("tp-train: data.bin: no such file\ntp-run relay: rank 0 ended with exit code 3\n"
              "srun: error: n1: task 1: Exited with exit code 143\n");
    cr_expect(t.rank == 0 && t.end == LOG_TAIL_EXITED);
    cr_expect_str_eq(t.line, "tp-train: data.bin: no such file");
}

Test(log_tail, if_only_a_launcher_has_written_its_line_is_reported)
{
    cr_expect_str_eq(parse("tp-run relay: rank 0 ended with exit code 3\n").line,
                     "tp-run relay: rank 0 ended with exit code 3");
    cr_expect_str_eq(parse("srun: error: Unable to create step\n").line,
                     "srun: error: Unable to create step");
    cr_expect_str_eq(parse("=====\n").line, "=====");
}

Test(log_tail, an_exception_that_was_logged_before_is_not_the_reason_if_another_follows)
{
    struct log_tail t = parse("Traceback (most recent call last):\n  File \"a\"\n"
                              "ValueError: ignored\nstep 3\n"
                              "Traceback (most recent call last):\n  File \"a\"\n"
                              "KeyError: 'lr'\n");

    cr_expect_str_eq(t.line, "KeyError: 'lr'");
}

Test(log_tail, any_bytes_are_read)
{
    unsigned seed = (unsigned)time(NULL);
    static const char *const parts[] = { "Traceback (most recent call last):\n",
                                         "[rank",
                                         "]: ",
                                         "torch.distributed.elastic",
                                         "\n",
                                         " rank : ",
                                         "-9",
                                         " exitcode : ",
                                         "Root Cause",
                                         "Process name: [[",
                                         "],",
                                         "7",
                                         "\xff",
                                         "\r",
                                         "srun: ",
                                         "rank 3 ",
                                         "signal" };

    printf("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 5000; i++) {
        char text[600] = "";
        struct log_tail t;

        while (strlen(text) < 500)
            strcat(text, parts[(size_t)rand() % (sizeof parts / sizeof parts[0])]);
        t = parse(text);
        cr_assert(t.rank >= -1 && strlen(t.line) < sizeof t.line && !strchr(t.line, '\n'));
    }
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
