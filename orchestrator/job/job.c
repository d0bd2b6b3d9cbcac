/* orchestrator/job/job.c - see orchestrator/job/job.h. */
#include "orchestrator/job/job.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/job/job_yaml.h"

tp_status job_split(struct job_words *out, const char *text, struct arena *arena,
                    struct tp_err *err)
{
    size_t n = strlen(text);
    char **word = arena_array(arena, n / 2 + 2, sizeof *word);
    char *to = arena_alloc(arena, n + 1);
    const char *p = text;
    int count = 0;

    if (!word || !to)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    while (*(p += strspn(p, " \t\r\n"))) {
        char quote = 0;

        word[count++] = to;
        for (; *p && (quote || !strchr(" \t\r\n", *p)); p++) {
            if (*p == quote)
                quote = 0;
            else if (!quote && (*p == '\'' || *p == '"'))
                quote = *p;
            else if (*p == '\\' && quote != '\'' && p[1])
                *to++ = *++p;
            else
                *to++ = *p;
        }
        if (quote)
            return tp_fail(err, TP_E_USAGE, "the quote %c is not closed", quote);
        *to++ = 0;
        if (*p)
            p++;
    }
    word[count] = NULL;
    *out = (struct job_words){ .n = count, .word = word };
    return TP_OK;
}

static bool is_axis(const char *name)
{
    static const char *const axes[] = { "tp", "pp",    "vpp",   "cp",  "dp",
                                        "sp", "zero1", "zero3", "zero" };

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (strcmp(name, axes[i]) == 0)
            return true;
    return false;
}

bool job_has_axis(const struct job *j, const char *axis)
{
    for (int i = 0; i < j->layouts.axes.n; i++) {
        const char *word = j->layouts.axes.word[i];

        if (strcmp(word, axis) == 0 || (strcmp(word, "zero") == 0 && strncmp(axis, "zero", 4) == 0))
            return true;
    }
    return false;
}

static int64_t slots_of(const struct job *j)
{
    int64_t n = 0;

    for (int i = 0; i < j->n_nodes; i++)
        n += j->nodes[i].slots;
    return n;
}

/* Options of salloc and sbatch that make several jobs of one. */
static tp_status check_slurm_options(const struct job *j, struct tp_err *err)
{
    for (int i = 0; i < j->slurm.options.n; i++) {
        const char *word = j->slurm.options.word[i];

        if (strncmp(word, "--array", 7) == 0 || strncmp(word, "-a", 2) == 0 ||
            strcmp(word, ":") == 0)
            return tp_fail(err, TP_E_USAGE,
                           "%s: slurm.options: '%s' makes several jobs of one, and a job file is "
                           "one job; start tp-run once for each",
                           j->path, word);
    }
    return TP_OK;
}

