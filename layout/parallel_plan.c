/* layout/parallel_plan.c - see layout/parallel_plan.h. */
#include "layout/parallel_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/catalogue.h"

static const struct {
    const char *name, *unit;
    bool of_layer;
} roles[ROLE_COUNT] = {
    [ROLE_NONE] = { "?", "", false },
    [ROLE_EMBEDDING] = { "embedding", "token", false },
    [ROLE_POSITIONS] = { "positions", "", false },
    [ROLE_ATTENTION_NORM] = { "attention.norm", "", true },
    [ROLE_ATTENTION_NORM_BIAS] = { "attention.norm.bias", "", true },
    [ROLE_Q] = { "attention.q", "head", true },
    [ROLE_K] = { "attention.k", "kv_head", true },
    [ROLE_V] = { "attention.v", "kv_head", true },
    [ROLE_QKV] = { "attention.qkv", "head", true },
    [ROLE_QKV_BIAS] = { "attention.qkv.bias", "head", true },
    [ROLE_OUT] = { "attention.out", "head", true },
    [ROLE_OUT_BIAS] = { "attention.out.bias", "", true },
    [ROLE_MLP_NORM] = { "mlp.norm", "", true },
    [ROLE_MLP_NORM_BIAS] = { "mlp.norm.bias", "", true },
    [ROLE_GATE] = { "mlp.gate", "feature", true },
    [ROLE_UP] = { "mlp.up", "feature", true },
    [ROLE_UP_BIAS] = { "mlp.up.bias", "feature", true },
    [ROLE_DOWN] = { "mlp.down", "feature", true },
    [ROLE_DOWN_BIAS] = { "mlp.down.bias", "", true },
    [ROLE_FINAL_NORM] = { "norm", "", false },
    [ROLE_FINAL_NORM_BIAS] = { "norm.bias", "", false },
    [ROLE_HEAD] = { "head", "token", false },
};

static const char *const cuts[] = {
    [CUT_REPLICATED] = "replicated", [CUT_SEQUENCE] = "sequence",
    [CUT_COLUMN] = "column",         [CUT_ROW] = "row",
    [CUT_VOCABULARY] = "vocabulary",
};

