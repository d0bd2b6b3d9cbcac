/* layout/parallel_plan_text.c - parallel plans as text; see layout/parallel_plan.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "layout/parallel_plan.h"

enum { WORDS_MAX = 4 };

/* ---- writing ---- */

char *parallel_plan_format(const struct parallel_plan *p, struct arena *arena)
{
    size_t room = 128 + (size_t)p->n * (PARALLEL_PLAN_NAME_MAX + 96), used;
    char *text = arena_alloc(arena, room);

    if (!text)
        return NULL;
    used =
        (size_t)snprintf(text, room, "# %-19s %-50s %-11s %s\n", "role", "tensor", "cut", "unit");
    for (int i = 0; i < p->n; i++) {
        const struct parallel_plan_entry *e = &p->entries[i];
        bool whole = e->cut == CUT_REPLICATED || e->cut == CUT_SEQUENCE;

        used += (size_t)snprintf(text + used, room - used, "%-21s %-50s %-11s %s",
                                 tensor_role_name(e->role), e->pattern, tensor_cut_name(e->cut),
                                 whole ? "" : tensor_unit_name(tensor_role_unit(e->role)));
        while (text[used - 1] == ' ')
            used--;
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    return text;
}

/* ---- reading ---- */

struct plan_line {
    const char *path;
    int number;
    int n_words;
    char *words[WORDS_MAX];
};

static tp_status fail_line(const struct plan_line *l, struct tp_err *err, const char *what,
                           const char *found, const char *expected)
{
    return tp_fail(err, TP_E_USAGE, "%s:%d: %s '%.60s' is not %s", l->path, l->number, what, found,
                   expected);
}

static tp_status find_role(enum tensor_role *out, const struct plan_line *l, struct tp_err *err)
{
    for (int r = 1; r < ROLE_COUNT; r++)
        if (strcmp(tensor_role_name((enum tensor_role)r), l->words[0]) == 0) {
            *out = (enum tensor_role)r;
            return TP_OK;
        }
    return fail_line(l, err, "role", l->words[0],
                     "one (embedding, attention.q, mlp.down, norm, ...; --print-plan shows them)");
}

static tp_status find_cut(enum tensor_cut *out, const struct plan_line *l, struct tp_err *err)
{
    for (int c = 0; c < CUT_COUNT; c++)
        if (strcmp(tensor_cut_name((enum tensor_cut)c), l->words[2]) == 0) {
            *out = (enum tensor_cut)c;
            return TP_OK;
        }
    return fail_line(l, err, "cut", l->words[2],
                     "one of column, row, vocabulary, sequence, replicated");
}

static tp_status check_pattern(const struct plan_line *l, enum tensor_role role, struct tp_err *err)
{
    const char *pattern = l->words[1], *star = strchr(pattern, '*');

    if (strlen(pattern) > PARALLEL_PLAN_NAME_MAX)
        return tp_fail(err, TP_E_USAGE, "%s:%d: the name has more than %d characters", l->path,
                       l->number, PARALLEL_PLAN_NAME_MAX);
    for (const char *c = pattern; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr("%/@", *c)) /* '/' and '@' separate names in a shard */
            return fail_line(l, err, "name", pattern, "plain ASCII without '%', '/' and '@'");
    if (tensor_role_is_of_expert(role)) {
        const char *second = star ? strchr(star + 1, '*') : NULL;

        if (!second || strchr(second + 1, '*'))
            return fail_line(l, err, "name", pattern,
                             "a pattern with one '*' for the layer's number and one for the "
                             "expert's");
        return TP_OK;
    }
    if (tensor_role_is_of_layer(role) && (!star || strchr(star + 1, '*')))
        return fail_line(l, err, "name", pattern, "a pattern with one '*' for the layer's number");
    if (!tensor_role_is_of_layer(role) && star)
        return fail_line(
            l, err, "name", pattern,
            "a name without '*'; the model has one such tensor, not one in each layer");
    return TP_OK;
}

static tp_status parse_line(struct parallel_plan *p, const struct plan_line *l, struct arena *arena,
                            struct tp_err *err)
{
    struct parallel_plan_entry e = { 0 };
    const char *unit;
    tp_status st;

    if (l->n_words < 3)
        return tp_fail(err, TP_E_USAGE,
                       "%s:%d: has %d words, expected role, name, cut and perhaps a unit, as in "
                       "'attention.q model.layers.*.self_attn.q_proj.weight column head'",
                       l->path, l->number, l->n_words);
    if ((st = find_role(&e.role, l, err)) || (st = check_pattern(l, e.role, err)) ||
        (st = find_cut(&e.cut, l, err)))
        return st;
    unit = tensor_unit_name(tensor_role_unit(e.role));
    if (l->n_words == 4 && strcmp(l->words[3], unit) != 0)
        return tp_fail(err, TP_E_USAGE, "%s:%d: the unit of %s is '%s', not '%.60s'", l->path,
                       l->number, l->words[0], *unit ? unit : "nothing", l->words[3]);
    if (parallel_plan_find(p, e.role))
        return tp_fail(err, TP_E_USAGE, "%s:%d: a second line for %s", l->path, l->number,
                       l->words[0]);
    if (!(e.pattern = arena_strdup(arena, l->words[1])))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", l->path);
    p->entries[p->n++] = e; /* each role once, so there is room */
    return TP_OK;
}

/* Split the text of a line into words, without its comment. False: there are too many. */
static bool split(struct plan_line *l, char *text)
{
    char *comment = strchr(text, '#');

    if (comment)
        *comment = 0;
    l->n_words = 0;
    for (char *save = NULL, *word = strtok_r(text, " \t\r", &save); word;
         word = strtok_r(NULL, " \t\r", &save)) {
        if (l->n_words == WORDS_MAX)
            return false;
        l->words[l->n_words++] = word;
    }
    return true;
}

tp_status parallel_plan_parse(struct parallel_plan *out, const char *text, size_t size,
                              const char *path, struct arena *arena, struct tp_err *err)
{
    struct parallel_plan p = { 0 };
    struct plan_line line = { .path = path };
    tp_status st = TP_OK;
    char *copy, *rest;

    if (size > PARALLEL_PLAN_BYTES_MAX || memchr(text, 0, size))
        return tp_fail(err, TP_E_USAGE, "%s: is not a parallel plan (%s)", path,
                       size > PARALLEL_PLAN_BYTES_MAX ? "more than 64 KiB" : "it has a zero byte");
    copy = malloc(size + 1);
    if (!copy)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
    memcpy(copy, text, size);
    copy[size] = 0;
    rest = copy;
    while (rest && !st) {
        char *this = strsep(&rest, "\n");

        line.number++;
        if (!split(&line, this))
            st = tp_fail(err, TP_E_USAGE, "%s:%d: has more than %d words", path, line.number,
                         WORDS_MAX);
        else if (line.n_words)
            st = parse_line(&p, &line, arena, err);
    }
    if (!st)
        *out = p;
    free(copy);
    return st;
}

tp_status parallel_plan_read(struct parallel_plan *out, const char *path, struct arena *arena,
                             struct tp_err *err)
{
    char *text;
    size_t size;
    tp_status st = file_read_argument(&text, &size, path, PARALLEL_PLAN_BYTES_MAX, arena, err);

    return st ? st : parallel_plan_parse(out, text, size, path, arena, err);
}