static tp_status check(const struct job *j, struct tp_err *err)
{
    if (j->command.n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: the key \"command\" is missing", j->path);
    if (!j->ckpt)
        return tp_fail(err, TP_E_USAGE, "%s: the key \"ckpt\" is missing", j->path);
    if (j->layouts.axes.n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: layouts.axes is empty", j->path);
    for (int i = 0; i < j->layouts.axes.n; i++)
        if (!is_axis(j->layouts.axes.word[i]))
            return tp_fail(err, TP_E_USAGE,
                           "%s: layouts.axes: \"%s\" is no axis (tp pp vpp cp dp sp zero1 zero3)",
                           j->path, j->layouts.axes.word[i]);
    if (j->restart.spares >= j->n_nodes && j->backend == JOB_LOCAL)
        return tp_fail(err, TP_E_USAGE, "%s: restart.spares: %lld of %d nodes leave none to work",
                       j->path, (long long)j->restart.spares, j->n_nodes);
    if (j->backend == JOB_LOCAL && slots_of(j) > JOB_RANKS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s: nodes: they hold %lld ranks, at most %d can run",
                       j->path, (long long)slots_of(j), JOB_RANKS_MAX);
    if (j->layouts.max_ranks > 0 && j->layouts.min_ranks > j->layouts.max_ranks)
        return tp_fail(err, TP_E_USAGE, "%s: layouts.min_ranks %lld is more than max_ranks %lld",
                       j->path, (long long)j->layouts.min_ranks, (long long)j->layouts.max_ranks);
    if (j->backend == JOB_SLURM &&
        (j->slurm.tasks_per_node < 1 || j->slurm.tasks_per_node > JOB_RANKS_MAX ||
         j->slurm.nodes > JOB_NODES_MAX))
        return tp_fail(err, TP_E_USAGE,
                       "%s: slurm.tasks_per_node must be 1 to %d, slurm.nodes at most %d", j->path,
                       JOB_RANKS_MAX, JOB_NODES_MAX);
    if (j->backend == JOB_SLURM && j->slurm.poll < 0.2)
        return tp_fail(err, TP_E_USAGE, "%s: slurm.poll must be at least 0.2s", j->path);
    if (j->watch.factor < 1)
        return tp_fail(err, TP_E_USAGE, "%s: watch.factor must be at least 1", j->path);
    return check_slurm_options(j, err);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

tp_status job_parse(struct job *out, const char *text, size_t size, const char *path,
                    struct arena *arena, struct tp_err *err)
{
    struct job j = { .path = arena_strdup(arena, path) };
    char dir[PATH_MAX], full[PATH_MAX];
    const char *slash = strrchr(path, '/');
    tp_status st;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    j.dir = arena_strdup(arena, realpath(dir, full) ? full : dir);
    st = job_yaml(&j, text, size, arena, err);
    if (st)
        return st;
    j.is_tp_train = j.command.n > 0 && strcmp(base_name(j.command.word[0]), "tp-train") == 0;
    if (j.is_tp_train && (st = job_options_read(&j, arena, err)))
        return st;
    if (j.backend == JOB_SLURM)
        j.n_nodes = 0; /* they are Slurm's to name */
    if (j.checkpoints == JOB_CKPT_AUTO)
        j.checkpoints = j.is_tp_train ? JOB_CKPT_TP : JOB_CKPT_NONE;
    if (!j.state) {
        const char *name = base_name(path), *dot = strrchr(name, '.');

        j.state = arena_printf(arena, "%s/%.*s.run", j.dir,
                               dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
    }
    st = check(&j, err);
    if (st == TP_OK)
        *out = j;
    return st;
}

tp_status job_read(struct job *out, const char *path, struct arena *arena, struct tp_err *err)
{
    char *text;
    size_t size;
    tp_status st = file_read_all(&text, &size, path, JOB_FILE_MAX, arena, err);

    return st ? st : job_parse(out, text, size, path, arena, err);
}

/* One word with its {names} filled in; what was filled in is not looked at again. Returns its
 * length; out may be NULL. */
static size_t fill_into(char *out, const char *word, const char *const names[][2])
{
    size_t n = 0;

    while (*word) {
        int i = 0;

        while (names[i][0] &&
               (*word != '{' || strncmp(word, names[i][0], strlen(names[i][0])) != 0))
            i++;
        if (out && names[i][0])
            memcpy(out + n, names[i][1], strlen(names[i][1]));
        else if (out)
            out[n] = *word;
        n += names[i][0] ? strlen(names[i][1]) : 1;
        word += names[i][0] ? strlen(names[i][0]) : 1;
    }
    return n;
}

static char *fill(const char *word, const char *const names[][2], struct arena *arena)
{
    size_t n = fill_into(NULL, word, names);
    char *text = arena_array(arena, n + 1, 1);

    if (text) {
        fill_into(text, word, names);
        text[n] = 0;
    }
    return text;
}

tp_status job_fill(struct job_words *out, const struct job *j, const struct job_words *words,
                   const struct spec *layout, int64_t attempt, struct arena *arena,
                   struct tp_err *err)
{
    char spec[SPEC_TEXT_MAX], ranks[16], number[24];
    const char *const names[][2] = { { "{layout}", spec_format(spec, layout) },
                                     { "{ckpt}", j->ckpt },
                                     { "{ranks}", ranks },
                                     { "{attempt}", number },
                                     { "{state}", j->state },
                                     { NULL, NULL } };
    struct job_words w = { 0 };

    snprintf(ranks, sizeof ranks, "%d", spec_world(layout));
    snprintf(number, sizeof number, "%lld", (long long)attempt);
    w.word = arena_array(arena, (size_t)words->n + 8, sizeof *w.word);
    for (; w.word && w.n < words->n; w.n++)
        if (!(w.word[w.n] = fill(words->word[w.n], names, arena)))
            w.word = NULL;
    if (!w.word)
        return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    *out = w;
    return TP_OK;
}

tp_status job_command(struct job_words *out, const struct job *j, const struct run_config *way,
                      int64_t attempt, bool must_resume, struct arena *arena, struct tp_err *err)
{
    char spec[SPEC_TEXT_MAX];
    struct job_words w;
    tp_status st = job_fill(&w, j, &j->command, &way->spec, attempt, arena, err);
    int n = 0;

    if (st)
        return st;
    if (!j->is_tp_train) {
        *out = w;
        return TP_OK;
    }
    for (int i = 0; i < w.n; i++) /* whether it resumes is decided here */
        if (strncmp(w.word[i], "--resume", 8) != 0)
            w.word[n++] = w.word[i];
    if (!job_option(j, "--layout"))
        w.word[n++] = arena_printf(arena, "--layout=%s", spec_format(spec, &way->spec));
    if (way->micro)
        w.word[n++] = arena_printf(arena, "--micro=%lld", (long long)way->micro);
    if (way->recompute)
        w.word[n++] = arena_printf(arena, "--recompute=%s", recompute_name(way->recompute));
    if (!job_option(j, "--ckpt"))
        w.word[n++] = arena_printf(arena, "--ckpt=%s", j->ckpt);
    if (!job_option(j, "--log"))
        w.word[n++] = arena_printf(arena, "--log=%s/steps.jsonl", j->state);
    w.word[n++] = arena_strdup(arena, must_resume ? "--resume=must" : "--resume=auto");
    w.word[n] = NULL;
    w.n = n;
    for (int i = 0; i < n; i++)
        if (!w.word[i])
            return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    *out = w;
    return TP_OK;
}

int job_ranks(const struct job *j)
{
    if (j->backend == JOB_SLURM && j->n_nodes == 0)
        return (int)((j->slurm.nodes ? j->slurm.nodes : 1) * j->slurm.tasks_per_node);
    return (int)slots_of(j);
}