static const struct parallel_plan llama_plan = {
    .n = 12,
    .entries = {
        { ROLE_EMBEDDING, "model.embed_tokens.weight", CUT_VOCABULARY },
        { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", CUT_SEQUENCE },
        { ROLE_Q, "model.layers.*.self_attn.q_proj.weight", CUT_COLUMN },
        { ROLE_K, "model.layers.*.self_attn.k_proj.weight", CUT_COLUMN },
        { ROLE_V, "model.layers.*.self_attn.v_proj.weight", CUT_COLUMN },
        { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", CUT_ROW },
        { ROLE_MLP_NORM, "model.layers.*.post_attention_layernorm.weight", CUT_SEQUENCE },
        { ROLE_GATE, "model.layers.*.mlp.gate_proj.weight", CUT_COLUMN },
        { ROLE_UP, "model.layers.*.mlp.up_proj.weight", CUT_COLUMN },
        { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", CUT_ROW },
        { ROLE_FINAL_NORM, "model.norm.weight", CUT_SEQUENCE },
        { ROLE_HEAD, "lm_head.weight", CUT_VOCABULARY },
    },
};

static const struct parallel_plan gpt2_plan = {
    .n = 16,
    .entries = {
        { ROLE_EMBEDDING, "transformer.wte.weight", CUT_VOCABULARY },
        { ROLE_POSITIONS, "transformer.wpe.weight", CUT_REPLICATED },
        { ROLE_ATTENTION_NORM, "transformer.h.*.ln_1.weight", CUT_SEQUENCE },
        { ROLE_ATTENTION_NORM_BIAS, "transformer.h.*.ln_1.bias", CUT_SEQUENCE },
        { ROLE_QKV, "transformer.h.*.attn.c_attn.weight", CUT_COLUMN },
        { ROLE_QKV_BIAS, "transformer.h.*.attn.c_attn.bias", CUT_COLUMN },
        { ROLE_OUT, "transformer.h.*.attn.c_proj.weight", CUT_ROW },
        { ROLE_OUT_BIAS, "transformer.h.*.attn.c_proj.bias", CUT_SEQUENCE },
        { ROLE_MLP_NORM, "transformer.h.*.ln_2.weight", CUT_SEQUENCE },
        { ROLE_MLP_NORM_BIAS, "transformer.h.*.ln_2.bias", CUT_SEQUENCE },
        { ROLE_UP, "transformer.h.*.mlp.c_fc.weight", CUT_COLUMN },
        { ROLE_UP_BIAS, "transformer.h.*.mlp.c_fc.bias", CUT_COLUMN },
        { ROLE_DOWN, "transformer.h.*.mlp.c_proj.weight", CUT_ROW },
        { ROLE_DOWN_BIAS, "transformer.h.*.mlp.c_proj.bias", CUT_SEQUENCE },
        { ROLE_FINAL_NORM, "transformer.ln_f.weight", CUT_SEQUENCE },
        { ROLE_FINAL_NORM_BIAS, "transformer.ln_f.bias", CUT_SEQUENCE },
    },
};

const struct parallel_plan *parallel_plan_builtin(enum model_arch arch)
{
    return arch == MODEL_GPT2 ? &gpt2_plan : &llama_plan;
}

const struct parallel_plan *parallel_plan_of(const struct model *m)
{
    return m->plan ? m->plan : parallel_plan_builtin(m->arch);
}

const char *tensor_role_name(enum tensor_role r)
{
    return roles[r].name;
}

const char *tensor_cut_name(enum tensor_cut c)
{
    return cuts[c];
}

bool tensor_role_is_of_layer(enum tensor_role r)
{
    return roles[r].of_layer;
}

bool tensor_role_is_bias(enum tensor_role r)
{
    const char *dot = strrchr(roles[r].name, '.');

    return dot && strcmp(dot, ".bias") == 0;
}

const char *tensor_role_unit(enum tensor_role r)
{
    return roles[r].unit;
}

const struct parallel_plan_entry *parallel_plan_find(const struct parallel_plan *p,
                                                     enum tensor_role r)
{
    for (int i = 0; i < p->n; i++)
        if (p->entries[i].role == r)
            return &p->entries[i];
    return NULL;
}

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
                                 whole ? "" : tensor_role_unit(e->role));
        while (text[used - 1] == ' ')
            used--;
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    return text;
}

/* ---- reading ---- */

enum { WORDS_MAX = 4 };

struct line {
    const char *path;
    int number;
    int n_words;
    char *words[WORDS_MAX];
};

static tp_status fail_line(const struct line *l, struct tp_err *err, const char *what,
                           const char *found, const char *expected)
{
    return tp_fail(err, TP_E_USAGE, "%s:%d: %s '%.60s' is not %s", l->path, l->number, what, found,
                   expected);
}

static tp_status find_role(enum tensor_role *out, const struct line *l, struct tp_err *err)
{
    for (int r = 1; r < ROLE_COUNT; r++)
        if (strcmp(roles[r].name, l->words[0]) == 0) {
            *out = (enum tensor_role)r;
            return TP_OK;
        }
    return fail_line(l, err, "role", l->words[0],
                     "one (embedding, attention.q, mlp.down, norm, ...; --print-plan shows them)");
}

static tp_status find_cut(enum tensor_cut *out, const struct line *l, struct tp_err *err)
{
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++)
        if (strcmp(cuts[c], l->words[2]) == 0) {
            *out = (enum tensor_cut)c;
            return TP_OK;
        }
    return fail_line(l, err, "cut", l->words[2],
                     "one of column, row, vocabulary, sequence, replicated");
}

static tp_status check_pattern(const struct line *l, enum tensor_role role, struct tp_err *err)
{
    const char *pattern = l->words[1], *star = strchr(pattern, '*');

    if (strlen(pattern) > PARALLEL_PLAN_NAME_MAX)
        return tp_fail(err, TP_E_USAGE, "%s:%d: a name of more than %d characters", l->path,
                       l->number, PARALLEL_PLAN_NAME_MAX);
    for (const char *c = pattern; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr("%/@", *c)) /* '/' and '@' separate names in a shard */
            return fail_line(l, err, "name", pattern, "plain ASCII without '%', '/' and '@'");
    if (tensor_role_is_of_layer(role) && (!star || strchr(star + 1, '*')))
        return fail_line(l, err, "name", pattern, "a pattern with one '*' for the layer's number");
    if (!tensor_role_is_of_layer(role) && star)
        return fail_line(l, err, "name", pattern,
                         "a name without '*': there is one such tensor, not one a layer");
    return TP_OK;
}

