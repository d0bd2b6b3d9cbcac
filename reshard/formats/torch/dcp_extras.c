/* reshard/formats/torch/dcp_extras.c - see reshard/formats/torch/dcp_extras.h. */
#include "reshard/formats/torch/dcp_extras.h"

#include <string.h>

#include "core/text.h"
#include "reshard/formats/torch/torchtitan_map.h"

#define GROUPS "param_groups."

/* The words of a DCP extra. */
struct dcp_extra {
    bool is_file; /* a file beside the tensors, and nothing below is set */
    int file;
    int64_t begin, size;
    const void *planner; /* lives as long as the source */
    size_t planner_bytes;
    const struct dcp_item *tensor; /* the same; NULL: an object */
};

/* "0.lr" of "optim.param_groups.0.lr"; NULL: a name is none of a group with a number. */
static const char *option_of(const char *name)
{
    const char *at = strstr(name, GROUPS), *dot;

    if (!at || (at > name && at[-1] != '.'))
        return NULL;
    at += strlen(GROUPS);
    dot = strchr(at, '.');
    return dot > at && strspn(at, "0123456789") == (size_t)(dot - at) && !strchr(dot + 1, '.')
               ? at
               : NULL;
}

/* ---- reading ---- */

/* The options of the first group, or parameter, are those of the optimizer. An object that is not a
 * number, or cannot be read although it is intact, is not needed: *taken is false. */
static tp_status read_option(bool *taken, struct piece_source *s, int file,
                             const struct dcp_item *item, const char *key, struct tp_err *err)
{
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;
    struct torch_pieces x = { .source = s };
    struct tp_err ignored = { 0 };
    tp_status st = torch_pieces_check(s, file, item->begin, item->size, err);

    if (st)
        return tp_fail_in(err, "%s", item->name);
    if (torch_pieces_open(&x, s, file, item->begin, item->size, &ignored))
        x.root = NULL;
    piece_source_adamw(s, &a);
    *taken = torch_pieces_adamw_option(&a, key, x.root);
    piece_source_set_adamw(s, &a);
    torch_pieces_close(&x);
    return TP_OK;
}

/* All groups are one object, a list, as torch before 2.4 saved them. What cannot be read is not
 * needed. */
static tp_status read_groups(struct piece_source *s, int file, const struct dcp_item *item,
                             struct tp_err *err)
{
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;
    struct torch_pieces x = { .source = s };
    struct tp_err ignored = { 0 };
    tp_status st = torch_pieces_check(s, file, item->begin, item->size, err);

    if (st)
        return tp_fail_in(err, "%s", item->name);
    if (!torch_pieces_open(&x, s, file, item->begin, item->size, &ignored) &&
        torch_pieces_adamw(&a, pickle_item(x.root, 0)) &&
        piece_source_adamw_is_of(s, item->name, 0))
        piece_source_set_adamw(s, &a);
    torch_pieces_close(&x);
    return TP_OK;
}

/* Whether another optimizer has left the same option, which would get the same name. */
static bool is_again(const struct piece_source *s, const char *option)
{
    for (int i = 0; i < piece_source_left(s); i++) {
        const char *other = option_of(piece_source_left_name(s, i));

        if (other && strcmp(other, option) == 0)
            return true;
    }
    return false;
}

/* The name of an option that export_adamw has, and that the source takes: of the first group, or
 * with flatten_optimizer_state_dict of a parameter. NULL: it is another one. */
static const char *adamw_key(struct piece_source *s, const char *name)
{
    static const char *const keys[] = { "lr", "betas", "eps", "weight_decay" };
    const char *option = option_of(name), *owner = strstr(name, GROUPS) + strlen(GROUPS),
               *key = strrchr(name, '.') + 1;
    size_t i = 0;

    while (i < sizeof keys / sizeof *keys && strcmp(keys[i], key) != 0)
        i++;
    if (i == sizeof keys / sizeof *keys || key == owner ||
        (option && strncmp(option, "0.", 2) != 0))
        return NULL;
    return piece_source_adamw_is_of(s, owner, option ? 0 : (int)(key - owner)) ? keys[i] : NULL;
}

tp_status dcp_extras_read(struct piece_source *s, int file, const struct dcp_item *item,
                          struct tp_err *err)
{
    const char *option = option_of(item->name),
               *key = strstr(item->name, GROUPS) ? adamw_key(s, item->name) : NULL;
    const struct dcp_extra x = { false,      file,          item->begin,
                                 item->size, item->planner, item->planner_bytes,
                                 NULL };
    bool taken = false;
    tp_status st;

