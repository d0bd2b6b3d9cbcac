/* orchestrator/backend/slurm/slurm_command.c - see orchestrator/backend/slurm/slurm_command.h. */
#include "orchestrator/backend/slurm/slurm_command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/text.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/child.h"

enum { WORDS_MAX = 24 }; /* in one command, without the options in the job file */

enum { AGAIN_US = 1000 * 1000 };

static const double PATIENCE_S = 60;

void slurm_client_env(struct environment *out, const struct environment *env)
{
    /* these two say where Slurm is; the others describe the Slurm job in which tp-run runs */
    static const char *const kept[] = { "SLURM_CONF", "SLURM_CLUSTERS", NULL };
    /* what people prefer to see, and which jobs scancel ends */
    static const char *const views[] = { "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_" };
    static const char *const none[] = { NULL };

    environment_copy(out, environment_list(env));
    environment_unset_prefix(out, "SLURM_", kept);
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++)
        environment_unset_prefix(out, views[i], none);
    environment_unset(out, "SBATCH_ARRAY_INX"); /* a job file is one job */
    environment_unset(out, "SBATCH_WAIT");      /* the answer would come at the end of the job */
}

void slurm_words(struct job_words *out, struct arena *arena, ...)
{
    va_list list;
    char *word;

    *out = (struct job_words){ .word = arena_array(arena, WORDS_MAX + 1, sizeof *out->word) };
    if (!out->word)
        return;
    va_start(list, arena);
    while (out->n < WORDS_MAX && (word = va_arg(list, char *)))
        out->word[out->n++] = word;
    va_end(list);
    out->word[out->n] = NULL;
}

void slurm_on_node(struct job_words *out, long job, const char *node, char *const *argv,
                   struct arena *arena)
{
    slurm_words(out, arena, "srun", arena_printf(arena, "--jobid=%ld", job), "--overlap",
                "--mpi=none", "--nodes=1", "--ntasks=1", "--quiet",
                arena_printf(arena, "--nodelist=%s", node), NULL);
    for (; out->word && *argv && out->n < WORDS_MAX; argv++)
        out->word[out->n++] = *argv;
    if (out->word)
        out->word[out->n] = NULL;
}

void slurm_view_words(struct job_words *out, long job, struct arena *arena)
{
    slurm_words(out, arena, "squeue", "-h", "-t", "all", "-j", arena_printf(arena, "%ld", job),
                "-O", SLURM_VIEW_FORMAT, NULL);
}

void slurm_identity_words(struct job_words *out, long job, struct arena *arena)
{
    slurm_words(out, arena, "squeue", "-h", "-t", "all", "-j", arena_printf(arena, "%ld", job),
                "-o", SLURM_IDENTITY_FORMAT, NULL);
}

/* A command that is being built. */
struct slurm_builder {
    struct job_words *out;
    struct arena *arena;
    int room;
    bool failed;
};

static struct slurm_builder build(struct job_words *out, const struct job *job, struct arena *arena)
{
    const struct slurm_options *o = slurm_options(job);
    struct slurm_builder b = { out, arena, WORDS_MAX + o->options.n + o->step_options.n, false };

    *out = (struct job_words){ .word = arena_array(arena, (size_t)b.room + 1, sizeof *out->word) };
    b.failed = !out->word;
    return b;
}

static void add(struct slurm_builder *b, char *word)
{
    b->failed = b->failed || !word || b->out->n == b->room;
    if (b->failed)
        return;
    b->out->word[b->out->n++] = word;
    b->out->word[b->out->n] = NULL;
}

/* Add name=value, unless there is no value. */
static void add_option(struct slurm_builder *b, const char *name, const char *value)
{
    if (value && value[0])
        add(b, arena_printf(b->arena, "%s=%s", name, value));
}

static void add_number(struct slurm_builder *b, const char *name, int64_t value)
{
    add(b, arena_printf(b->arena, "%s=%lld", name, (long long)value));
}

/* Add the words of slurm.options. containers: the options about containers, in which the ranks run.
 * others: all other options, which select the nodes. */
