/* orchestrator/job/job_option.c - see orchestrator/job/job_option.h. */
#include "orchestrator/job/job_option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/opt.h"
#include "core/size.h"
#include "layout/train_option.h"
#include "layout/workload.h"
#include "storage/location.h"

/* tp-train's option with this letter; NULL: there is none. */
static const struct train_option *option_of(char letter)
{
    for (const struct train_option *o = train_options(); letter && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

/* The value of the option in word i: in that word, or the next one. */
static const char *value_at(const struct job *j, int i, const char *in_word)
{
    if (in_word)
        return in_word;
    return i + 1 < j->command.n ? j->command.word[i + 1] : "";
}

/* The value of `name` in a word of letters such as "-qn10" or "-n"; NULL: the word does not have
 * it. */
static const char *short_value(const struct job *j, int i, const char *name)
{
    const char *p = j->command.word[i] + 1;
    const struct train_option *o = option_of(*p);

    while (o && o->kind == OPT_KIND_FLAG)
        o = option_of(*++p);
    if (!o || strcmp(o->name, name + 2) != 0)
        return NULL;
    return value_at(j, i, p[1] ? p + 1 : NULL);
}

/* The same in "--name=V" or "--name". For tp-train a unique beginning of the name counts too;
 * tp-train itself refuses one that is not unique. */
static const char *long_value(const struct job *j, int i, const char *name)
{
    const char *word = j->command.word[i];
    size_t n = strcspn(word, "=");

    if (n <= 2 || strncmp(word, name, n) != 0 || (name[n] && !j->is_tp_train))
        return NULL;
    return value_at(j, i, word[n] ? word + n + 1 : NULL);
}

const char *job_option(const struct job *j, const char *name)
{
    const char *last = NULL, *word;

    for (int i = 1; i < j->command.n && (word = j->command.word[i]); i++) {
        const char *v = NULL;

        if (strncmp(word, "--", 2) == 0)
            v = long_value(j, i, name);
        else if (word[0] == '-' && j->is_tp_train)
            v = short_value(j, i, name);
        last = v ? v : last;
    }
    return last;
}

bool job_option_is_open(const struct job *j, const char *name)
{
    const char *v = job_option(j, name);

    return v && strchr(v, '{');
}

/* Whether the command is tp-train with this --device. */
static bool has_device(const struct job *j, const char *name)
{
    const char *device = j->is_tp_train ? job_option(j, "--device") : NULL;

    return device && strcmp(device, name) == 0;
}

bool job_uses_gpus(const struct job *j)
{
    return has_device(j, "cuda") || has_device(j, "auto");
}

bool job_needs_gpus(const struct job *j)
{
    return has_device(j, "cuda");
}

static void flag_number(int64_t *out, const struct job *j, const char *name, int64_t missing)
{
    const char *v = job_option(j, name);

    if (*out == 0)
        *out = v ? strtoll(v, NULL, 10) : missing;
}

/* A layout in the command is the only one that can run. */
static tp_status read_layout(struct job *j, struct arena *arena, struct tp_err *err)
{
    const char *given = job_option(j, "--layout");
    bool allowed = j->layouts.n_allow == 0;
    struct spec *only;
    char a[SPEC_TEXT_MAX], b[SPEC_TEXT_MAX];

    if (!given || strchr(given, '{'))
        return TP_OK;
    if (!(only = arena_alloc(arena, sizeof *only)))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a layout", j->path);
    if (spec_parse(only, given, err))
        return tp_fail_in(err, "%s: --layout in the command", j->path);
    spec_format(a, only);
    for (int i = 0; i < j->layouts.n_allow; i++)
        allowed |= strcmp(spec_format(b, &j->layouts.allow[i]), a) == 0;
    if (!allowed)
        return tp_fail(
            err, TP_E_USAGE,
            "%s: the command has --layout %s, which is not in layouts.allow; leave it out, "
            "because tp-run adds --layout",
            j->path, a);
    j->layouts.allow = only;
    j->layouts.n_allow = 1;
    return TP_OK;
}

/* tp-train must save where tp-run looks for checkpoints. */
static tp_status check_ckpt(const struct job *j, struct tp_err *err)
{
    const char *given = job_option(j, "--ckpt");
    char saved[PATH_MAX], kept[PATH_MAX];
    struct tp_err ignored;

    if (!given || strchr(given, '{') || !j->ckpt)
        return TP_OK;
    if (location_is_remote(given) || location_is_remote(j->ckpt)) {
        if (location_clean(saved, given, &ignored) == TP_OK && strcmp(saved, j->ckpt) == 0)
            return TP_OK;
    } else if (!job_resolve(saved, j, given) || !job_resolve(kept, j, j->ckpt) ||
               strcmp(saved, kept) == 0) {
        return TP_OK;
    }
    return tp_fail(err, TP_E_USAGE,
                   "%s: the command has --ckpt %.400s, but ckpt is %.400s; leave it out, because "
                   "tp-run adds --ckpt",
                   j->path, given, j->ckpt);
}

/* tp-train stops where its command line says. With another number in the file, tp-run would call a
 * run done that is not, or plan for steps that never come. */
static tp_status check_steps(const struct job *j, struct tp_err *err)
{
    const char *given = job_option(j, "--steps");

    if (!j->is_tp_train || !given || !j->steps || strchr(given, '{') ||
        strtoll(given, NULL, 10) == j->steps)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: the command has --steps %.40s, but steps is %lld; leave one of them out",
                   j->path, given, (long long)j->steps);
}

static tp_status refuse_workload(const struct job *j, const char *name, const char *planned,
                                 const char *given, struct tp_err *err)
{
    return tp_fail(err, TP_E_USAGE,
                   "%s: layouts.%s is %.40s, but the command has %s--%s%s%.40s; write --%s %.40s "
                   "there, because tp-run does not add it",
                   j->path, name, planned, given ? "" : "no ", name, given ? " " : "",
                   given ? given : "", name, planned);
}

/* tp-train computes what its command line says. With other values here, tp-run would plan layouts,
 * times and memory of a run that there is not. */
static tp_status check_workload(const struct job *j, const struct workload *w, struct tp_err *err)
{
    const struct {
        const char *option;
        int64_t planned, missing;
    } numbers[] = {
        { "--batch", j->layouts.batch, w->global_batch_size },
        { "--micro", j->layouts.micro, 0 },
        { "--seq", j->layouts.seq, w->seq_length },
    };
    const char *dtype = job_option(j, "--dtype");
    char planned[32];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *given = job_option(j, numbers[i].option);
        int64_t runs = given ? strtoll(given, NULL, 10) : numbers[i].missing;

        snprintf(planned, sizeof planned, "%lld", (long long)numbers[i].planned);
        if (numbers[i].planned && numbers[i].planned != runs &&
            !job_option_is_open(j, numbers[i].option))
            return refuse_workload(j, numbers[i].option + 2, planned, given, err);
    }
    if (j->layouts.dtype && !job_option_is_open(j, "--dtype") &&
        (strcmp(j->layouts.dtype, "bf16") == 0) != (dtype && strcmp(dtype, "bf16") == 0))
        return refuse_workload(j, "dtype", j->layouts.dtype, dtype, err);
    return TP_OK;
}

