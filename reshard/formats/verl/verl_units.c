/* reshard/formats/verl/verl_units.c - see reshard/formats/verl/verl_units.h. */
#include "reshard/formats/verl/verl_units.h"

#include <string.h>

#include "core/text.h"

tp_status verl_units_make(struct verl_units *out, struct verl_state *d, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(d->source);
    const size_t n = (size_t)d->n_params + 1;

    *out = (struct verl_units){ .d = d };
    out->list = arena_array(arena, n, sizeof *out->list);
    out->of = arena_array(arena, n, sizeof *out->of);
    if (!out->list || !out->of)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its optimizer", d->dir);
    return TP_OK;
}

int64_t verl_units_elements(const struct verl_param *p)
{
    const struct box whole = box_whole(p->ndim, p->shape);

    return box_elements(&whole);
}

int64_t verl_units_part(const struct verl_units *u, int unit)
{
    const int64_t n = u->list[unit].elements, shards = u->d->shards;

    return n / shards + (n % shards != 0);
}

/* How long the name of a parameter's layer is, with its number: 14 of "model.layers.0.norm.weight";
 * 0: it is in none. */
static size_t layer_length(const char *name)
{
    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
        const size_t digits = strspn(at + 1, "0123456789");

        if (digits > 0 && at[1 + digits] == '.')
            return (size_t)(at - name) + 1 + digits;
    }
    return 0;
}

/* Whether two parameters are in one layer. */
static bool same_layer(const char *a, const char *b)
{
    const size_t n = layer_length(a);

    return n > 0 && layer_length(b) == n && memcmp(a, b, n) == 0;
}

static void add(struct verl_units *u, int unit, int param)
{
    struct verl_unit *to = &u->list[unit];

    if (unit == u->n)
        u->n++;
    if (to->first < 0)
        to->first = param;
    to->last = param;
    to->elements += verl_units_elements(&u->d->params[param]);
    u->of[param] = unit;
}

/* With a prefix in programs that wrap the model. */
static bool is_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 || text_ends_with(name, ".lm_head.weight");
}

void verl_units_set(struct verl_units *u, enum verl_units_kind kind, bool tied)
{
    const struct verl_state *d = u->d;
    bool any = false;
    int before = -1; /* the parameter of a layer before this one */

    u->kind = kind;
    u->n = kind == VERL_UNITS_LAYERS; /* the first one may follow layers */
    for (int i = 0; i <= d->n_params; i++)
        u->list[i] = (struct verl_unit){ .first = -1 };
    for (int i = 0; i < d->n_params; i++)
        any |= d->params[i].distributed;
    for (int i = 0; i < d->n_params; i++) {
        const struct verl_param *p = &d->params[i];
        int unit = u->n;

        u->of[i] = -1;
        if (any != p->distributed || (tied && is_head(p->name)))
            continue;
        if (kind == VERL_UNITS_ONE || (kind == VERL_UNITS_LAYERS && layer_length(p->name) == 0)) {
            unit = 0;
        } else if (kind == VERL_UNITS_LAYERS) {
            if (before >= 0 && same_layer(d->params[before].name, p->name))
                unit = u->n - 1;
            before = i;
        }
        add(u, unit, i);
    }
}
