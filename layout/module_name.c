/* layout/module_name.c - see layout/module_name.h. */
#include "layout/module_name.h"

#include <stdlib.h>
#include <string.h>

#include "layout/parallel_plan.h"

enum { DIGITS_MAX = 9 };

bool module_names_differ(const struct model *m)
{
    return m->family < MODEL_FAMILIES && family_of(m)->modules;
}

bool module_name_matches(int numbers[2], const char *pattern, const char *name)
{
    int n = 0;

    numbers[0] = numbers[1] = 0;
    while (*pattern) {
        const size_t digits = strspn(name, "0123456789");

        if (*pattern != '*') {
            if (*pattern++ != *name++)
                return false;
            continue;
        }
        if (n == 2 || digits == 0 || digits > DIGITS_MAX || (*name == '0' && digits > 1))
            return false;
        numbers[n++] = (int)strtol(name, NULL, 10);
        name += digits;
        pattern++;
    }
    return !*name;
}

const char *module_name_pattern(const struct model *m, enum tensor_role role)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    const struct parallel_plan_entry *e = parallel_plan_find(&plan, role);

    return e ? e->pattern : family_tensor_find(family_of(m), role)->name;
}

/* What a tensor of a model is. Its name says so, because a checkpoint does not record roles. */
struct module_part {
    const struct family_module *row; /* NULL: its name is that of the files */
    int which;                       /* of the row's roles */
    int numbers[2];                  /* the layer, and the expert */
};

static struct module_part find_part(const struct model *m, const char *name)
{
    struct module_part part = { .row = NULL };

    if (!module_names_differ(m))
        return part;
    for (const struct family_module *row = family_of(m)->modules; row->name; row++)
        for (int i = 0; i < 2 && row->roles[i]; i++)
            if (module_name_matches(part.numbers, module_name_pattern(m, row->roles[i]), name)) {
                part.row = row;
                part.which = i;
                return part;
            }
    return part;
}

static int64_t rows_of(const struct model *m, enum tensor_role role)
{
    return family_dim_size(family_tensor_find(family_of(m), role)->shape[0], m);
}

tp_status module_name_of_row(struct module_name *out, const struct model *m,
                             const struct family_module *row, int which, const int numbers[2],
                             const struct tensor *t, struct arena *arena, struct tp_err *err)
{
    const char *star = strchr(row->name, '*');

    *out = (struct module_name){ .name = row->name, .is_first = true };
    if (star)
        out->name = arena_printf(arena, "%.*s%d%s", (int)(star - row->name), row->name, numbers[0],
                                 star + 1);
    if (!out->name)
        return tp_fail(err, TP_E_NOMEM, "no memory for the names of modules");
    if (!tensor_role_is_of_expert(row->roles[0]))
        return TP_OK;
    out->is_stacked = true;
    out->expert = numbers[1];
    out->row = which ? rows_of(m, row->roles[0]) : 0;
    out->is_first = out->expert == 0 && which == 0;
    out->shape[0] = m->experts;
    out->shape[1] = rows_of(m, row->roles[0]) + (row->roles[1] ? rows_of(m, row->roles[1]) : 0);
    out->shape[2] = t->shape[1];
    return TP_OK;
}

tp_status module_name_of(struct module_name *out, const struct model *m, const struct tensor *t,
                         struct arena *arena, struct tp_err *err)
{
    const struct module_part part = find_part(m, t->name);

    if (part.row)
        return module_name_of_row(out, m, part.row, part.which, part.numbers, t, arena, err);
    *out = (struct module_name){ .name = t->name, .is_first = true };
    return TP_OK;
}

struct box module_name_box(const struct module_name *n, const struct box *b)
{
    return (struct box){ .ndim = b->ndim + 1,
                         .lo = { n->expert, n->row + b->lo[0], b->lo[1] },
                         .len = { 1, b->len[0], b->len[1] } };
}
