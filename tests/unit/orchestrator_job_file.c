/* tests/unit/orchestrator_job_file.c - job files: the example, defaults, mistakes, damaged text.
 *
 * covers: orchestrator/job/job_key orchestrator/job/job_key_set orchestrator/job/job_value
 * covers: orchestrator/job/job_yaml */
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct tp_err err;

static tp_status parse(struct job *j, const char *text)
{
    return job_file_parse(j, text, strlen(text), "/tmp/x.yaml", backends_job(), &arena, &err);
}

Test(job_file, the_example_parses_and_has_the_defaults)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    struct job example, plain;

    job_file_example(f, backends_job());
    fclose(f);
    cr_assert_eq(job_file_parse(&example, text, size, "/tmp/x.yaml", backends_job(), &arena, &err),
                 TP_OK, "%s", err.msg);
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

/* They mean "never", and their nanoseconds would be negative. */
Test(job_file, times_of_more_than_a_life_are_times_that_can_be_counted)
{
    struct job j;

    cr_assert_eq(parse(&j, "command: x\nckpt: y\nwatch: {floor: 9999999h, init: 1e300}\n"), TP_OK,
                 "%s", err.msg);
    cr_expect(j.watch.floor == 1e9 && j.watch.init == 1e9);
    cr_assert_eq(parse(&j, "command: x\nckpt: y\nwatch: {floor: 100d}\n"), TP_OK, "%s", err.msg);
    cr_expect(j.watch.floor == 8640000);
}

