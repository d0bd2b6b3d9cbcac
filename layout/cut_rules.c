/* layout/cut_rules.c - see layout/cut_rules.h. */
#include "layout/cut_rules.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

/* ---- reading ---- */

struct rules_line {
    const char *path;
    int number;
};

static tp_status fail_word(const struct rules_line *l, const char *word, const char *expected,
                           struct tp_err *err)
{
    return tp_fail(err, TP_E_USAGE, "%s:%d: '%.60s' is not %s", l->path, l->number, word, expected);
}

/* A whole number of at least `least` that ends the word. */
static bool read_number(int64_t *out, const char *word, int64_t least)
{
    char *end;
    long long n;

    if (!isdigit((unsigned char)*word))
        return false;
    errno = 0;
    n = strtoll(word, &end, 10);
    if (*end || errno || n < least || n > INT64_C(1) << 40)
        return false;
    *out = n;
    return true;
}

static tp_status read_axis(struct placement *p, const struct rules_line *l, const char *word,
                           struct tp_err *err)
{
    int64_t axis;

    p->dim = -1;
    if (strcmp(word, "-") == 0)
        return TP_OK;
    if (!read_number(&axis, word, 0) || axis >= BOX_NDIM_MAX)
        return fail_word(l, word, "an axis (0, 1, ...) or '-' for a tensor that is not cut", err);
    p->dim = (int)axis;
    return TP_OK;
}

/* An option of how the tensor is cut. */
static tp_status read_cut_option(struct cut_rule *rule, const struct rules_line *l,
                                 const char *word, struct tp_err *err)
{
    struct placement *p = &rule->placement;
    int64_t n;

    if (p->dim < 0)
        return fail_word(l, word, "possible for a tensor that is not cut", err);
    if (strcmp(word, "share") == 0)
        p->replicate = true;
    else if (strcmp(word, "pad") == 0)
        p->uneven = true;
    else if (strcmp(word, "expert") == 0)
        rule->is_expert = true;
    else if (strncmp(word, "unit=", 5) == 0 && read_number(&n, word + 5, 1) && n <= TENSOR_UNIT_MAX)
        p->unit = n;
    else if (strncmp(word, "first=", 6) == 0 && read_number(&n, word + 6, 1))
        p->first_block = n;
    else if (strncmp(word, "blocks=", 7) == 0 && read_number(&n, word + 7, 1) &&
             n <= TENSOR_BOXES_MAX)
        p->blocks = (int)n;
    else
        return fail_word(l, word,
                         "unit=N (1 to 2^30), blocks=N (1 to 8), first=N, share, pad, expert, "
                         "optional or last",
                         err);
    return TP_OK;
}

static tp_status read_option(struct cut_rule *rule, const struct rules_line *l, const char *word,
                             struct tp_err *err)
{
    if (strcmp(word, "optional") == 0)
        rule->is_optional = true;
    else if (strcmp(word, "last") == 0)
        rule->is_last = true;
    else
        return read_cut_option(rule, l, word, err);
    return TP_OK;
}

static int stars(const char *pattern)
{
    int n = 0;

    for (; *pattern; pattern++)
        n += *pattern == '*';
    return n;
}

/* The last star of an expert's name is its number; another one before it is the layer's. */
static tp_status check_expert(const struct cut_rule *rule, const struct rules_line *l,
                              struct tp_err *err)
{
    if (!rule->is_expert || stars(rule->pattern) >= (rule->is_last ? 1 : 2))
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s:%d: '%.60s' has too few '*' for 'expert': expected one for the layer and, after "
        "it, one for the expert",
        l->path, l->number, rule->pattern);
}

/* Read a line without its comment into a rule; *out stays when the line is empty. */
static tp_status read_line(struct cut_rule *out, const struct rules_line *l, char *text,
                           struct arena *arena, struct tp_err *err)
{
    struct cut_rule rule = { .line = l->number, .placement = { .unit = 1, .blocks = 1 } };
    char *save = NULL, *name = strtok_r(text, " \t\r", &save), *axis, *option;
    tp_status st;

    if (!name)
        return TP_OK;
    axis = strtok_r(NULL, " \t\r", &save);
    if (!axis)
        return tp_fail(err, TP_E_USAGE,
                       "%s:%d: has one word, expected a name and an axis, as in "
                       "'blocks.*.wq.weight 0 unit=128'",
                       l->path, l->number);
    st = read_axis(&rule.placement, l, axis, err);
    while (!st && (option = strtok_r(NULL, " \t\r", &save)))
        st = read_option(&rule, l, option, err);
    if (st)
        return st;
    if (!(rule.pattern = arena_strdup(arena, name)))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", l->path);
    if (!(st = check_expert(&rule, l, err)))
        *out = rule;
    return st;
}

/* Say which stage the rules without a layer's number belong to. */
static void set_layers(struct cut_rules *r)
{
    bool is_after = false;

    for (int i = 0; i < r->n; i++) {
        const bool is_last = r->list[i].is_last;
        const bool has_layer = !is_last && stars(r->list[i].pattern) > 0;

        is_after = is_after || has_layer;
        r->list[i].layer = has_layer ? 0 : is_last || is_after ? LAYER_LAST : LAYER_FIRST;
    }
}

tp_status cut_rules_parse(struct cut_rules *out, const char *text, size_t size, const char *path,
                          struct arena *arena, struct tp_err *err)
{
    struct cut_rules r = { .path = path };
    struct rules_line line = { .path = path };
    char *rest = arena_alloc(arena, size + 1);
    tp_status st = TP_OK;

