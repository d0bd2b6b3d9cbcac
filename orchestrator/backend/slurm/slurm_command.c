/* orchestrator/backend/slurm/slurm_command.c - see orchestrator/backend/slurm/slurm_command.h. */
#include "orchestrator/backend/slurm/slurm_command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/child.h"

enum { WORDS_MAX = 24 }; /* of ours, in one command */

static const double PATIENCE_S = 60;

/* Words up to a NULL; nothing when there was no memory for the list. */
static void append(struct job_words *out, va_list list)
{
    char *word;

    if (!out->word)
        return;
    while (out->n < WORDS_MAX && (word = va_arg(list, char *)))
        out->word[out->n++] = word;
    out->word[out->n] = NULL;
}

void slurm_words(struct job_words *out, struct arena *arena, ...)
{
    va_list list;

    *out = (struct job_words){ .word = arena_array(arena, WORDS_MAX + 1, sizeof *out->word) };
    va_start(list, arena);
    append(out, list);
    va_end(list);
}

void slurm_on_node(struct job_words *out, long id, const char *node, struct arena *arena, ...)
{
    va_list list;

    slurm_words(out, arena, "srun", arena_printf(arena, "--jobid=%ld", id), "--overlap",
                "--mpi=none", "--nodes=1", "--ntasks=1", "--quiet",
                arena_printf(arena, "--nodelist=%s", node), NULL);
    va_start(list, arena);
    append(out, list);
    va_end(list);
}

void slurm_view_words(struct job_words *out, long id, struct arena *arena)
{
    slurm_words(out, arena, "squeue", "-h", "-t", "all", "-j", arena_printf(arena, "%ld", id), "-O",
                SLURM_VIEW_FORMAT, NULL);
}

/* Words being put together. */
struct builder {
    struct job_words *out;
    struct arena *arena;
    int room;
    bool failed;
};

static struct builder builder(struct job_words *out, const struct job *job, struct arena *arena)
{
    struct builder b = { out, arena,
                         WORDS_MAX + slurm_options(job)->options.n +
                             slurm_options(job)->step_options.n,
                         false };

    *out = (struct job_words){ .word = arena_array(arena, (size_t)b.room + 1, sizeof *out->word) };
    b.failed = !out->word;
    return b;
}

static void add(struct builder *b, char *word)
{
    b->failed = b->failed || !word || b->out->n == b->room;
    if (b->failed)
        return;
    b->out->word[b->out->n++] = word;
    b->out->word[b->out->n] = NULL;
}

/* name=value, unless there is no value. */
static void add_option(struct builder *b, const char *name, const char *value)
{
    if (value && value[0])
        add(b, arena_printf(b->arena, "%s=%s", name, value));
}

static void add_number(struct builder *b, const char *name, int64_t value)
{
    add(b, arena_printf(b->arena, "%s=%lld", name, (long long)value));
}

static bool is_container(const char *word)
{
    return strncmp(word, "--container", 11) == 0;
}

/* slurm.options: containers are where the ranks run, the rest says which nodes. */
static void add_options(struct builder *b, const struct job *job, bool containers, bool others)
{
    for (int i = 0; i < slurm_options(job)->options.n; i++)
        if (is_container(slurm_options(job)->options.word[i]) ? containers : others)
            add(b, slurm_options(job)->options.word[i]);
}

static tp_status finish(struct builder *b, struct tp_err *err)
{
    return b->failed ? tp_fail(err, TP_E_NOMEM, "no memory for a command of Slurm") : TP_OK;
}

/* The nodes that are at fault, beside those that the options exclude: the last --exclude counts. */
static const char *also_excluded(const struct job *job, const char *nodes, struct arena *arena)
{
    static const char name[] = "--exclude=";

    for (int i = 0; nodes[0] && i < slurm_options(job)->options.n; i++)
        if (strncmp(slurm_options(job)->options.word[i], name, sizeof name - 1) == 0)
            nodes = arena_printf(arena, "%s,%s",
                                 slurm_options(job)->options.word[i] + sizeof name - 1, nodes);
    return nodes;
}

tp_status slurm_salloc(struct job_words *out, const struct job *job, const struct slurm_request *q,
                       struct arena *arena, struct tp_err *err)
{
    struct builder b = builder(out, job, arena);

    add(&b, "salloc");
    add(&b, "--no-shell");
    add(&b, "--no-kill");
    add_option(&b, "--job-name", job->name);
    add_number(&b, "--nodes", q->nodes);
    add_number(&b, "--ntasks-per-node", slurm_options(job)->tasks_per_node);
    add_options(&b, job, true, true);
    add_option(&b, "--exclude", also_excluded(job, q->exclude, arena));
    if (q->expand) { /* what the options say of nodes and time is about the whole */
        add(&b, arena_printf(arena, "--dependency=expand:%ld", q->expand));
        add_number(&b, "--nodes", q->nodes);
        if (q->seconds > 0)
            add_number(&b, "--time", (int64_t)(q->seconds / 60) + 1);
    }
    return finish(&b, err);
}

/* 'text' for a shell. */
static char *quote(const char *text, struct arena *arena)
{
    char *out = arena_alloc(arena, 4 * strlen(text) + 3), *p = out;

    if (!out)
        return NULL;
    *p++ = '\'';
    for (; *text; text++)
        if (*text == '\'') {
            memcpy(p, "'\\''", 4);
            p += 4;
        } else {
            *p++ = *text;
        }
    *p++ = '\'';
    *p = 0;
    return out;
}

