/* tests/unit/orchestrator_slurm_command.c - Slurm's command lines, and calls of programs that
 * replace Slurm's. */
#include "orchestrator/backend/slurm/slurm_command.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file_tree.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"

static bool has(const struct job_words *w, const char *word)
{
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->word[i], word) == 0)
            return true;
    return false;
}

static void read_job(struct job *job, struct arena *arena, const char *options)
{
    char text[1000];
    struct tp_err err = { 0 };

    snprintf(text, sizeof text,
             "command: tp-train --model m --data d\nckpt: c\nbackend: slurm\n"
             "slurm: {nodes: 4, tasks_per_node: 8, options: %s, step_options: [--cpu-bind=none]}\n",
             options);
    cr_assert_eq(job_file_parse(job, text, strlen(text), "./x.yaml", backends_job(), arena, &err),
                 TP_OK, "%s", err.msg);
}

Test(slurm_command, options_go_to_the_request_and_containers_to_the_ranks)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_request q = { .nodes = 4, .exclude = "n7" };
    const struct slurm_step step = { .job = 12, .nodes = "n1,n2", .n_nodes = 2, .ranks = 16 };

    read_job(&job, &arena, "[--account=a, --time=5, --container=/x, --exclude=n1]");
    cr_expect_eq(job_ranks(&job), 32);
    cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
    cr_expect(has(&w, "--account=a") && has(&w, "--time=5") && has(&w, "--nodes=4"));
    cr_expect(has(&w, "--container=/x") && has(&w, "--no-kill") && has(&w, "--no-shell"));
    cr_expect_str_eq(w.word[w.n - 1], "--exclude=n1,n7", "the last --exclude has all nodes");
    cr_expect_null(w.word[w.n]);
    cr_assert_eq(slurm_step_words(&w, &job, &step, &arena, &err), TP_OK);
    cr_expect(has(&w, "--jobid=12") && has(&w, "--container=/x") && has(&w, "--cpu-bind=none"));
    cr_expect_not(has(&w, "--account=a"));
    arena_free(&arena);
}

Test(slurm_command, nodes_that_the_options_exclude_stay_excluded)
{
    static const char *const options[] = { "[--exclude=n1]", "[--exclude, n1]", "[-xn1]",
                                           "[-x, n1]" };

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const struct slurm_request q = { .nodes = 4, .exclude = "n7" };
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct job_words w;
        struct job job;

        read_job(&job, &arena, options[i]);
        cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
        cr_expect_str_eq(w.word[w.n - 1], "--exclude=n1,n7", "%s", options[i]);
        arena_free(&arena);
    }
}

/* ---- GPUs ---- */

static tp_status read_gpus(struct job *job, struct arena *arena, const char *device,
                           const char *slurm, struct tp_err *err)
{
    char text[1000];

    snprintf(text, sizeof text,
             "command: tp-train --model m --data d --device %s\nckpt: c\nbackend: slurm\n"
             "slurm: {nodes: 2, %s}\n",
             device, slurm);
    return job_file_parse(job, text, strlen(text), "./x.yaml", backends_job(), arena, err);
}

Test(slurm_command, a_node_holds_as_many_ranks_of_tp_train_as_gpus_are_asked_for)
{
    static const struct {
        const char *device, *slurm;
        int ranks;
    } table[] = {
        { "cuda", "options: [--gpus-per-node=8]", 8 },
        { "auto", "options: [--gpus-per-node=h100:4]", 4 },
        { "cuda", "options: [--gpus-per-node, 4]", 4 },
        { "cuda", "options: ['--gres=craynetwork:1,gpu:a100:2']", 2 },
        { "cuda", "options: ['--gres=gpu:4']", 4 },
        { "cuda", "options: ['--gres=gpu']", 1 },
        { "cuda", "options: [--gres=mps:50]", 1 },
        { "cuda", "options: [--gpus-per-task=1]", 1 },
        { "cuda", "options: [--gpus-per-node=8], tasks_per_node: 2", 2 },
        { "cpu", "options: [--gpus-per-node=8]", 1 },
        { "cuda", "options: [--time=5]", 1 },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct job_words w;
        struct job job;
        const struct slurm_request q = { .nodes = 2, .exclude = "" };
        char word[40];

        cr_assert_eq(read_gpus(&job, &arena, table[i].device, table[i].slurm, &err), TP_OK,
                     "%s: %s", table[i].slurm, err.msg);
        cr_expect_eq(slurm_tasks_per_node(&job), table[i].ranks, "%s", table[i].slurm);
        cr_expect_eq(job_ranks(&job), 2 * table[i].ranks);
        cr_expect_eq(slurm_asks_for_gres(&job), strstr(table[i].slurm, "--g") != NULL);
        cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
        snprintf(word, sizeof word, "--ntasks-per-node=%d", table[i].ranks);
        cr_expect(has(&w, word), "%s", table[i].slurm);
        arena_free(&arena);
    }
}

