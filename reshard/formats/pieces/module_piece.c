/* reshard/formats/pieces/module_piece.c - see reshard/formats/pieces/module_piece.h. */
#include "reshard/formats/pieces/module_piece.h"

#include <string.h>

#include "layout/module_name.h"

enum { STACKED_NDIM = 3 };

/* A module's tensor in a model. */
struct module_tensor {
    const struct family_module *row;
    int layer; /* 0 where layers have none */
};

/* row NULL: the name is none of a module. */
static struct module_tensor find(const struct model *m, const char *name)
{
    struct module_tensor t = { NULL, 0 };
    int numbers[2];

    if (!m || !module_names_differ(m))
        return t;
    for (const struct family_module *row = family_of(m)->modules; row->name; row++)
        if (module_name_matches(numbers, row->name, name) && numbers[0] < m->layers) {
            t.row = row;
            t.layer = numbers[0];
            break;
        }
    return t;
}

/* State that has the shapes of the weights; that of other optimizers stays behind anyway. */
static bool is_whole_group(const char *group)
{
    static const char *const groups[] = { GROUP_PARAM, GROUP_MASTER, GROUP_EXP_AVG,
                                          GROUP_EXP_AVG_SQ };

    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(group, groups[i]) == 0)
            return true;
    return false;
}

/* The name of a tensor here. NULL: memory is out. */
static const char *name_of(struct piece_source *s, const struct model *m, enum tensor_role role,
                           int layer, int expert)
{
    const char *pattern = module_name_pattern(m, role), *star = strchr(pattern, '*'),
               *second = star ? strchr(star + 1, '*') : NULL;
    struct arena *arena = piece_source_arena(s);

    if (!star)
        return arena_strdup(arena, pattern);
    if (!second)
        return arena_printf(arena, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
    return arena_printf(arena, "%.*s%d%.*s%d%s", (int)(star - pattern), pattern, layer,
                        (int)(second - star - 1), star + 1, expert, second + 1);
}

static tp_status no_memory(struct piece_source *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for the names of its tensors",
                   piece_source_path(s));
}

static int64_t rows_of(const struct model *m, enum tensor_role role)
{
    return family_dim_size(family_tensor_find(family_of(m), role)->shape[0], m);
}

static tp_status check_shape(struct piece_source *s, const struct model *m,
                             const struct family_module *row, const struct piece *p,
                             struct tp_err *err)
{
    const struct family_tensor *first = family_tensor_find(family_of(m), row->roles[0]);
    const int64_t shape[STACKED_NDIM] = { m->experts,
                                          rows_of(m, row->roles[0]) +
                                              (row->roles[1] ? rows_of(m, row->roles[1]) : 0),
                                          family_dim_size(first->shape[1], m) };
    char has[BOX_TEXT_MAX], wants[BOX_TEXT_MAX];

    if (p->ndim == STACKED_NDIM && memcmp(p->shape, shape, sizeof shape) == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: tensor %s is %s, but config.json's model has %s: the experts of a layer in "
                   "one tensor",
                   file_table_path(piece_source_files(s), p->file), p->name,
                   box_format_shape(has, sizeof has, p->ndim, p->shape),
                   box_format_shape(wants, sizeof wants, STACKED_NDIM, shape));
}

/* Add what a piece has of one tensor of an expert, whose rows begin at `row` of the expert's. */
static tp_status add_part(struct piece_source *s, const struct piece *p, const char *name,
                          int expert, int64_t row, int64_t n_rows, struct tp_err *err)
{
    const int64_t begin = p->box.lo[1], end = begin + p->box.len[1], lo = row > begin ? row : begin,
                  hi = row + n_rows < end ? row + n_rows : end;
    const int64_t element_bytes = p->dtype == DTYPE_COUNT ? 0 : dtype_bytes(p->dtype);
    struct piece part = *p;

    part.name = name;
    part.ndim = STACKED_NDIM - 1;
    part.shape[0] = n_rows;
    part.shape[1] = p->shape[2];
    part.box = (struct box){ .ndim = part.ndim,
                             .lo = { lo - row, p->box.lo[2] },
                             .len = { hi - lo, p->box.len[2] } };
    part.begin +=
        ((expert - p->box.lo[0]) * p->stride[0] + (lo - begin) * p->stride[1]) * element_bytes;
    part.stride[0] = p->stride[1];
    part.stride[1] = p->stride[2];
    return piece_source_add(s, &part, err);
}

/* Add what a piece of stacked experts has of each. */
static tp_status add_experts(struct piece_source *s, const struct model *m,
                             const struct module_tensor *t, const struct piece *p,
                             struct tp_err *err)
{
    const int64_t begin = p->box.lo[1], end = begin + p->box.len[1];
    const int first = (int)p->box.lo[0], last = (int)(p->box.lo[0] + p->box.len[0]);
    tp_status st = TP_OK;

    for (int e = first; e < last && !st; e++) {
        int64_t row = 0;

        for (int i = 0; i < 2 && t->row->roles[i] && !st; i++) {
            const int64_t n_rows = rows_of(m, t->row->roles[i]);

            if (row < end && begin < row + n_rows) {
                const char *name = name_of(s, m, t->row->roles[i], t->layer, e);

                st = name ? add_part(s, p, name, e, row, n_rows, err) : no_memory(s, err);
            }
            row += n_rows;
        }
    }
    return st;
}

tp_status module_piece_add_row(struct piece_source *s, const struct model *m,
                               const struct family_module *row, int layer, const struct piece *p,
                               struct tp_err *err)
{
    const struct module_tensor t = { row, layer };
    const struct box whole = box_whole(p->ndim, p->shape);
    struct piece renamed = *p;

    if (tensor_role_is_of_expert(row->roles[0])) {
        tp_status st = check_shape(s, m, row, p, err);

        if (!st && !box_contains(&whole, &p->box))
            st = piece_source_add(s, p, err); /* which says so */
        return st ? st : add_experts(s, m, &t, p, err);
    }
    renamed.name = name_of(s, m, row->roles[0], layer, 0);
    return renamed.name ? piece_source_add(s, &renamed, err) : no_memory(s, err);
}

tp_status module_piece_add(struct piece_source *s, const struct model *m, const struct piece *p,
                           struct tp_err *err)
{
    const struct module_tensor t = find(m, p->name);

    if (!t.row || p->dtype == DTYPE_COUNT || !is_whole_group(p->group))
        return piece_source_add(s, p, err);
    piece_source_set_module_names(s);
    return module_piece_add_row(s, m, t.row, t.layer, p, err);
}