Test(job_file, mistakes_are_named_with_their_line)
{
    static const char *const bad[][2] = {
        { "command: x\n", "\"ckpt\" is missing" },
        { "ckpt: y\n", "\"command\" is missing" },
        { "command: x\nckpt: ~/y\n", ":2: ckpt: expected a path that is absolute or" },
        { "command: x\nckpt: ~\n", ":2: ckpt: is null" },
        { "command: null\nckpt: y\n", ":1: command: is null" },
        { "command: x\nckpt: \"y\\0z\"\n", ":2: ckpt: expected one value" },
        { "command: x\nckpt: y\n---\nckpt: z\n", ":3: a second document" },
        { "command: x\nckpt: y\nnodes: -3\n", "\"-3\" is not a name for a node" },
        { "command: x\nckpt: y\nnodes: 5000\n", "or a number from 1 to 4096" },
        { "command: x\nckpt: y\nnodes: [a:65536, b:1]\n", "hold 65537 ranks, at most 65536" },
        { "command: x\nckpt: y\nlayouts: {min_ranks: 8, max_ranks: 2}\n", "8 is more than" },
        { "command: x\nckpt: y\nwach: {}\n",
          ":3: there is no key \"wach\"; did you mean \"watch\"?" },
        { "command: x\nckpt: y\nrestart: {setle: 1s}\n", "did you mean \"restart.settle\"?" },
        { "command: x\nckpt: y\nqqq: 1\n", ":3: there is no key \"qqq\" (tp-run" },
        { "command: x\nckpt: y\nwatch: {flor: 3}\n", "no key \"watch.flor\"" },
        { "command: x\nckpt: y\nwatch: {floor: soon}\n", "expected a time such as" },
        { "command: x\nckpt: y\nnodes: [a:0]\n", "expected name:slots" },
        { "command: x\nckpt: y\nnodes: [a, a]\n", "occurs twice" },
        { "command: x\nckpt: y\nckpt: z\n", "occurs twice" },
        { "command: x\nckpt: y\nnodes: 0\n", "expected a list such as" },
        { "command: x\nckpt: y\nlayouts: {allow: [tp3x]}\n", "tp3x" },
        { "command: x\nckpt: y\nbackend: k8s\n", "local|slurm" },
        { "command: x\nckpt: y\nrestart: {max: -1}\n", "whole number" },
        { "command: x\nckpt: y\nrestart: {no_progress: 0}\n", "must be at least 1 (1: the first" },
        { "command: A_1=b x\nckpt: y\n", "\"A_1=b\" is not a program; set the variable where" },
        { "command: x\nckpt: y\nnodes: 2\nrestart: {spares: 2}\n", "leave none to work" },
        { "command: x\nckpt: y\nbackend: slurm\nslurm: {options: [-A, me, --array=0-3]}\n",
          "'--array=0-3' makes" },
        { "command: x\nckpt: y\nbackend: slurm\nslurm: {options: [--time=1, \":\"]}\n",
          "several jobs of one" },
        { "command: x\nckpt: y\nbackend: slurm\nnodes: [a:2, b:2]\n",
          "nodes: backend slurm does not use it; write slurm: {nodes: 2, tasks_per_node" },
        { "command: x\nckpt: y\nbackend: slurm\nnodes: [a:8]\n", "write slurm: {nodes: 1" },
        { "command: x\nckpt: y\nstop_signal: SIGKILL\n", "auto|SIGTERM|SIGUSR1" },
        { "command: x\nckpt: y\npage: {textfile: m.txt}\n", "reads only files NAME.prom" },
        { "command: x\nckpt: /y\nstate: /./y\ncheckpoints: tp\n", "is the checkpoint root /y" },
        { "command: 'x\n", "not YAML" },
        { "command: x\nckpt: y\nwatch:\n \tnan: stop\n",
          ":4: not YAML: the line begins with a tab; indent it with spaces" },
        { "\t", ":1: not YAML: the line begins with a tab" },
        { "command: x\nckpt: y\nrestart.max: 3\n",
          ":3: \"restart.max\" is a key of the section \"restart\": write restart: {max: ...}" },
        { "command: x\nckpt: y\nmin_ranks: 3\n",
          ":3: \"min_ranks\" is a key of the section \"layouts\": write layouts: {min_ranks:" },
        { "command: x\nckpt: y\ntasks_per_node: 3\n", "write slurm: {tasks_per_node: ...}" },
        { "command: x\nckpt: y\nrestart.mox: 3\n", ":3: there is no key \"restart.mox\"" },
        { "[1, 2]\n", "a job file is keys and values" },
        { "", "a job file is keys and values" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct job j;

        cr_expect_eq(parse(&j, bad[i][0]), TP_E_USAGE, "%s", bad[i][0]);
        cr_expect(strstr(err.msg, bad[i][1]), "expected \"%s\" in: %s", bad[i][1], err.msg);
    }
}

Test(job_file, the_signal_that_asks_to_stop_follows_from_the_launcher)
{
    static const struct {
        const char *lines;
        int sig;
    } table[] = {
        { "command: tp-train --steps 5", SIGUSR1 },
        { "command: torchrun train.py", SIGTERM },
        { "command: ./train.sh", SIGTERM },
        { "command: /usr/bin/mpirun -n 2 python train.py", SIGUSR1 },
        { "command: python train.py\nlauncher: mpirun", SIGUSR1 },
        { "command: tp-train --steps 5\nstop_signal: SIGTERM", SIGTERM },
        { "command: torchrun train.py\nstop_signal: SIGUSR2", SIGUSR2 },
        { "command: torchrun train.py\nstop_signal: SIGINT", SIGINT },
        { "command: torchrun train.py\nstop_signal: SIGHUP", SIGHUP },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[200];
        struct job j;

        snprintf(text, sizeof text, "%s\nckpt: y\n", table[i].lines);
        cr_assert_eq(parse(&j, text), TP_OK, "%s", err.msg);
        cr_expect_eq(job_signal(&j), table[i].sig, "%s", table[i].lines);
    }
}

/* The section of a backend that the job does not use is read but has no effect. */
Test(job_file, each_backend_has_a_section_of_its_own)
{
    struct job j;

    cr_assert_eq(parse(&j, "command: x\nckpt: y\nnodes: 3\nslurm: {nodes: 4, tasks_per_node: 8}\n"),
                 TP_OK, "%s", err.msg);
    cr_expect_str_eq(j.backend->name, "local");
    cr_expect_eq(job_ranks(&j), 3);
    cr_assert_eq(parse(&j, "command: x\nckpt: y\nnodes: 3\nslurm: {nodes: 4, tasks_per_node: 8}\n"
                           "backend: slurm\n"),
                 TP_OK, "%s", err.msg);
    cr_expect_str_eq(j.backend->name, "slurm");
    cr_expect_eq(j.n_nodes, 0, "Slurm supplies the nodes");
    cr_expect_eq(job_ranks(&j), 32);
    cr_expect_eq(parse(&j, "command: x\nckpt: y\nlocal: {a: 1}\n"), TP_E_USAGE);
    cr_expect(strstr(err.msg, "there is no key \"local\""), "%s", err.msg);
}

Test(job_file, damaged_text_never_crashes)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    unsigned seed = 7;

    job_file_example(f, backends_job());
    fclose(f);
    for (int i = 0; i < 3000; i++) {
        struct arena local = { 0 };
        struct job j;
        char *copy = malloc(size);

        memcpy(copy, text, size);
        for (int k = 0; k < 3; k++)
            copy[(size_t)rand_r(&seed) % size] = "\0:{}[]-'\"\n#\xff"[rand_r(&seed) % 12];
        (void)job_file_parse(&j, copy, size, "/tmp/x.yaml", backends_job(), &local, &err);
        arena_free(&local);
        free(copy);
    }
    free(text);
}