Test(slurm_command, gpus_that_cannot_suffice_are_refused)
{
    static const char *const table[][2] = {
        { "options: [--gpus-per-node=4], tasks_per_node: 8",
          "tasks_per_node is 8, but slurm.options ask for 4 GPUs on a node" },
        { "options: ['--gres=gpu:1'], tasks_per_node: 2", "ask for 1 GPU on a node" },
        { "options: [--gpus=16]", "'--gpus=16' counts the GPUs of all nodes" },
        { "options: [-G16]", "use --gpus-per-node=N" },
        { "options: [-G, 16]", "'-G' counts" },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct job job;

        cr_expect_eq(read_gpus(&job, &arena, "cuda", table[i][0], &err), TP_E_USAGE, "%s",
                     table[i][0]);
        cr_expect(strstr(err.msg, table[i][1]), "%s", err.msg);
        arena_free(&arena);
    }
}

/* ---- nodes that join ---- */

Test(slurm_command, nodes_that_join_an_allocation_are_requested_for_the_time_it_has_left)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_request q = { .nodes = 1, .exclude = "", .expand = 12, .seconds = 250 };

    read_job(&job, &arena, "[--time=60, --nodes=4]");
    cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
    cr_expect_str_eq(w.word[w.n - 1], "--time=5", "the last one counts");
    cr_expect_str_eq(w.word[w.n - 2], "--nodes=1");
    cr_expect_str_eq(w.word[w.n - 3], "--dependency=expand:12");
    arena_free(&arena);
}

/* Write a program into a folder, and make that folder the first of PATH. */
static void put(const char *dir, const char *name, const char *script)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    chmod(path, 0755);
}

static void make_env(struct environment *env, const char *dir)
{
    char path[300];
    char *entries[] = { path, "SLURM_JOB_ID=7", "SLURM_CONF=/x", "HOME=/h", NULL };
    struct environment all;

    snprintf(path, sizeof path, "PATH=%s:/usr/bin:/bin", dir);
    environment_copy(&all, entries);
    slurm_client_env(env, &all);
    environment_free(&all);
}

