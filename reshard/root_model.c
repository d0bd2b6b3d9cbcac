/* reshard/root_model.c - see reshard/root_model.h. */
#include "reshard/root_model.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "layout/model_config.h"
#include "layout/model_diff.h"
#include "storage/folder.h"
#include "storage/location.h"

enum { DIFFERENCE_MAX = 400 };

/* The newest complete step but `replaced`; -1: none. */
static tp_status newest_step(int64_t *step, const char *root, int64_t replaced, struct arena *arena,
                             struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int n = 0;
    tp_status st = ckpt_list(&steps, &n, root, arena, err);

    *step = -1;
    for (int i = n - 1; !st && i >= 0 && *step < 0; i--)
        if (steps[i].complete && steps[i].step != replaced)
            *step = steps[i].step;
    return st;
}

/* Compare the parameters of two layouts, each way. */
static void compare_tensors(char difference[DIFFERENCE_MAX], const struct layout *was,
                            const struct layout *now)
{
    for (int i = 0; i < now->n_tensors && !difference[0]; i++) {
        const struct tensor *t = &now->tensors[i];
        int id = layout_find(was, t->group, t->name);

        if (strcmp(t->group, GROUP_PARAM) != 0)
            continue;
        if (id < 0)
            snprintf(difference, DIFFERENCE_MAX, "it has no tensor %.300s", t->name);
        else if (!tensor_same_shape(&was->tensors[id], t))
            snprintf(difference, DIFFERENCE_MAX, "its tensor %.300s has another shape", t->name);
    }
    for (int i = 0; i < was->n_tensors && !difference[0]; i++)
        if (strcmp(was->tensors[i].group, GROUP_PARAM) == 0 &&
            layout_find(now, GROUP_PARAM, was->tensors[i].name) < 0)
            snprintf(difference, DIFFERENCE_MAX, "it also has a tensor %.300s",
                     was->tensors[i].name);
}

/* What differs between the model of a step and this one; "": nothing. */
static tp_status compare(char difference[DIFFERENCE_MAX], const struct ckpt_found *found,
                         const struct model *m, const struct layout *l, struct arena *arena,
                         struct tp_err *err)
{
    const char *config = found->manifest.model_config;
    char dimension[MODEL_DIFF_MAX];
    struct model was;
    tp_status st;

    difference[0] = 0;
    if (config) {
        st = model_config_parse_any(&was, config, strlen(config), found->dir, arena, err);
        if (st)
            return st;
        if (was.family != MODEL_OF_RULES && m->family != MODEL_OF_RULES &&
            model_diff(dimension, &was, m))
            snprintf(difference, DIFFERENCE_MAX, "its %s", dimension);
    }
    if (!difference[0])
        compare_tensors(difference, &found->manifest.layout, l);
    return TP_OK;
}

tp_status root_model_check(const char *root, int64_t replaced, const struct model *m,
                           const struct layout *l, struct tp_err *err)
{
    struct arena arena = { 0 };
    char difference[DIFFERENCE_MAX];
    struct ckpt_found found;
    bool exists = file_is_dir(root);
    int64_t step = -1;
    tp_status st = TP_OK;

    if (location_is_remote(root))
        TP_TRY(folder_exists(&exists, root, err));
    if (!exists)
        goto done;
    TP_TRY(newest_step(&step, root, replaced, &arena, err));
    if (step < 0)
        goto done;
    TP_TRY(ckpt_open(&found, root, step, &arena, err));
    TP_TRY(compare(difference, &found, m, l, &arena, err));
    if (difference[0])
        st = tp_fail(err, TP_E_USAGE,
                     "%s is of another model: %s; a root holds one model, so name another root",
                     found.dir, difference);
done:
    arena_free(&arena);
    return st;
}