/* The table by which tp-train's command line is parsed, except for the type of values, which may
 * have a {name}. What is parsed goes to *value and *flag. */
static struct opt *option_table(const char **value, bool *flag, struct arena *arena)
{
    const struct train_option *o = train_options();
    struct opt *table;
    int n = 0;

    while (o[n].name)
        n++;
    table = arena_array(arena, (size_t)n + 1, sizeof *table);
    for (int i = 0; table && i <= n; i++)
        table[i] = (struct opt){ .kind = o[i].kind,
                                 .letter = o[i].letter,
                                 .name = o[i].name,
                                 .out = o[i].kind == OPT_KIND_FLAG ? (void *)flag : value };
    return table;
}

/* tp-train would refuse it too, but only after the launch, and `tp-run plan` launches nothing. */
static tp_status check_names(const struct job *j, struct arena *arena, struct tp_err *err)
{
    const size_t n = (size_t)j->command.n;
    char **words = arena_array(arena, n + 1, sizeof *words);
    enum opt_result ignored;
    const char *value;
    bool flag;
    const struct opt *table = option_table(&value, &flag, arena);

    if (!words || !table)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for the command", j->path);
    memcpy(words, j->command.word, n * sizeof *words); /* opt_parse changes their order */
    words[n] = NULL;
    return opt_parse(table, (int)n, words, &ignored, err)
               ? tp_fail_in(err, "%s: command: tp-train", j->path)
               : TP_OK;
}

/* These choose how one run begins, but tp-run adds the command's options to every attempt. */
static tp_status refuse_choices(const struct job *j, struct tp_err *err)
{
    const char *found = job_option(j, "--reset-optim") ? "--reset-optim" : NULL;

    for (int i = 1; i < j->command.n && !found; i++)
        if (strcmp(j->command.word[i], "--step") == 0 ||
            strncmp(j->command.word[i], "--step=", 7) == 0)
            found = "--step";
    if (!found)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: the command has %s, which every restart would do again; run tp-train once "
                   "with it, then leave it out",
                   j->path, found);
}

tp_status job_options_read(struct job *j, struct arena *arena, struct tp_err *err)
{
    const char *model = job_option(j, "--model"), *mem = job_option(j, "--mem");
    const struct workload w = workload_default();
    tp_status st;

    if ((st = check_names(j, arena, err)) || (st = refuse_choices(j, err)) ||
        (st = check_steps(j, err)) || (st = check_workload(j, &w, err)))
        return st;
    flag_number(&j->steps, j, "--steps", 0);
    flag_number(&j->layouts.batch, j, "--batch", w.global_batch_size);
    flag_number(&j->layouts.micro, j, "--micro", 0);
    flag_number(&j->layouts.seq, j, "--seq", w.seq_length);
    if (!j->layouts.model && model && !strchr(model, '{'))
        j->layouts.model = model[0] == '/' || location_is_remote(model)
                               ? model
                               : arena_printf(arena, "%s/%s", j->dir, model);
    if (!j->layouts.dtype)
        j->layouts.dtype = job_option(j, "--dtype");
    if ((st = read_layout(j, arena, err)) || (st = check_ckpt(j, err)))
        return st;
    return !j->layouts.memory && mem ? size_parse(&j->layouts.memory, mem, err) : TP_OK;
}