static tp_status parse_line(struct parallel_plan *p, const struct line *l, struct arena *arena,
                            struct tp_err *err)
{
    struct parallel_plan_entry e = { 0 };
    tp_status st;

    if (l->n_words < 3)
        return tp_fail(err, TP_E_USAGE,
                       "%s:%d: has %d words, expected role, name, cut and perhaps a unit, as "
                       "'attention.q model.layers.*.self_attn.q_proj.weight column head'",
                       l->path, l->number, l->n_words);
    if ((st = find_role(&e.role, l, err)) || (st = check_pattern(l, e.role, err)) ||
        (st = find_cut(&e.cut, l, err)))
        return st;
    if (l->n_words == 4 && strcmp(l->words[3], tensor_role_unit(e.role)) != 0)
        return tp_fail(err, TP_E_USAGE, "%s:%d: %s is cut by '%s', not by '%.60s'", l->path,
                       l->number, l->words[0],
                       *tensor_role_unit(e.role) ? tensor_role_unit(e.role) : "nothing",
                       l->words[3]);
    if (parallel_plan_find(p, e.role))
        return tp_fail(err, TP_E_USAGE, "%s:%d: a second line for %s", l->path, l->number,
                       l->words[0]);
    if (!(e.pattern = arena_strdup(arena, l->words[1])))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", l->path);
    p->entries[p->n++] = e; /* no role twice, so there is room */
    return TP_OK;
}

/* Cut one line's text at blanks; what follows a # is a comment. False: too many words. */
static bool split(struct line *l, char *text)
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
    struct line line = { .path = path };
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

/* ---- sense ---- */

/* What is handed from one tensor's layer to the next, in every architecture that has both. */
static const struct edge {
    enum tensor_role from, to;
} edges[] = {
    { ROLE_ATTENTION_NORM, ROLE_Q },
    { ROLE_ATTENTION_NORM, ROLE_K },
    { ROLE_ATTENTION_NORM, ROLE_V },
    { ROLE_ATTENTION_NORM, ROLE_QKV },
    { ROLE_Q, ROLE_OUT },
    { ROLE_K, ROLE_OUT },
    { ROLE_V, ROLE_OUT },
    { ROLE_QKV, ROLE_OUT },
    { ROLE_MLP_NORM, ROLE_GATE },
    { ROLE_MLP_NORM, ROLE_UP },
    { ROLE_GATE, ROLE_DOWN },
    { ROLE_UP, ROLE_DOWN },
};

/* A bias goes with its weight. */
static const struct edge biases[] = {
    { ROLE_ATTENTION_NORM, ROLE_ATTENTION_NORM_BIAS },
    { ROLE_QKV, ROLE_QKV_BIAS },
    { ROLE_OUT, ROLE_OUT_BIAS },
    { ROLE_MLP_NORM, ROLE_MLP_NORM_BIAS },
    { ROLE_UP, ROLE_UP_BIAS },
    { ROLE_DOWN, ROLE_DOWN_BIAS },
    { ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS },
};

struct check {
    const struct parallel_plan *plan;
    const char *path;
    struct tp_err *err;
};

/* Cuts that a role can have at all, as bits. */
static unsigned cuts_of(enum tensor_role r)
{
    switch (r) {
    case ROLE_EMBEDDING:
    case ROLE_HEAD:
        return 1u << CUT_VOCABULARY | 1u << CUT_REPLICATED;
    case ROLE_POSITIONS:
        return 1u << CUT_REPLICATED;
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_QKV:
    case ROLE_GATE:
    case ROLE_UP:
    case ROLE_OUT:
    case ROLE_DOWN:
        return 1u << CUT_COLUMN | 1u << CUT_ROW | 1u << CUT_REPLICATED;
    case ROLE_QKV_BIAS:
    case ROLE_UP_BIAS:
        return 1u << CUT_COLUMN | 1u << CUT_REPLICATED;
    default: /* norms, and what is added to the residual stream */
        return 1u << CUT_SEQUENCE | 1u << CUT_REPLICATED;
    }
}