Test(slurm_command, sbatch_replaces_nothing_in_the_path_of_the_state_folder)
{
    char dir[] = "/tmp/tp-slurm-XXXXXX", text[500], word[300];
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_client client = { .job = &job, .self = "/tp-run" };
    const struct slurm_batch batch = { .nodes = 1 };

    cr_assert_not_null(mkdtemp(dir));
    snprintf(text, sizeof text, "command: x\nckpt: c\nbackend: slurm\nstate: %s/50%%j%%%%\n", dir);
    cr_assert_eq(job_file_parse(&job, text, strlen(text), "./x.yaml", backends_job(), &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert_eq(mkdir(job.state, 0700), 0);
    cr_assert_eq(slurm_sbatch(&w, &client, &batch, &arena, &err), TP_OK, "%s", err.msg);
    snprintf(word, sizeof word, "--output=%s/50%%%%j%%%%%%%%/slurm-%%j.out", dir);
    cr_expect(has(&w, word), "%s", word);
    arena_free(&arena);
    file_tree_remove(dir, &err);
}

Test(slurm_command, a_batch_script_runs_a_job_file_with_the_name_of_a_verb)
{
    char dir[] = "/tmp/tp-slurm-XXXXXX", text[500], script[2000] = "";
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_client client = { .job = &job, .self = "/tp-run" };
    const struct slurm_batch batch = { .nodes = 1 };
    FILE *f;

    cr_assert_not_null(mkdtemp(dir));
    snprintf(text, sizeof text, "command: x\nckpt: c\nbackend: slurm\nstate: %s\n", dir);
    cr_assert_eq(
        job_file_parse(&job, text, strlen(text), "jobs/stop", backends_job(), &arena, &err), TP_OK,
        "%s", err.msg);
    cr_assert_eq(slurm_sbatch(&w, &client, &batch, &arena, &err), TP_OK, "%s", err.msg);
    f = fopen(slurm_script_path(&job, &arena), "r");
    cr_assert(f && fread(script, 1, sizeof script - 1, f) > 0);
    fclose(f);
    cr_expect(strstr(script, "exec '/tp-run' ./'stop'\n"), "%s", script);
    arena_free(&arena);
    file_tree_remove(dir, &err);
}

Test(slurm_command, a_request_from_inside_a_job_does_not_inherit_its_options)
{
    struct environment env;

    make_env(&env, "/nowhere");
    cr_expect_null(environment_get(&env, "SLURM_JOB_ID"));
    cr_expect_str_eq(environment_get(&env, "SLURM_CONF"), "/x");
    cr_expect_str_eq(environment_get(&env, "HOME"), "/h");
    environment_free(&env);
}

Test(slurm_command, a_query_does_not_inherit_what_a_person_wants_to_see)
{
    static const char *const names[] = {
        "SQUEUE_FORMAT",    "SQUEUE_FORMAT2",   "SQUEUE_STATES", "SQUEUE_USERS",
        "SQUEUE_PARTITION", "SINFO_PARTITION",  "SCANCEL_STATE", "SCANCEL_INTERACTIVE",
        "SCONTROL_ALL",     "SBATCH_ARRAY_INX", "SBATCH_WAIT"
    };
    char *entries[] = { "SBATCH_ACCOUNT=a", "SALLOC_PARTITION=p", "SQUEUED=x", NULL };
    struct environment all, env;

    environment_copy(&all, entries);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        environment_set(&all, names[i], "something else");
    slurm_client_env(&env, &all);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_expect_null(environment_get(&env, names[i]), "%s", names[i]);
    cr_expect_str_eq(environment_get(&env, "SBATCH_ACCOUNT"), "a");
    cr_expect_str_eq(environment_get(&env, "SALLOC_PARTITION"), "p");
    cr_expect_str_eq(environment_get(&env, "SQUEUED"), "x");
    environment_free(&all);
    environment_free(&env);
}

Test(slurm_command, scancel_is_repeated_while_slurm_does_not_answer)
{
    char dir[] = "/tmp/tp-slurm-XXXXXX", script[400];
    struct environment env;
    struct tp_err err = { 0 };
    struct slurm_client client = { .env = &env, .dir = "/" };

    cr_assert_not_null(mkdtemp(dir));
    make_env(&env, dir);
    snprintf(script, sizeof script,
             "echo $1 >> %s/calls; [ $(wc -l < %s/calls) -gt 1 ] && exit 0\n"
             "echo 'scancel: error: Unable to contact slurm controller (connect failure)'; exit 1",
             dir, dir);
    put(dir, "scancel", script);
    cr_expect_eq(slurm_cancel(&client, 12, 10, &err), TP_OK, "%s", err.msg);
    put(dir, "scancel", "echo a warning; echo 'scancel: error: Access denied'; exit 1");
    cr_expect_eq(slurm_cancel(&client, 12, 10, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "scancel failed: scancel: error: Access denied"), "%s", err.msg);
    environment_free(&env);
    file_tree_remove(dir, &err);
}

Test(slurm_command, a_program_that_hangs_is_killed, .timeout = 60)
{
    char dir[] = "/tmp/tp-slurm-XXXXXX", *answer = NULL;
    struct arena arena = { 0 };
    struct environment env;
    struct job_words words;
    struct tp_err err = { 0 };
    struct slurm_client client = { .env = &env, .dir = "/" };

    cr_assert_not_null(mkdtemp(dir));
    make_env(&env, dir);
    put(dir, "squeue", "exec sleep 1000");
    slurm_view_words(&words, 5, &arena);
    cr_expect_eq(slurm_ask(&answer, &words, &client, 0.3, &arena, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "did not answer within"), "%s", err.msg);
    put(dir, "squeue", "echo one; echo two");
    cr_expect_eq(slurm_ask(&answer, &words, &client, 10, &arena, &err), TP_OK);
    cr_expect_str_eq(answer, "one\ntwo");
    environment_free(&env);
    arena_free(&arena);
    file_tree_remove(dir, &err);
}