/* STATE/batch.sh: sbatch copies it when it submits. */
static tp_status write_script(char **path, const struct job *job, const char *self,
                              struct arena *arena, struct tp_err *err)
{
    const char *program = quote(self, arena), *file = quote(job->path, arena);
    const char *dir = quote(job->dir, arena), *base = strrchr(job->path, '/');
    char *text;

    if (base)
        file = quote(base + 1, arena);
    *path = arena_printf(arena, "%s/batch.sh", job->state);
    text = program && file && dir
               ? arena_printf(arena, "#!/bin/sh\ncd %s && exec %s %s\n", dir, program, file)
               : NULL;
    if (!*path || !text)
        return tp_fail(err, TP_E_NOMEM, "no memory for a batch script");
    return file_replace(*path, text, strlen(text), err);
}

tp_status slurm_sbatch(struct job_words *out, const struct job *job, const char *self, long after,
                       const struct slurm_view *like, int64_t nodes, struct arena *arena,
                       struct tp_err *err)
{
    struct builder b = builder(out, job, arena);
    char *script;
    tp_status st = write_script(&script, job, self, arena, err);

    if (st)
        return st;
    add(&b, "sbatch");
    add(&b, "--parsable");
    add(&b, "--no-kill");
    add(&b, "--open-mode=append"); /* requeued, it goes on in the same file */
    add_option(&b, "--job-name", job->name);
    add(&b, arena_printf(arena, "--output=%s/slurm-%%j.out", job->state));
    if (like) {
        add_option(&b, "--account", like->account);
        add_option(&b, "--partition", like->partition);
        add_option(&b, "--qos", like->qos);
        if (slurm_seconds(like->limit) > 0)
            add_option(&b, "--time", like->limit);
    }
    add_number(&b, "--nodes", nodes);
    add_number(&b, "--ntasks-per-node", slurm_options(job)->tasks_per_node);
    add_options(&b, job, false, true);
    if (after)
        add(&b, arena_printf(arena, "--dependency=afterany:%ld", after));
    add(&b, script);
    return finish(&b, err);
}

tp_status slurm_step(struct job_words *out, const struct job *job, long id, const char *nodes,
                     int n_nodes, int ranks, struct arena *arena, struct tp_err *err)
{
    struct builder b = builder(out, job, arena);

    add(&b, "srun");
    add(&b, arena_printf(arena, "--jobid=%ld", id));
    add(&b, "--overlap");
    add(&b, "--mpi=pmix");
    add(&b, "--kill-on-bad-exit=1");
    add(&b, "--distribution=block");
    add(&b, "--export=ALL");
    add_options(&b, job, true, false);
    for (int i = 0; i < slurm_options(job)->step_options.n; i++)
        add(&b, slurm_options(job)->step_options.word[i]);
    add_number(&b, "--nodes", n_nodes);
    add_number(&b, "--ntasks", ranks);
    add_option(&b, "--nodelist", nodes);
    return finish(&b, err);
}

/* ---- asking and waiting for the answer ---- */

tp_status slurm_ask(char **output, const struct job_words *words, const char *dir,
                    double patience_s, struct arena *arena, struct tp_err *err)
{
    const struct timespec pause = { .tv_nsec = 5 * 1000 * 1000 };
    struct child c = { .fd = -1 };
    int status = -1, code;
    pid_t gone = 0;
    tp_status st = words->n ? child_start(&c, words->word, dir, NULL, err)
                            : tp_fail(err, TP_E_NOMEM, "no memory for a command of Slurm");

    if (st)
        return st;
    c.until = patience_s > 0 ? clock_seconds() + patience_s : 0;
    while ((gone = waitpid(c.pid, &status, WNOHANG)) == 0 || (gone < 0 && errno == EINTR)) {
        child_look(&c, clock_seconds());
        nanosleep(&pause, NULL);
    }
    code = child_over(&c, status);
    if (code)
        st = tp_fail(err, TP_E_IO, "%s failed: %.300s", words->word[0], child_last_line(&c));
    else if (output)
        *output = arena_strdup(arena, c.text ? c.text : "");
    child_free(&c);
    return st;
}

tp_status slurm_cancel(const struct job *job, long id, double patience_s, struct tp_err *err)
{
    double until = clock_seconds() + patience_s;
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    slurm_words(&words, &arena, "scancel", arena_printf(&arena, "%ld", id), NULL);
    st = slurm_ask(NULL, &words, job->state, PATIENCE_S, &arena, err);
    while (st && slurm_is_away(err->msg) && clock_seconds() < until) {
        sleep(1);
        st = slurm_ask(NULL, &words, job->state, PATIENCE_S, &arena, err);
    }
    arena_free(&arena);
    return st;
}

tp_status slurm_submit(long *id, const struct job *job, const char *self, long after,
                       const struct slurm_view *like, int64_t nodes, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job_words words;
    char *text;
    tp_status st = slurm_sbatch(&words, job, self, after, like, nodes, &arena, err);

    if (st == TP_OK)
        st = slurm_ask(&text, &words, job->state, PATIENCE_S, &arena, err);
    *id = st ? 0 : slurm_submitted(text);
    if (st == TP_OK && *id == 0)
        st = tp_fail(err, TP_E_IO, "sbatch: not a job's number: %.200s", text);
    arena_free(&arena);
    return st;
}