static tp_status check_roles(const struct check *c, const struct model *m)
{
    for (int i = 0; i < c->plan->n; i++) {
        const struct parallel_plan_entry *e = &c->plan->entries[i];

        if (!catalogue_has(m->arch, e->role))
            return tp_fail(c->err, TP_E_USAGE, "%s: %s (%s) is no part of a %s", c->path,
                           e->pattern, tensor_role_name(e->role), model_arch_name(m->arch));
        if (!(cuts_of(e->role) & 1u << e->cut))
            return tp_fail(c->err, TP_E_USAGE, "%s: %s (%s) cannot be cut by %s", c->path,
                           e->pattern, tensor_role_name(e->role), tensor_cut_name(e->cut));
    }
    for (int r = 1; r < ROLE_COUNT; r++)
        if (catalogue_has(m->arch, (enum tensor_role)r) &&
            !parallel_plan_find(c->plan, (enum tensor_role)r) && !(r == ROLE_HEAD && m->tied))
            return tp_fail(c->err, TP_E_USAGE, "%s: has no line for %s, which a %s needs", c->path,
                           tensor_role_name((enum tensor_role)r), model_arch_name(m->arch));
    return TP_OK;
}

/* Whether a name with a layer's number in place of the `*` can be `name`. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = strchr(pattern, '*');
    size_t before, after, n = strlen(name), digits;

    if (!star || strchr(name, '*'))
        return strcmp(pattern, name) == 0;
    before = (size_t)(star - pattern);
    after = strlen(star + 1);
    if (n <= before + after || strncmp(pattern, name, before) != 0 ||
        strcmp(star + 1, name + n - after) != 0)
        return false;
    digits = strspn(name + before, "0123456789");
    return digits == n - before - after;
}

static tp_status check_names(const struct check *c)
{
    for (int i = 0; i < c->plan->n; i++)
        for (int k = 0; k < c->plan->n; k++) {
            const struct parallel_plan_entry *a = &c->plan->entries[i], *b = &c->plan->entries[k];

            if (i != k && matches(a->pattern, b->pattern))
                return tp_fail(c->err, TP_E_USAGE, "%s: %s and %s have the same name: %s", c->path,
                               tensor_role_name(a->role), tensor_role_name(b->role), b->pattern);
        }
    return TP_OK;
}

static tp_status fail_edge(const struct check *c, const struct parallel_plan_entry *from,
                           const struct parallel_plan_entry *to)
{
    if (from->cut == CUT_COLUMN)
        return tp_fail(c->err, TP_E_USAGE,
                       "%s: %s (%s) is column-parallel, so each rank has only its own part of what "
                       "it computes, but %s (%s), which reads it, is %s and needs all of it: make "
                       "%s row, or %s replicated",
                       c->path, from->pattern, tensor_role_name(from->role), to->pattern,
                       tensor_role_name(to->role), tensor_cut_name(to->cut),
                       tensor_role_name(to->role), tensor_role_name(from->role));
    return tp_fail(c->err, TP_E_USAGE,
                   "%s: %s (%s) is row-parallel, so each rank needs only its own part of the "
                   "input, but %s (%s), which computes that, is %s and gives every rank all of it: "
                   "make %s %s",
                   c->path, to->pattern, tensor_role_name(to->role), from->pattern,
                   tensor_role_name(from->role), tensor_cut_name(from->cut),
                   tensor_role_name(to->role),
                   cuts_of(from->role) & 1u << CUT_COLUMN ? "replicated, or what it reads column"
                                                          : "column or replicated");
}

static tp_status check_edges(const struct check *c)
{
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        const struct parallel_plan_entry *from = parallel_plan_find(c->plan, edges[i].from);
        const struct parallel_plan_entry *to = parallel_plan_find(c->plan, edges[i].to);

        if (from && to && (from->cut == CUT_COLUMN) != (to->cut == CUT_ROW))
            return fail_edge(c, from, to);
    }
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        const struct parallel_plan_entry *weight = parallel_plan_find(c->plan, biases[i].from);
        const struct parallel_plan_entry *bias = parallel_plan_find(c->plan, biases[i].to);

        if (weight && bias && (weight->cut == CUT_COLUMN) != (bias->cut == CUT_COLUMN))
            return tp_fail(c->err, TP_E_USAGE,
                           "%s: %s is %s and its bias %s is %s: the bias must be %s", c->path,
                           weight->pattern, tensor_cut_name(weight->cut), bias->pattern,
                           tensor_cut_name(bias->cut),
                           weight->cut == CUT_COLUMN ? "column too" : "sequence or replicated");
    }
    return TP_OK;
}

tp_status parallel_plan_check(const struct parallel_plan *p, const struct model *m,
                              const char *path, struct tp_err *err)
{
    const struct check c = { p, path, err };
    tp_status st;

    if ((st = check_roles(&c, m)) || (st = check_names(&c)))
        return st;
    return check_edges(&c);
}