    if (option && is_again(s, option))
        return piece_source_leave(s, item->name, err);
    if (key)
        TP_TRY(read_option(&taken, s, file, item, key, err));
    if (text_ends_with(item->name, ".param_groups"))
        TP_TRY(read_groups(s, file, item, err));
    /* With flatten_optimizer_state_dict options have the names of parameters, which are other ones
     * in the target. */
    st = strstr(item->name, GROUPS) && !option
             ? piece_source_leave(s, item->name, err)
             : piece_source_leave_extra(s, item->name, &x, sizeof x, err);
    TP_TRY(st);
    if (taken)
        piece_source_left_in_adamw(s);
done:
    return st;
}

tp_status dcp_extras_leave_tensor(struct piece_source *s, const struct dcp_item *item,
                                  struct tp_err *err)
{
    const struct dcp_extra x = {
        .file = item->file_number, .begin = item->begin, .size = item->size, .tensor = item
    };

    return item->dtype == DTYPE_COUNT ? piece_source_leave(s, item->name, err)
                                      : piece_source_leave_extra(s, item->name, &x, sizeof x, err);
}

tp_status dcp_extras_leave_file(struct piece_source *s, const char *name, struct tp_err *err)
{
    const struct dcp_extra x = { .is_file = true };

    return piece_source_leave_extra(s, name, &x, sizeof x, err);
}

/* ---- writing ---- */

/* A tensor's path is that of the program's state, "train_state", "step", or of the model, where
 * names are not cut. */
static struct dcp_new_item name_tensor(struct dcp_items *d, const struct dcp_item *tensor)
{
    const char *dot = strchr(tensor->name, '.');
    const bool is_other = dot && torchtitan_map_is_other(tensor->name);
    const char *path = !is_other ? tensor->name
                                 : arena_printf(d->arena, "%.*s" DCP_BELOW "%s",
                                                (int)(dot - tensor->name), tensor->name, dot + 1);
    struct dcp_new_item item = dcp_items_object(d, path);
    const char *name = item.item.name;

    item.item = *tensor;
    item.item.name = name;
    return item;
}

/* The target's optimizer has its own name, whatever the source's is. */
static struct dcp_new_item name_item(struct dcp_items *d, const char *optimizer, const char *name,
                                     const struct dcp_extra *x)
{
    const char *option = option_of(name);
    struct dcp_new_item item = { .item = { .name = name,
                                           .is_object = true,
                                           .planner = x->planner,
                                           .planner_bytes = x->planner_bytes } };
    char *path = option ? arena_printf(d->arena, "%s" DCP_BELOW "param_groups" DCP_BELOW "%s",
                                       optimizer, option)
                        : NULL;
    char *dot = path ? strrchr(path, '.') : NULL;

    if (!option)
        return item;
    if (dot)
        *dot = *DCP_BELOW;
    return dcp_items_object(d, path);
}

bool dcp_extras_is_file(const struct piece_source *s, int i)
{
    const struct piece_extra *found = piece_source_left_extra(s, i);
    struct dcp_extra x = { 0 };

    if (found)
        memcpy(&x, found->bytes, sizeof x);
    return x.is_file;
}

/* Whether an item has a name of the optimizer. */
static bool is_of_optimizer(const char *name, const char *optimizer)
{
    const size_t n = strlen(optimizer);

    return strncmp(name, optimizer, n) == 0 && name[n] == '.';
}

tp_status dcp_extras_write(const struct dcp_extras_target *to, bool *groups,
                           struct piece_source *from, struct tp_err *err)
{
    tp_status st = TP_OK;

    *groups = false;
    for (int i = 0; from && i < piece_source_left(from) && !st; i++) {
        const struct piece_extra *found = piece_source_left_extra(from, i);
        const char *name = piece_source_left_name(from, i);
        struct dcp_new_item item;
        struct dcp_items *d;
        struct dcp_extra x;

        if (!found || dcp_extras_is_file(from, i) || (to->renames && option_of(name)))
            continue;
        memcpy(&x, found->bytes, sizeof x);
        d = is_of_optimizer(name, to->optimizer) ? to->state : to->weights;
        item = x.tensor ? name_tensor(d, x.tensor) : name_item(d, to->optimizer, name, &x);
        *groups |= option_of(name) != NULL;
        st = torch_pieces_check(from, x.file, x.begin, x.size, err);
        if (st)
            return tp_fail_in(err, "%s", name);
        st = dcp_items_copy(
            d, 0, &item,
            &(struct dcp_items_bytes){ piece_source_files(from), x.file, x.begin, x.size }, err);
    }
    return st;
}