static void add_options(struct slurm_builder *b, const struct job *job, bool containers,
                        bool others)
{
    const struct job_words *words = &slurm_options(job)->options;

    for (int i = 0; i < words->n; i++)
        if (strncmp(words->word[i], "--container", 11) == 0 ? containers : others)
            add(b, words->word[i]);
}

static tp_status finish(struct slurm_builder *b, struct tp_err *err)
{
    return b->failed ? tp_fail(err, TP_E_NOMEM, "no memory for a Slurm command") : TP_OK;
}

/* Join `nodes` and the nodes that slurm.options exclude, because only the last --exclude counts. */
static const char *join_excluded(const struct job *job, const char *nodes, struct arena *arena)
{
    const int n = slurm_options(job)->options.n;
    const char *more;

    for (int i = 0; nodes && nodes[0] && i < n; i++)
        if ((more = slurm_option(job, i, "--exclude", 'x')))
            nodes = arena_printf(arena, "%s,%s", more, nodes);
    return nodes;
}

tp_status slurm_salloc(struct job_words *out, const struct job *job, const struct slurm_request *q,
                       struct arena *arena, struct tp_err *err)
{
    struct slurm_builder b = build(out, job, arena);

    add(&b, "salloc");
    add(&b, "--no-shell");
    add(&b, "--no-kill");
    add_option(&b, "--job-name", job->name);
    add_number(&b, "--nodes", q->nodes);
    add_number(&b, "--ntasks-per-node", slurm_tasks_per_node(job));
    add_options(&b, job, true, true);
    add_option(&b, "--exclude", join_excluded(job, q->exclude, arena));
    if (q->expand) { /* after slurm.options, because these override their number of nodes and time
                      */
        add(&b, arena_printf(arena, "--dependency=expand:%ld", q->expand));
        add_number(&b, "--nodes", q->nodes);
        if (q->seconds > 0)
            add_number(&b, "--time", (int64_t)(q->seconds / 60) + 1);
    }
    return finish(&b, err);
}

/* Quote text for a shell. */
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

/* A path in which sbatch replaces nothing: it would put the job's number for %j. */
static char *plain_pattern(const char *path, struct arena *arena)
{
    char *out = arena_alloc(arena, 2 * strlen(path) + 1), *p = out;

    if (!out)
        return NULL;
    for (; *path; path++) {
        if (*path == '%')
            *p++ = '%';
        *p++ = *path;
    }
    *p = 0;
    return out;
}

char *slurm_script_path(const struct job *job, struct arena *arena)
{
    return arena_printf(arena, "%s/batch.sh", job->state);
}

/* Write the script, which sbatch copies when it submits. */
static tp_status write_script(char **path, const struct slurm_client *client, struct arena *arena,
                              struct tp_err *err)
{
    const struct job *job = client->job;
    const char *program = quote(client->self, arena), *dir = quote(job->dir, arena);
    const char *file = quote(text_base_name(job->path), arena);
    char *text;

    /* "./", because a job file may have the name of a verb or of an option */
    *path = slurm_script_path(job, arena);
    text = program && file && dir
               ? arena_printf(arena, "#!/bin/sh\ncd %s && exec %s ./%s\n", dir, program, file)
               : NULL;
    if (!*path || !text)
        return tp_fail(err, TP_E_NOMEM, "no memory for a batch script");
    return file_replace(*path, text, strlen(text), err);
}

tp_status slurm_sbatch(struct job_words *out, const struct slurm_client *client,
                       const struct slurm_batch *batch, struct arena *arena, struct tp_err *err)
{
    const struct job *job = client->job;
    struct slurm_builder b = build(out, job, arena);
    const struct slurm_view *like = batch->like;
    char *script, *state = plain_pattern(job->state, arena);
    tp_status st = write_script(&script, client, arena, err);

    if (st)
        return st;
    add(&b, "sbatch");
    add(&b, "--parsable");
    add(&b, "--no-kill");
    add(&b, "--open-mode=append"); /* a requeued job appends to the same file */
    add_option(&b, "--job-name", job->name);
    add(&b, state ? arena_printf(arena, "--output=%s/slurm-%%j.out", state) : NULL);
    if (like) {
        add_option(&b, "--account", like->account);
        add_option(&b, "--partition", like->partition);
        add_option(&b, "--qos", like->qos);
        if (slurm_seconds(like->limit) > 0)
            add_option(&b, "--time", like->limit);
    }
    add_number(&b, "--nodes", batch->nodes);
    add_number(&b, "--ntasks-per-node", slurm_tasks_per_node(job));
    add_options(&b, job, false, true);
    if (batch->after)
        add(&b, arena_printf(arena, "--dependency=afterany:%ld", batch->after));
    add(&b, script);
    return finish(&b, err);
}

