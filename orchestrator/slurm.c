/* orchestrator/slurm.c - see orchestrator/slurm.h. */
#include "orchestrator/slurm.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"

enum { OUTPUT_MAX = 1 << 20 };

static void child(char *const *argv, int out)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Run a program to its end; *output gets what it said, in the arena.
 * TP_E_IO: it said no; its last line is in err. */
static tp_status ask(char **output, char *const *argv, struct arena *arena, struct tp_err *err)
{
    char *text = arena_alloc(arena, OUTPUT_MAX + 1);
    size_t n = 0;
    ssize_t got;
    int fds[2], status = -1;
    pid_t pid;

    if (!text || pipe2(fds, O_CLOEXEC) != 0)
        return tp_fail(err, TP_E_NOMEM, "no memory to run %s", argv[0]);
    pid = fork();
    if (pid == 0)
        child(argv, fds[1]);
    close(fds[1]);
    while (n < OUTPUT_MAX && (got = read(fds[0], text + n, OUTPUT_MAX - n)) > 0)
        n += (size_t)got;
    close(fds[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return tp_fail_errno(err, "cannot run %s", argv[0]);
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = 0;
    if (status != 0) {
        const char *last = strrchr(text, '\n');

        return tp_fail(err, TP_E_IO, "%s failed: %.300s", argv[0], last ? last + 1 : text);
    }
    *output = text;
    return TP_OK;
}

static void forget(const struct job *job)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%.4000s/allocation", job->state);
    unlink(path);
}

/* "own 12" or "found 12"; 0 when there is none. */
static long remembered(const struct job *job, bool *own)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char path[PATH_MAX], *text;
    size_t n;
    long id = 0;

    snprintf(path, sizeof path, "%.4000s/allocation", job->state);
    if (file_read_all(&text, &n, path, 64, &arena, &ignored) == TP_OK) {
        *own = strncmp(text, "own ", 4) == 0;
        id = strchr(text, ' ') ? strtol(strchr(text, ' '), NULL, 10) : 0;
    }
    arena_free(&arena);
    return id;
}

/* The nodes of a running job; TP_E_IO when it does not run (any more). */
static tp_status node_list(char **list, long id, struct arena *arena, struct tp_err *err)
{
    char *argv[] = { "squeue", "-h", "-j", arena_printf(arena, "%ld", id), "-t", "RUNNING",
                     "-o",     "%N", NULL };
    tp_status st = ask(list, argv, arena, err);

    if (st == TP_OK && !(*list)[0])
        st = tp_fail(err, TP_E_IO, "Slurm job %ld is not running", id);
    return st;
}

static tp_status make(long *id, const struct job *job, struct arena *arena, struct tp_err *err)
{
    char **argv = arena_array(arena, (size_t)job->slurm.options.n + 16, sizeof *argv);
    const char *granted;
    char *said;
    int n = 0;
    tp_status st;

    if (!argv)
        return tp_fail(err, TP_E_NOMEM, "no memory to run salloc");
    argv[n++] = "salloc";
    argv[n++] = "--no-shell";
    argv[n++] = "--no-kill";
    argv[n++] = arena_printf(arena, "--job-name=%s", job->name);
    argv[n++] = arena_printf(arena, "--nodes=%lld", (long long)job->slurm.nodes);
    argv[n++] = arena_printf(arena, "--ntasks-per-node=%lld", (long long)job->slurm.tasks_per_node);
    for (int i = 0; i < job->slurm.options.n; i++)
        argv[n++] = job->slurm.options.word[i];
    st = ask(&said, argv, arena, err);
    granted = st ? NULL : strstr(said, "Granted job allocation ");
    if (st)
        return st;
    *id = granted ? strtol(granted + strlen("Granted job allocation "), NULL, 10) : 0;
    return *id > 0 ? TP_OK : tp_fail(err, TP_E_IO, "salloc said no job id: %.200s", said);
}

static tp_status use_nodes(struct job *job, char *list, struct arena *arena, struct tp_err *err)
{
    char *argv[] = { "scontrol", "show", "hostnames", list, NULL };
    char *names;
    int n = 1;
    tp_status st = ask(&names, argv, arena, err);

    if (st)
        return st;
    for (const char *p = names; *p; p++)
        n += *p == '\n';
    job->nodes = arena_array(arena, (size_t)n, sizeof *job->nodes);
    if (!job->nodes || n > JOB_NODES_MAX)
        return tp_fail(err, TP_E_NOMEM, "no room for %d nodes", n);
    job->n_nodes = 0;
    for (char *p = names; *p;) {
        size_t len = strcspn(p, "\n");

        job->nodes[job->n_nodes++] =
            (struct job_node){ .name = arena_printf(arena, "%.*s", (int)len, p),
                               .slots = (int)job->slurm.tasks_per_node };
        p += len + (p[len] == '\n');
    }
    return TP_OK;
}

tp_status slurm_allocate(struct job *job, struct arena *arena, struct tp_err *err)
{
    const char *inside = getenv("SLURM_JOB_ID");
    char path[PATH_MAX], text[64], *list = NULL;
    bool own = false;
    long id = remembered(job, &own);
    tp_status st = TP_OK;

    if (id <= 0 || node_list(&list, id, arena, err)) {
        own = !inside;
        id = inside ? strtol(inside, NULL, 10) : 0;
        if (own)
            st = make(&id, job, arena, err);
        if (st || (st = node_list(&list, id, arena, err)))
            return st;
    }
    snprintf(path, sizeof path, "%.4000s/allocation", job->state);
    snprintf(text, sizeof text, "%s %ld\n", own ? "own" : "found", id);
    if ((st = file_replace(path, text, strlen(text), err)) ||
        (st = use_nodes(job, list, arena, err)))
        return st;
    job->slurm.job_id = id;
    return TP_OK;
}

void slurm_release(const struct job *job)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    bool own = false;
    long id = remembered(job, &own);
    char *argv[] = { "scancel", arena_printf(&arena, "%ld", id), NULL }, *said;

    if (own && id > 0)
        ask(&said, argv, &arena, &ignored);
    forget(job);
    arena_free(&arena);
}

tp_status slurm_command(struct job_words *out, const struct job *job, const char *nodes,
                        int n_nodes, int ranks, struct arena *arena, struct tp_err *err)
{
    int n = 0;

    out->word = arena_array(arena, 24, sizeof *out->word);
    if (!out->word)
        return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    out->word[n++] = "srun";
    out->word[n++] = arena_printf(arena, "--jobid=%ld", job->slurm.job_id);
    out->word[n++] = "--overlap";
    out->word[n++] = "--mpi=pmix";
    out->word[n++] = "--kill-on-bad-exit=1";
    out->word[n++] = arena_printf(arena, "--nodes=%d", n_nodes);
    out->word[n++] = arena_printf(arena, "--ntasks=%d", ranks);
    out->word[n++] = arena_printf(arena, "--nodelist=%s", nodes);
    out->word[n++] = "--distribution=block";
    out->word[n++] = "--export=ALL";
    out->n = n;
    for (int i = 0; i < n; i++)
        if (!out->word[i])
            return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    return TP_OK;
}

void slurm_drain(const char *node, const char *reason)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char *said, *argv[] = { "scontrol",
                            "update",
                            arena_printf(&arena, "NodeName=%s", node),
                            "State=DRAIN",
                            arena_printf(&arena, "Reason=tp-run: %.100s", reason),
                            NULL };

    ask(&said, argv, &arena, &ignored);
    arena_free(&arena);
}
