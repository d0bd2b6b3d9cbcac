/* reshard/reshard_kinds.c - see reshard/reshard_kinds.h. */
#include "reshard/reshard_kinds.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 160, GROUPS_MAX_BYTES = 96 };

/* "model.layers.12.mlp" becomes "model.layers.#.mlp": numbers between dots. */
static void fold_numbers(char out[NAME_MAX_BYTES], const char *name)
{
    size_t n = 0;

    for (const char *p = name; *p && n + 2 < NAME_MAX_BYTES;) {
        size_t digits = strspn(p, "0123456789");
        bool alone = digits > 0 && (p == name || p[-1] == '.') && (!p[digits] || p[digits] == '.');

        if (alone) {
            out[n++] = '#';
            p += digits;
        } else {
            out[n++] = isprint((unsigned char)*p) ? *p : '?';
            p++;
        }
    }
    out[n] = 0;
}

static bool same_kind(const struct reshard_kind *a, const struct reshard_kind *b)
{
    const struct transfer_tensor_stats *x = &a->stats, *y = &b->stats;

    return strcmp(a->name, b->name) == 0 && tensor_same_shape(a->tensor, b->tensor) &&
           x->from == y->from && x->to == y->to && x->split == y->split && x->merge == y->merge &&
           x->cast == y->cast;
}

/* Whether the list "param+exp_avg" has this group. */
static bool has_group(const char *groups, const char *group)
{
    size_t n = strlen(group);

    for (const char *at = strstr(groups, group); at; at = strstr(at + 1, group))
        if ((at == groups || at[-1] == '+') && (!at[n] || at[n] == '+'))
            return true;
    return false;
}

static void add_group(char groups[GROUPS_MAX_BYTES], const char *group)
{
    size_t n = strlen(groups);

    if (!has_group(groups, group))
        snprintf(groups + n, GROUPS_MAX_BYTES - n, n ? "+%s" : "%s", group);
}

/* The kind of tensor t; it is added to the list when it is new. */
static struct reshard_kind *find_kind(struct reshard_kind *kinds, int *n,
                                      const struct reshard_kind *k)
{
    int at = 0;

    while (at < *n && !same_kind(&kinds[at], k))
        at++;
    if (at == *n)
        kinds[(*n)++] = *k;
    return &kinds[at];
}

tp_status reshard_kinds_list(const struct reshard_kind **out, int *n, const struct layout *layout,
                             const struct transfer_tensor_stats *stats, struct arena *arena,
                             struct tp_err *err)
{
    struct reshard_kind *kinds = arena_array(arena, (size_t)layout->n_tensors, sizeof *kinds);
    char(*groups)[GROUPS_MAX_BYTES] = arena_array(arena, (size_t)layout->n_tensors, sizeof *groups);
    char name[NAME_MAX_BYTES];

    *n = 0;
    for (int i = 0; kinds && groups && i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        struct box whole = box_whole(t->ndim, t->shape);
        struct reshard_kind k = { .name = name, .tensor = t, .stats = stats[i] }, *found;
        int before = *n;

        fold_numbers(name, t->name);
        found = find_kind(kinds, n, &k);
        if (*n > before) {
            found->name = arena_strdup(arena, name);
            found->groups = groups[before];
        }
        if (!found->name)
            kinds = NULL;
        if (!kinds)
            break;
        found->count++;
        found->bytes += box_elements(&whole) * dtype_bytes(t->dtype);
        add_group(groups[found - kinds], t->group);
    }
    if (!kinds || !groups)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", layout->n_tensors);
    *out = kinds;
    return TP_OK;
}