tp_status slurm_step_words(struct job_words *out, const struct job *job,
                           const struct slurm_step *step, struct arena *arena, struct tp_err *err)
{
    struct slurm_builder b = build(out, job, arena);
    const struct job_words *options = &slurm_options(job)->step_options;

    add(&b, "srun");
    add(&b, arena_printf(arena, "--jobid=%ld", step->job));
    add(&b, "--overlap");
    add(&b, "--mpi=pmix");
    add(&b, "--kill-on-bad-exit=1");
    add(&b, "--distribution=block");
    add(&b, "--export=ALL");
    add_options(&b, job, true, false);
    for (int i = 0; i < options->n; i++)
        add(&b, options->word[i]);
    add_number(&b, "--nodes", step->n_nodes);
    add_number(&b, "--ntasks", step->ranks);
    add_option(&b, "--nodelist", step->nodes);
    return finish(&b, err);
}

/* ---- waiting for the answer ---- */

tp_status slurm_ask(char **output, const struct job_words *words, const struct slurm_client *client,
                    double patience_s, struct arena *arena, struct tp_err *err)
{
    const struct timespec pause = { .tv_nsec = 5 * 1000 * 1000 };
    const struct child_setup setup = { .argv = words->word,
                                       .env = client->env,
                                       .dir = client->dir };
    struct child c = { .fd = -1 };
    int status = -1, code;
    bool late;
    pid_t ended = 0;
    tp_status st = words->n ? child_start(&c, &setup, err)
                            : tp_fail(err, TP_E_NOMEM, "no memory for a Slurm command");

    if (st)
        return st;
    c.until = patience_s > 0 ? clock_seconds() + patience_s : 0;
    while ((ended = waitpid(c.pid, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        child_poll(&c, clock_seconds());
        nanosleep(&pause, NULL);
    }
    late = c.until > 0 && clock_seconds() > c.until;
    code = child_ended(&c, status);
    if (code && late && !c.last[0])
        st = tp_fail(err, TP_E_IO, "%s did not answer within %.0f s", words->word[0], patience_s);
    else if (code)
        st = tp_fail(err, TP_E_IO, "%s failed: %s", words->word[0], c.last);
    else if (output)
        *output = arena_strdup(arena, c.text ? c.text : "");
    child_free(&c);
    return st;
}

bool slurm_again(const char *why, double until)
{
    if (!slurm_is_unreachable(why) || clock_seconds() >= until)
        return false;
    usleep(AGAIN_US);
    return true;
}

tp_status slurm_cancel(const struct slurm_client *client, long job, double patience_s,
                       struct tp_err *err)
{
    double until = clock_seconds() + patience_s;
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    slurm_words(&words, &arena, "scancel", arena_printf(&arena, "%ld", job), NULL);
    do {
        st = slurm_ask(NULL, &words, client, PATIENCE_S, &arena, err);
    } while (st && slurm_again(err->msg, until));
    arena_free(&arena);
    return st;
}

tp_status slurm_submit(long *job, const struct slurm_client *client,
                       const struct slurm_batch *batch, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job_words words;
    char *text = "";
    tp_status st = slurm_sbatch(&words, client, batch, &arena, err);

    if (st == TP_OK)
        st = slurm_ask(&text, &words, client, PATIENCE_S, &arena, err);
    *job = st ? 0 : slurm_submitted(text);
    if (st == TP_OK && *job == 0)
        st = tp_fail(err, TP_E_IO, "sbatch: this is not a job's number: %.200s", text);
    arena_free(&arena);
    return st;
}