    if (memchr(text, 0, size))
        return tp_fail(err, TP_E_USAGE, "%s: is not a file of rules: it has a zero byte", path);
    r.list = arena_array(arena, CUT_RULES_MAX + 1, sizeof *r.list);
    if (!rest || !r.list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
    memcpy(rest, text, size);
    rest[size] = 0;
    while (rest && !st) {
        char *this = strsep(&rest, "\n"), *comment = strchr(this, '#');

        line.number++;
        if (comment)
            *comment = 0;
        if (r.n == CUT_RULES_MAX)
            return tp_fail(err, TP_E_USAGE, "%s: has more than %d rules", path, CUT_RULES_MAX);
        st = read_line(&r.list[r.n], &line, this, arena, err);
        r.n += r.list[r.n].pattern != NULL;
    }
    if (!st && r.n == 0)
        st = tp_fail(err, TP_E_USAGE, "%s: has no rule", path);
    set_layers(&r);
    *out = r;
    return st;
}

tp_status cut_rules_read(struct cut_rules *out, const char *path, struct arena *arena,
                         struct tp_err *err)
{
    char *text;
    size_t size;
    tp_status st = file_read_argument(&text, &size, path, CUT_RULES_BYTES_MAX, arena, err);

    return st ? st : cut_rules_parse(out, text, size, path, arena, err);
}

/* ---- applying ---- */

/* Whether the pattern has this name. *first and *last get the numbers at the first and at the last
 * star; longer ones than fit are neither a layer's nor an expert's. */
static bool matches(const char *pattern, const char *name, int *first, int *last)
{
    *first = *last = -1;
    while (*pattern) {
        size_t digits;

        if (*pattern != '*') {
            if (*pattern++ != *name++)
                return false;
            continue;
        }
        digits = strspn(name, "0123456789");
        if (digits == 0)
            return false;
        *last = digits < 10 ? (int)strtol(name, NULL, 10) : INT_MAX;
        if (*first < 0)
            *first = *last;
        name += digits;
        pattern++;
    }
    return *name == 0;
}

static const struct cut_rule *find(const struct cut_rules *r, const struct tensor *t, int *layer,
                                   int *expert, struct tp_err *err)
{
    const struct cut_rule *found = NULL;
    int first, last;

    for (int i = 0; i < r->n; i++) {
        if (!matches(r->list[i].pattern, t->name, &first, &last))
            continue;
        if (found) {
            tp_fail(err, TP_E_USAGE, "%s: lines %d and %d both have tensor %s", r->path,
                    found->line, r->list[i].line, t->name);
            return NULL;
        }
        found = &r->list[i];
        *layer = first;
        *expert = last;
    }
    if (!found)
        tp_fail(err, TP_E_USAGE,
                "%s: has no line for tensor %s; add one ('-' where every rank has all of it)",
                r->path, t->name);
    return found;
}

static tp_status check_shape(const struct cut_rules *r, const struct cut_rule *rule,
                             const struct tensor *t, struct tp_err *err)
{
    if (rule->placement.dim >= t->ndim)
        return tp_fail(err, TP_E_USAGE, "%s:%d: tensor %s has %d axes, so it has no axis %d",
                       r->path, rule->line, t->name, t->ndim, rule->placement.dim);
    if (!tensor_first_block_fits(t))
        return tp_fail(
            err, TP_E_USAGE,
            "%s:%d: first=%lld does not fit tensor %s, whose axis %d has %lld: it must be a "
            "multiple of each of the %d other blocks, which must have a unit at least",
            r->path, rule->line, (long long)t->placement.first_block, t->name, t->placement.dim,
            (long long)t->shape[t->placement.dim], t->placement.blocks - 1);
    return TP_OK;
}

tp_status cut_rules_apply(const struct cut_rules *r, struct tensor *t, struct tp_err *err)
{
    int layer = 0, expert = 0;
    const struct cut_rule *rule = find(r, t, &layer, &expert, err);

    if (!rule)
        return err->status;
    if (rule->layer == 0 && layer >= CUT_RULES_LAYERS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s:%d: the layer of tensor %s is not below %d", r->path,
                       rule->line, t->name, CUT_RULES_LAYERS_MAX);
    if (rule->is_expert && expert >= CUT_RULES_EXPERTS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s:%d: the expert of tensor %s is not below %d", r->path,
                       rule->line, t->name, CUT_RULES_EXPERTS_MAX);
    t->placement = rule->placement;
    if (rule->is_expert) {
        t->placement.expert = expert;
        t->placement.experts = expert + 1;
    }
    t->layer = rule->layer ? rule->layer : layer;
    r->list[rule - r->list].is_used = true;
    return check_shape(r, rule, t, err);
}

void cut_rules_count_experts(struct tensor *tensors, int n)
{
    int experts = 0;

    for (int i = 0; i < n; i++)
        if (tensors[i].placement.experts > experts)
            experts = tensors[i].placement.experts;
    for (int i = 0; i < n; i++)
        if (tensors[i].placement.experts > 0)
            tensors[i].placement.experts = experts;
}

tp_status cut_rules_check_used(const struct cut_rules *r, struct tp_err *err)
{
    for (int i = 0; i < r->n; i++)
        if (!r->list[i].is_used && !r->list[i].is_optional)
            return tp_fail(err, TP_E_USAGE,
                           "%s:%d: there is no tensor %s; if the model may lack it, add the word "
                           "'optional' to the line",
                           r->path, r->list[i].line, r->list[i].pattern);
    return TP_OK;
}
