/* cli/rank_env.c - see cli/rank_env.h. */
#include "cli/rank_env.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"

/* The number in an environment variable if it is greater than 0, else 0. */
static int env_int(const char *name)
{
    const char *text = getenv(name);
    long n = text ? strtol(text, NULL, 10) : 0;

    return n > 0 && n <= INT_MAX ? (int)n : 0;
}

/* The rank of this process, -1: its variable is not set. */
static int read_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                         "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return env_int(names[i]);
    return -1;
}

void rank_env_read(struct comm_env *env)
{
    *env = (struct comm_env){ .host_ranks = env_int("TP_HOST_RANKS"), .mpi_rank = read_rank() };
    env->mpi_size = env_int("OMPI_COMM_WORLD_SIZE");
    if (!env->mpi_size)
        env->mpi_size = env_int("PMI_SIZE");
    /* A batch script and a shell of salloc have variables of Slurm too. Only those of a step with
     * several tasks show that srun started this process. */
    if (!env->mpi_size && getenv("SLURM_PROCID") && env_int("SLURM_STEP_NUM_TASKS") > 1)
        env->mpi_size = env_int("SLURM_STEP_NUM_TASKS");
    env->is_mpi = env->mpi_size > 0 || getenv("PMIX_RANK");
    if (env->is_mpi)
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

bool rank_env_is_echo(void)
{
    return env_int("OMPI_COMM_WORLD_RANK") || env_int("PMIX_RANK") || env_int("PMI_RANK");
}

/* Redirect stream to /dev/null. Returns the argument for restore; -1: it failed. */
static int silence(FILE *stream)
{
    int saved = dup(fileno(stream));

    if (saved >= 0)
        report_discard(stream);
    return saved;
}

static void restore(FILE *stream, int saved)
{
    fflush(stream);
    if (saved < 0)
        return;
    dup2(saved, fileno(stream));
    close(saved);
}

struct rank_env_silence rank_env_silence_echo(void)
{
    if (!rank_env_is_echo())
        return (struct rank_env_silence){ -1, -1 };
    return (struct rank_env_silence){ silence(stdout), silence(stderr) };
}

void rank_env_end_silence(struct rank_env_silence s)
{
    restore(stdout, s.out);
    restore(stderr, s.err);
}

void rank_env_wait_for_first(void)
{
    if (rank_env_is_echo())
        nanosleep(&(struct timespec){ .tv_sec = 5 }, NULL); /* a signal ends it */
}

void rank_env_prepare(char **argv)
{
    char self[4096];
    ssize_t n;

    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    /* the target of the link, because under a debugger the link itself would start the debugger */
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return;
    self[n] = 0;
    execv(self, argv);
}
