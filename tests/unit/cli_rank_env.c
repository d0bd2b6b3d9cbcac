/* tests/unit/cli_rank_env.c - reads the ranks of a job from the environment. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/rank_env.h"

/* Runs before main, like a library that reads the environment when it is loaded. */
__attribute__((constructor)) static void executed_again(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY");

    if (getenv("TP_TEST_EXECUTED_AGAIN"))
        _exit(policy && !strcmp(policy, "passive") ? 42 : 1);
}

/* The exit code of a child that calls rank_env_prepare; 2 when the call returns. */
static int code_of_prepare(void)
{
    char *argv[] = { "tp", NULL };
    pid_t pid = fork();
    int how = 0;

    if (pid == 0) {
        rank_env_prepare(argv);
        _exit(2);
    }
    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

Test(cli_rank_env, the_program_is_executed_again_with_a_passive_wait_policy)
{
    setenv("TP_TEST_EXECUTED_AGAIN", "1", 1);
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    cr_expect_eq(code_of_prepare(), 42);
    setenv("OMP_WAIT_POLICY", "active", 1); /* the user's value is kept */
    cr_expect_eq(code_of_prepare(), 2);
}

Test(cli_rank_env, mpi_is_recognized_by_its_environment)
{
    static const struct {
        const char *set[3]; /* "NAME=VALUE" */
        bool is_mpi;
        int size;
    } rows[] = {
        { { 0 }, false, 0 },
        { { "OMPI_COMM_WORLD_SIZE=4" }, true, 4 },
        { { "PMI_SIZE=3", "PMI_RANK=0" }, true, 3 },
        { { "PMIX_RANK=1" }, true, 0 },
        { { "PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=16" }, true, 16 },
        { { "SLURM_PROCID=0", "SLURM_NTASKS=8" }, false, 0 },         /* a batch script */
        { { "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1" }, false, 0 }, /* srun --pty bash */
        { { "OMPI_COMM_WORLD_SIZE=nonsense" }, false, 0 },
    };
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS"
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct comm_env env;

        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unsetenv(names[k]);
        for (int k = 0; k < 3 && rows[i].set[k]; k++)
            putenv((char *)(uintptr_t)rows[i].set[k]);
        rank_env_read(&env);
        cr_expect_eq(env.is_mpi, rows[i].is_mpi, "row %zu", i);
        cr_expect_eq(env.mpi_size, rows[i].size, "row %zu: %d", i, env.mpi_size);
    }
}
