/* reshard/unknown_tensors.c - see reshard/unknown_tensors.h. */
#include "reshard/unknown_tensors.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "layout/family.h"
#include "layout/parallel_plan.h"

enum { KINDS_MAX = 32, KIND_NAME_MAX = 160 };

/* Names that only differ in the number of the layer, as one entry with * for the number. */
struct name_kinds {
    int n, tensors; /* entries; tensors in all, also of kinds that had no place */
    struct {
        char name[KIND_NAME_MAX];
        int tensors;
    } list[KINDS_MAX];
};

/* "model.layers.31.self_attn.q_norm.weight" without the number of the layer. */
static void name_kind(char out[KIND_NAME_MAX], const char *name)
{
    size_t used = 0;

    while (*name && used < KIND_NAME_MAX - 1) {
        size_t word = strcspn(name, "."), digits = strspn(name, "0123456789");

        if (word > 0 && digits == word) {
            out[used++] = '*';
            name += word;
        } else {
            while (word-- > 0 && used < KIND_NAME_MAX - 1)
                out[used++] = *name++;
        }
        if (*name == '.' && used < KIND_NAME_MAX - 1)
            out[used++] = *name++;
    }
    out[used] = 0;
}

/* The entry of a kind; k->n: it has none. */
static int name_kinds_find(const struct name_kinds *k, const char *kind)
{
    int i = 0;

    while (i < k->n && strcmp(k->list[i].name, kind) != 0)
        i++;
    return i;
}

static void name_kinds_add(struct name_kinds *k, const char *name)
{
    char kind[KIND_NAME_MAX];
    int i;

    name_kind(kind, name);
    k->tensors++;
    i = name_kinds_find(k, kind);
    if (i == KINDS_MAX)
        return;
    if (i == k->n)
        snprintf(k->list[k->n++].name, KIND_NAME_MAX, "%s", kind);
    k->list[i].tensors++;
}

/* "a.*.b (12), c, and 3 more" in buf. */
static void name_kinds_format(char buf[UNKNOWN_TENSORS_TEXT], const struct name_kinds *k)
{
    size_t used = 0, room = UNKNOWN_TENSORS_TEXT - 32;
    int listed = 0;

    buf[0] = 0;
    for (int i = 0; i < k->n && used + KIND_NAME_MAX + 16 < room; i++) {
        used += (size_t)snprintf(buf + used, room - used, "%s%s", i ? ", " : "", k->list[i].name);
        if (k->list[i].tensors > 1)
            used += (size_t)snprintf(buf + used, room - used, " (%d)", k->list[i].tensors);
        listed += k->list[i].tensors;
    }
    if (listed < k->tensors)
        snprintf(buf + used, UNKNOWN_TENSORS_TEXT - used, ", and %d more", k->tensors - listed);
}

/* ---- what may be left out ---- */

/* Whether the tensor follows from the config or from another tensor. */
static bool is_redundant(const char *name, const struct model *m)
{
    if (m->tied && strcmp(name, parallel_plan_end_name(m, ROLE_HEAD)) == 0)
        return true;
    return family_has_buffer(family_of(m), name);
}

/* The names of tensors, ascending; malloc'ed. */
static const char **sorted_names(const struct tensor *tensors, int n)
{
    const char **names = calloc((size_t)n + 1, sizeof *names);

    for (int i = 0; names && i < n; i++)
        names[i] = tensors[i].name;
    if (names)
        qsort(names, (size_t)n, sizeof *names, text_compare);
    return names;
}

static bool is_known(const char *name, const char *const *names, int n)
{
    char longer[1100]; /* the first GPT-2 has names without this prefix */
    const char *prefixed = longer;

    snprintf(longer, sizeof longer, "transformer.%s", name);
    return bsearch(&name, names, (size_t)n, sizeof *names, text_compare) ||
           bsearch(&prefixed, names, (size_t)n, sizeof *names, text_compare);
}

bool unknown_tensors_ignores(const struct unknown_tensors_ignore *ignore, const char *name)
{
    for (int i = 0; i < ignore->n; i++)
        if (fnmatch(ignore->names[i], name, 0) == 0)
            return true;
    return false;
}

/* Whether `ignore` has the name; used[i] counts what entry i matched. */
static bool is_ignored(const char *name, const struct unknown_tensors_ignore *ignore, int *used)
{
    bool found = false;

    for (int i = 0; i < ignore->n; i++)
        if (fnmatch(ignore->names[i], name, 0) == 0) {
            used[i]++;
            found = true;
        }
    return found;
}

