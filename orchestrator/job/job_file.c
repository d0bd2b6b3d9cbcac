/* orchestrator/job/job_file.c - see orchestrator/job/job_file.h. */
#include "orchestrator/job/job_file.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/job/job_yaml.h"
#include "storage/location.h"

static bool is_axis(const char *name)
{
    static const char *const axes[] = { "tp", "pp", "vpp",   "cp",    "dp",
                                        "ep", "sp", "zero1", "zero3", "zero" };

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (strcmp(name, axes[i]) == 0)
            return true;
    return false;
}

static tp_status check_layouts(const struct job *j, struct tp_err *err)
{
    if (j->layouts.axes.n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: layouts.axes is empty", j->path);
    for (int i = 0; i < j->layouts.axes.n; i++)
        if (!is_axis(j->layouts.axes.word[i]))
            return tp_fail(
                err, TP_E_USAGE,
                "%s: layouts.axes: \"%s\" is not an axis (tp pp vpp cp dp ep sp zero1 zero3)",
                j->path, j->layouts.axes.word[i]);
    if (j->layouts.max_ranks > 0 && j->layouts.min_ranks > j->layouts.max_ranks)
        return tp_fail(err, TP_E_USAGE, "%s: layouts.min_ranks %lld is more than max_ranks %lld",
                       j->path, (long long)j->layouts.min_ranks, (long long)j->layouts.max_ranks);
    return TP_OK;
}

static tp_status check_nodes(const struct job *j, struct tp_err *err)
{
    if (j->backend->finds_nodes)
        return TP_OK;
    if (j->restart.spares >= j->n_nodes)
        return tp_fail(err, TP_E_USAGE, "%s: restart.spares: %lld of %d nodes leave none to work",
                       j->path, (long long)j->restart.spares, j->n_nodes);
    if (job_slots(j) > JOB_RANKS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s: nodes: they hold %lld ranks, at most %d can run",
                       j->path, (long long)job_slots(j), JOB_RANKS_MAX);
    return TP_OK;
}

/* A store cannot replace a step in one go, so a step there is never converted in place. */
static tp_status check_root(const struct job *j, struct tp_err *err)
{
    if (!location_is_remote(j->ckpt) || j->checkpoints != JOB_CKPT_TP)
        return TP_OK;
    if (location_kind(j->ckpt) != LOCATION_S3)
        return tp_fail(err, TP_E_USAGE,
                       "%s: ckpt: a web server cannot be written to, but ckpt is %.400s; name a "
                       "folder, or s3://BUCKET/PREFIX",
                       j->path, j->ckpt);
    if (j->reshard == JOB_RESHARD_ALWAYS)
        return tp_fail(err, TP_E_USAGE,
                       "%s: reshard: steps in a store (ckpt: %.400s) are not converted in place; "
                       "leave it out, because tp-train resumes at any layout",
                       j->path, j->ckpt);
    if (!j->is_tp_train && j->reshard != JOB_RESHARD_NEVER)
        return tp_fail(err, TP_E_USAGE,
                       "%s: reshard: steps in a store (ckpt: %.400s) are not converted in place; "
                       "set \"reshard: never\" if the command reads every layout",
                       j->path, j->ckpt);
    return location_check(j->ckpt, err);
}

/* Both folders have a file `lock`, and tp-run would wait for its own. */
static tp_status check_state(const struct job *j, struct tp_err *err)
{
    char state[PATH_MAX], root[PATH_MAX];

    if (location_is_remote(j->ckpt) || j->checkpoints != JOB_CKPT_TP ||
        !job_resolve(state, j, j->state) || !job_resolve(root, j, j->ckpt) ||
        strcmp(state, root) != 0)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: the state folder is the checkpoint root %.400s; name another folder as "
                   "state or ckpt",
                   j->path, j->ckpt);
}

