/* reshard/formats/torch/dcp_prefix.c - see reshard/formats/torch/dcp_prefix.h. */
#include "reshard/formats/torch/dcp_prefix.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/torch/model_key.h"

enum { MOMENTS_TRIED = 16, PREFIXES_MAX = 32 };

/* The first bytes of a weight's name. */
struct prefix {
    const char *text;
    size_t length;
};

/* Prefixes that may be the one. */
struct prefixes {
    struct prefix list[PREFIXES_MAX];
    int n;
};

static bool is_same(const struct prefix *a, const struct prefix *b)
{
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

static void add(struct prefixes *to, const struct prefix *p)
{
    for (int i = 0; i < to->n; i++)
        if (is_same(&to->list[i], p))
            return;
    if (to->n < PREFIXES_MAX)
        to->list[to->n++] = *p;
}

static bool begins_with(const struct prefix *p, const struct prefix *beginning)
{
    return p->length >= beginning->length &&
           memcmp(p->text, beginning->text, beginning->length) == 0;
}

/* How usual its last key is for the model; the dot at its end is none of a key. */
static int rank_of(const struct prefix *p)
{
    return model_key_rank(p->text, p->length ? p->length - 1 : 0);
}

/* Whether a prefix is rather that of the model than another: that of the whole before that of a
 * part of it, then that with the usual key, then the shorter one. */
static bool is_better(const struct prefix *p, const struct prefix *other)
{
    const int rank = rank_of(p), other_rank = rank_of(other);

    if (begins_with(other, p) || begins_with(p, other))
        return p->length < other->length;
    return rank != other_rank ? rank < other_rank : p->length < other->length;
}

/* ---- with an optimizer ---- */

/* Add what is in front of a parameter's name in each weight that ends with it. */
static void add_of_moment(struct prefixes *to, const struct dcp_prefix_names *names,
                          const char *moment)
{
    const size_t n = strlen(moment);

    for (int i = 0; i < names->n_weights; i++) {
        const char *weight = names->weights[i];
        const size_t length = strlen(weight);

        if (length >= n && strcmp(weight + length - n, moment) == 0 &&
            (length == n || weight[length - n - 1] == '.'))
            add(to, &(struct prefix){ weight, length - n });
    }
}

/* A name behind a prefix. */
struct prefixed {
    struct prefix prefix;
    const char *name;
};

static int compare_prefixed(const void *key, const void *element)
{
    const struct prefixed *k = key;
    const char *weight = *(const char *const *)element;
    const int order = strncmp(k->prefix.text, weight, k->prefix.length);

    return order ? order : strcmp(k->name, weight + k->prefix.length);
}

/* How many parameters have a weight with this prefix. */
static int count_weights(const struct prefix *p, const struct dcp_prefix_names *names)
{
    int n = 0;

    for (int i = 0; i < names->n_moments; i++) {
        const struct prefixed key = { *p, names->moments[i] };

        n += bsearch(&key, names->weights, (size_t)names->n_weights, sizeof *names->weights,
                     compare_prefixed) != NULL;
    }
    return n;
}

/* *found: a weight has the name of a parameter. A name such as norm.weight may be the end of
 * another weight's too, encoder.norm.weight, so all of them are counted. */
static struct prefix of_optimizer(bool *found, const struct dcp_prefix_names *names)
{
    struct prefixes tried = { .n = 0 };
    struct prefix best = { "", 0 };
    int most = 0;

    for (int i = 0; i < MOMENTS_TRIED && i < names->n_moments; i++)
        add_of_moment(
            &tried, names,
            names->moments[(int64_t)i * names->n_moments /
                           (names->n_moments < MOMENTS_TRIED ? names->n_moments : MOMENTS_TRIED)]);
    for (int i = 0; i < tried.n; i++) {
        const struct prefix *p = &tried.list[i];
        const int n = count_weights(p, names);

        if (n > most || (n == most && is_better(p, &best))) {
            most = n;
            best = *p;
        }
    }
    *found = most > 0;
    return best;
}

/* ---- without one ---- */

/* Where `part` begins in a name, at its beginning or after a dot; NULL: it does not. */
static const char *find_part(const char *name, const char *part)
{
    const char *at = strstr(name, part);

    while (at && at > name && at[-1] != '.')
        at = strstr(at + 1, part);
    return at;
}

/* The embedding is in all of Hugging Face's models; a program may have saved others of its names
 * alone. */
static bool of_weight(struct prefix *out, const char *weight)
{
    static const char *const embeddings[] = { "model.embed_tokens.weight", "transformer.wte.weight",
                                              "gpt_neox.embed_in.weight",
                                              "model.decoder.embed_tokens.weight" };
    static const char *const heads[] = { "model.model.", "model.lm_head.", "model.transformer.",
                                         "model.gpt_neox." };
    const char *at;

    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if ((at = find_part(weight, heads[i]))) {
            *out = (struct prefix){ weight, (size_t)(at - weight) + strlen("model.") };
            return true;
        }
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings; i++)
        if ((at = find_part(weight, embeddings[i])) && !at[strlen(embeddings[i])]) {
            *out = (struct prefix){ weight, (size_t)(at - weight) };
            return true;
        }
    return false;
}

static struct prefix of_weights(const struct dcp_prefix_names *names)
{
    struct prefix best = { "", 0 }, p;
    bool found = false;

    for (int i = 0; i < names->n_weights; i++)
        if (of_weight(&p, names->weights[i]) && (!found || is_better(&p, &best))) {
            found = true;
            best = p;
        }
    return best;
}

tp_status dcp_prefix_find(const char **out, struct dcp_prefix_names *names, struct arena *arena,
                          struct tp_err *err)
{
    struct prefix p;
    bool found;

    if (names->n_weights)
        qsort(names->weights, (size_t)names->n_weights, sizeof *names->weights, text_compare);
    if (names->n_moments)
        qsort(names->moments, (size_t)names->n_moments, sizeof *names->moments, text_compare);
    p = of_optimizer(&found, names);
    if (!found)
        p = of_weights(names);
    *out = arena_printf(arena, "%.*s", (int)p.length, p.text);
    return *out ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for the prefix of weights");
}

bool dcp_prefix_is_clear(char rival[DCP_PREFIX_TEXT], const struct dcp_prefix_names *names,
                         const char *prefix)
{
    const struct prefix chosen = { prefix, strlen(prefix) };
    const int rank = rank_of(&chosen);
    struct prefix p;

    for (int i = 0; i < names->n_weights; i++)
        if (of_weight(&p, names->weights[i]) && !begins_with(&p, &chosen) &&
            (rank == MODEL_KEY_OTHER || rank_of(&p) == rank)) {
            snprintf(rival, DCP_PREFIX_TEXT, "%.*s", (int)p.length, p.text);
            return false;
        }
    return true;
}