/* Whether all of them are tensors of the model, but of other layers or experts. */
static bool are_of_more_layers(const struct name_kinds *unknown, const struct tensor *known,
                               int n_known)
{
    char kind[KIND_NAME_MAX];
    bool is_found[KINDS_MAX] = { false };
    int listed = 0, n_found = 0, k;

    for (int i = 0; i < n_known; i++) {
        name_kind(kind, known[i].name);
        if ((k = name_kinds_find(unknown, kind)) < unknown->n)
            is_found[k] = true;
    }
    for (k = 0; k < unknown->n; k++) {
        listed += unknown->list[k].tensors;
        n_found += is_found[k];
    }
    return n_found == unknown->n && listed == unknown->tensors;
}

static tp_status refuse_layers(const struct name_kinds *unknown, const char *path,
                               const struct model *m, struct tp_err *err)
{
    char list[UNKNOWN_TENSORS_TEXT];

    name_kinds_format(list, unknown);
    return tp_fail(
        err, TP_E_USAGE,
        "%s: %d tensor%s of layers or experts that are not in config.json, which has %d layer%s: "
        "%s; name the config.json of this model with --config; --ignore NAME of tp-ckpt import and "
        "tp-reshard leaves one out on purpose",
        path, unknown->tensors, unknown->tensors == 1 ? " is" : "s are", m->layers,
        m->layers == 1 ? "" : "s", list);
}

static tp_status refuse(const struct name_kinds *unknown, const char *path, const struct model *m,
                        struct tp_err *err)
{
    char list[UNKNOWN_TENSORS_TEXT];

    name_kinds_format(list, unknown);
    return tp_fail(
        err, TP_E_USAGE,
        "%s: %d tensor%s no part of a %s: %s; a model that computes with them is not "
        "supported; --ignore NAME of tp-ckpt import and tp-reshard leaves one out on purpose",
        path, unknown->tensors, unknown->tensors == 1 ? " is" : "s are", family_of(m)->architecture,
        list);
}

tp_status unknown_tensors_check_names(struct unknown_tensors *out,
                                      const struct unknown_tensors_found *found,
                                      const struct model *m, const struct tensor *known,
                                      int n_known, const struct unknown_tensors_ignore *ignore,
                                      struct tp_err *err)
{
    const char *path = found->path, **names = sorted_names(known, n_known);
    struct name_kinds *unknown = calloc(1, sizeof *unknown),
                      *left_out = calloc(1, sizeof *left_out);
    int *used = calloc((size_t)ignore->n + 1, sizeof *used);
    tp_status st = TP_OK;

    if (!names || !unknown || !left_out || !used) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", path);
        goto done;
    }
    for (int i = 0; i < found->n; i++) {
        const char *name = found->names[i];

        if (is_known(name, names, n_known))
            continue;
        name_kinds_add(is_ignored(name, ignore, used) || is_redundant(name, m) ? left_out : unknown,
                       name);
    }
    for (int i = 0; i < found->n_others; i++) {
        is_ignored(found->others[i], ignore, used); /* it stays behind anyway */
        name_kinds_add(left_out, found->others[i]);
    }
    for (int i = 0; i < ignore->n && !st; i++)
        if (!used[i])
            st = tp_fail(err, TP_E_USAGE,
                         "--ignore %s: %s has no such tensor, or the model needs it",
                         ignore->names[i], path);
    if (!st && unknown->tensors)
        st = are_of_more_layers(unknown, known, n_known) ? refuse_layers(unknown, path, m, err)
                                                         : refuse(unknown, path, m, err);
    if (st)
        goto done;
    out->n = left_out->tensors;
    name_kinds_format(out->text, left_out);
done:
    free(used);
    free(unknown);
    free(left_out);
    free(names);
    return st;
}

tp_status unknown_tensors_check(struct unknown_tensors *out, const struct safetensors_source *s,
                                const struct model *m, const struct tensor *known, int n_known,
                                const struct unknown_tensors_ignore *ignore, struct tp_err *err)
{
    const int n = safetensors_count(s);
    const char **names = calloc((size_t)n + 1, sizeof *names);
    struct unknown_tensors_found found = { .path = safetensors_path(s), .names = names, .n = n };
    tp_status st;

    if (!names)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", found.path);
    for (int i = 0; i < n; i++)
        names[i] = safetensors_name(s, i);
    st = unknown_tensors_check_names(out, &found, m, known, n_known, ignore, err);
    free((void *)names);
    return st;
}