/* Whether a word sets a variable in a shell: NAME=VALUE. */
static bool is_assignment(const char *word)
{
    const size_t n =
        strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");

    return n > 0 && word[n] == '=';
}

static tp_status check_command(const struct job *j, struct tp_err *err)
{
    if (j->command.n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: the key \"command\" is missing", j->path);
    if (is_assignment(j->command.word[0]))
        return tp_fail(err, TP_E_USAGE,
                       "%s: command: no shell runs it, so \"%.200s\" is not a program; set the "
                       "variable where tp-run is started (ranks inherit its environment)",
                       j->path, j->command.word[0]);
    return TP_OK;
}

static tp_status check(const struct job *j, struct tp_err *err)
{
    tp_status st;

    if ((st = check_command(j, err)))
        return st;
    if (!j->ckpt)
        return tp_fail(err, TP_E_USAGE, "%s: the key \"ckpt\" is missing", j->path);
    if ((st = check_root(j, err)) || (st = check_state(j, err)))
        return st;
    if (j->restart.no_progress < 1)
        return tp_fail(err, TP_E_USAGE,
                       "%s: restart.no_progress must be at least 1 (1: the first start without "
                       "progress ends the job; restart.max: 0 allows no restart at all)",
                       j->path);
    if (j->watch.factor < 1)
        return tp_fail(err, TP_E_USAGE, "%s: watch.factor must be at least 1", j->path);
    if (j->page.textfile && !text_ends_with(j->page.textfile, ".prom"))
        return tp_fail(err, TP_E_USAGE,
                       "%s: page.textfile: node_exporter reads only files NAME.prom, not \"%s\"",
                       j->path, j->page.textfile);
    if ((st = check_layouts(j, err)) || (st = check_nodes(j, err)))
        return st;
    return j->backend->check ? j->backend->check(j, err) : TP_OK;
}

/* Whether mpirun starts the ranks: it forwards SIGUSR1 to them, but ends them on SIGTERM. */
static bool is_under_mpirun(const struct job *j)
{
    static const char *const names[] = { "mpirun", "mpiexec", "orterun", "prterun" };

    if (j->launcher == JOB_LAUNCH_MPIRUN)
        return true;
    for (size_t i = 0; j->command.n > 0 && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text_base_name(j->command.word[0]), names[i]) == 0)
            return true;
    return false;
}

