/* tests/unit/comm_launch_env.c - what a job of our own launcher finds around it: memory,
 * environment, mpirun. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit/launched_job.h"

/* One rank has less room than the others: all are refused, and can go on. */
static int too_much_memory(struct comm *world, struct board *b, struct tp_err *err)
{
    void *p = NULL;
    float x = 1;

    if (comm_alloc(&p, world, INT64_C(1) << 50, err) == TP_E_NOMEM && !p)
        b->mark++;
    if (comm_alloc(&p, world, 100 + comm_rank(world), err) == TP_E_INTERNAL)
        b->mark++;
    if (!comm_all_reduce(world, &x, 1, COMM_F32, COMM_SUM, err) && x == N)
        b->mark++;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch_env, memory_that_does_not_fit_is_refused_on_all_ranks, .timeout = 30)
{
    struct job j = job_run(too_much_memory);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.board->mark, 3 * N, "%d of %d", j.board->mark, 3 * N);
}

#ifndef TP_SANITIZE /* AddressSanitizer needs terabytes of address space */
Test(comm_launch_env, little_address_space_makes_small_arenas, .timeout = 30)
{
    const struct rlimit limit = { (rlim_t)6 << 30, (rlim_t)6 << 30 };
    struct job j;

    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    j = job_run(ends_well);
    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 0);
}
#endif

static int a_child_is_no_rank(struct comm *world, struct board *b, struct tp_err *err)
{
    struct comm *own = NULL;
    pid_t pid = fork();

    if (pid == 0)
        _exit(comm_init(&own, 1 << 20, err) ? 50 : comm_size(own));
    b->mark += wait_code(pid) == 1;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch_env, what_a_rank_starts_is_no_rank, .timeout = 30)
{
    struct job j = job_run(a_child_is_no_rank);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.board->mark, N);
}

/* Begins before main, like a library that reads the environment when it is loaded. */
__attribute__((constructor)) static void executed_again(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY");

    if (getenv("TP_TEST_EXECUTED_AGAIN"))
        _exit(policy && !strcmp(policy, "passive") ? 42 : 1);
}

Test(comm_launch_env, the_program_is_executed_again_with_a_passive_wait_policy)
{
    char *argv[] = { "tp", NULL };
    pid_t pid;

    setenv("TP_TEST_EXECUTED_AGAIN", "1", 1);
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    if ((pid = fork()) == 0) {
        launch_prepare_env(argv);
        _exit(2);
    }
    cr_expect_eq(wait_code(pid), 42);
    setenv("OMP_WAIT_POLICY", "active", 1); /* the user's own stays */
    if ((pid = fork()) == 0) {
        launch_prepare_env(argv);
        _exit(2);
    }
    cr_expect_eq(wait_code(pid), 2);
}

Test(comm_launch_env, absurd_numbers_of_ranks_are_refused)
{
    struct tp_err err = { 0 };
    int rank = -2, code = -2;

    cr_expect_eq(launch_ranks(0, &rank, &code, &err), TP_E_USAGE);
    cr_expect_eq(launch_ranks(100000, &rank, &code, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "100000"), "%s", err.msg);
}

Test(comm_launch_env, mpi_is_known_by_its_environment)
{
    static const struct {
        const char *set[3]; /* "NAME=VALUE" */
        bool is_mpi;
        int world;
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
        int world = -1;

        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unsetenv(names[k]);
        for (int k = 0; k < 3 && rows[i].set[k]; k++)
            putenv((char *)(uintptr_t)rows[i].set[k]);
        cr_expect_eq(launch_is_mpi(&world), rows[i].is_mpi, "row %zu", i);
        cr_expect_eq(world, rows[i].world, "row %zu: %d", i, world);
    }
}