/* Set missing keys that follow from the rest of the file. */
static void fill_in(struct job *j, struct arena *arena)
{
    const char *name = text_base_name(j->path), *dot = strrchr(name, '.');

    if (j->stop_signal == JOB_STOP_AUTO)
        j->stop_signal = j->is_tp_train || is_under_mpirun(j) ? JOB_STOP_SIGUSR1 : JOB_STOP_SIGTERM;
    if (j->checkpoints == JOB_CKPT_AUTO)
        j->checkpoints = j->is_tp_train ? JOB_CKPT_TP : JOB_CKPT_NONE;
    j->state_is_default = !j->state;
    if (!j->state)
        j->state = arena_printf(arena, "%s/%.*s.run", j->dir,
                                dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
}

/* The root without the slashes at its end: a store's key "a//step" is not "a/step". */
static tp_status clean_root(struct job *j, struct arena *arena, struct tp_err *err)
{
    char clean[PATH_MAX];
    tp_status st = j->ckpt && location_kind(j->ckpt) == LOCATION_S3
                       ? location_clean(clean, j->ckpt, err)
                       : TP_OK;

    if (st)
        return tp_fail_in(err, "%s: ckpt", j->path);
    if (j->ckpt && location_kind(j->ckpt) == LOCATION_S3)
        j->ckpt = arena_strdup(arena, clean);
    return TP_OK;
}

tp_status job_file_parse(struct job *out, const char *text, size_t size, const char *path,
                         const struct job_backend *const *backends, struct arena *arena,
                         struct tp_err *err)
{
    struct job j = { .path = arena_strdup(arena, path) };
    char dir[PATH_MAX], full[PATH_MAX];
    const char *slash = strrchr(path, '/');
    tp_status st;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    j.dir = arena_strdup(arena, realpath(dir, full) ? full : dir);
    if ((st = job_yaml(&j, text, size, backends, arena, err)))
        return st;
    if ((st = clean_root(&j, arena, err)))
        return st;
    j.is_tp_train = j.command.n > 0 && strcmp(text_base_name(j.command.word[0]), "tp-train") == 0;
    if (j.is_tp_train && (st = job_options_read(&j, arena, err)))
        return st;
    fill_in(&j, arena);
    if (j.layouts.model && location_is_remote(j.layouts.model)) {
        if (!(j.layouts.config = arena_alloc(arena, sizeof *j.layouts.config)))
            return tp_fail(err, TP_E_NOMEM, "no memory for the job file");
        *j.layouts.config = (struct job_config){ .arena = arena };
    }
    if (!j.path || !j.dir || !j.state)
        return tp_fail(err, TP_E_NOMEM, "no memory for the job file");
    st = check(&j, err);
    if (j.backend->finds_nodes)
        j.n_nodes = 0;
    if (st == TP_OK)
        *out = j;
    return st;
}

tp_status job_file_read(struct job *out, const char *path,
                        const struct job_backend *const *backends, struct arena *arena,
                        struct tp_err *err)
{
    char *text;
    size_t size;
    tp_status st = file_read_argument(&text, &size, path, JOB_FILE_MAX, arena, err);

    return st ? st : job_file_parse(out, text, size, path, backends, arena, err);
}

/* ---- the example ---- */

static void write_names(FILE *f, const struct job_key *k, const struct job_backend *const *backends)
{
    if (k->names)
        fputs(k->names, f);
    for (int i = 0; k->kind == JOB_KIND_BACKEND && backends[i]; i++)
        fprintf(f, "%s%s", i ? "|" : "", backends[i]->name);
}

static void write_key(FILE *f, const struct job_key *k, const struct job_backend *const *backends)
{
    const char *indent = k->section[0] ? "  " : "", *p = k->help;
    const char *set = k->shown                      ? k->shown
                      : k->kind == JOB_KIND_BACKEND ? backends[0]->name
                                                    : k->value;
    const char *value = set ? set : "";

    while (*p) {
        int n = (int)strcspn(p, "\n");

        fprintf(f, "%s# %.*s\n", indent, n, p);
        p += n + (p[n] == '\n');
    }
    if (k->names || k->kind == JOB_KIND_BACKEND) {
        fprintf(f, "%s# one of: ", indent);
        write_names(f, k, backends);
        fputc('\n', f);
    }
    fprintf(f, "%s%s%s: %s\n", indent, set ? "" : "# ", k->name, value[0] || !set ? value : "\"\"");
}

static void write_keys(FILE *f, const struct job_key *keys,
                       const struct job_backend *const *backends)
{
    const char *section = "";

    for (const struct job_key *k = keys; k && k->kind != JOB_KIND_END; k++) {
        if (strcmp(section, k->section) != 0) {
            section = k->section;
            if (job_section_help(section))
                fprintf(f, "\n# %s\n%s:\n", job_section_help(section), section);
        }
        write_key(f, k, backends);
    }
}

void job_file_example(FILE *f, const struct job_backend *const *backends)
{
    fprintf(f, "# A job file of tp-run. Keys that are left out have the values shown here, except\n"
               "# name, command, ckpt and nodes.\n");
    write_keys(f, job_keys(), backends);
    for (int i = 0; backends[i]; i++)
        if (backends[i]->keys) {
            fprintf(f, "\n# %s\n%s:\n", backends[i]->help, backends[i]->name);
            write_keys(f, backends[i]->keys, backends);
        }
}

int job_ranks(const struct job *j)
{
    return j->backend->ranks ? j->backend->ranks(j) : (int)job_slots(j);
}
