/* reshard/formats/megatron/megatron_extras.c - see reshard/formats/megatron/megatron_extras.h. */
#include "reshard/formats/megatron/megatron_extras.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "torch/torch_tensor.h"

#define ARGS    "args"
#define MASTERS "fp32_from_fp16_params"

enum { NAME_BYTES = 128 };

/* Arguments that say how this job's ranks shared the work. Those that a target writes itself
 * replace the others. */
static bool is_of_job(const char *key)
{
    static const char *const names[] = { "rank",
                                         "local_rank",
                                         "world_size",
                                         "data_parallel_size",
                                         "context_parallel_size",
                                         "sequence_parallel",
                                         "transformer_pipeline_model_parallel_size",
                                         "num_layers_per_virtual_pipeline_stage",
                                         "num_virtual_stages_per_pipeline_rank",
                                         "pipeline_model_parallel_layout",
                                         "decoder_first_pipeline_num_layers",
                                         "decoder_last_pipeline_num_layers",
                                         "account_for_embedding_in_pipeline_split",
                                         "account_for_loss_in_pipeline_split",
                                         "ckpt_format",
                                         "transformer_impl",
                                         "moe_grouped_gemm",
                                         "moe_use_legacy_grouped_gemm",
                                         NULL };

    return text_is_one_of(key, names);
}

/* What is read elsewhere. */
static bool is_known(const char *key)
{
    static const char *const names[] = { "optimizer", "checkpoint_version", "iteration",
                                         "content_metadata", NULL };

    return strncmp(key, "model", strlen("model")) == 0 || text_is_one_of(key, names);
}

/* ---- the options of AdamW ---- */

/* The group with weight decay is the one that has the options of the whole. */
static const struct pickle_value *find_group(const struct pickle_value *root)
{
    const struct pickle_value *optimizer = pickle_get(root, "optimizer"), *groups;

    if (pickle_is(optimizer, PICKLE_LIST))
        optimizer = pickle_item(optimizer, 0);
    else if (pickle_get_number(optimizer, 0))
        optimizer = pickle_get_number(optimizer, 0);
    if (pickle_get(optimizer, "optimizer"))
        optimizer = pickle_get(optimizer, "optimizer");
    groups = pickle_get(optimizer, "param_groups");
    for (int64_t i = 0; i < pickle_count(groups); i++) {
        const struct pickle_value *group = pickle_item(groups, i);
        double mult = 0;

        pickle_real(&mult, pickle_get(group, "wd_mult"));
        if (mult > 0)
            return group;
    }
    return NULL;
}

/* Adam of Transformer Engine and of Apex, and so the distributed optimizer, count the steps of
 * a group. */
static tp_status read_adamw(struct piece_source *s, const struct pickle_value *root,
                            struct tp_err *err)
{
    const struct pickle_value *group = find_group(root);
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;
    int64_t step = -1;
    tp_status st = TP_OK;

    if (pickle_int(&step, pickle_get(group, "step")) && step >= 0)
        st = piece_source_set_step(s, step, "param_groups", err);
    if (st || !torch_pieces_adamw(&a, group))
        return st;
    pickle_real(&a.max_lr, pickle_get(group, "max_lr"));
    pickle_real(&a.min_lr, pickle_get(group, "min_lr"));
    piece_source_set_adamw(s, &a);
    return TP_OK;
}

/* ---- reading ---- */

/* Note an entry. `w` has what is taken over of it. */
static tp_status leave(struct piece_source *s, const char *key, const struct pickle_writer *w,
                       struct tp_err *err)
{
    if (w->failed)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %s", piece_source_path(s), key);
    return piece_source_leave_extra(s, key, w->data, w->n, err);
}

static tp_status leave_args(struct piece_source *s, const struct pickle_value *args,
                            struct tp_err *err)
{
    const struct pickle_value *state = pickle_is(args, PICKLE_OBJECT) ? args->object.state : NULL;
    struct pickle_writer w = { 0 };
    char name[NAME_BYTES];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        if (!key || is_of_job(key))
            continue;
        snprintf(name, sizeof name, ARGS ".%s", key);
        if (strcmp(key, MEGATRON_BLOCK_ARG) == 0) { /* what is written is not in blocks */
            if (!pickle_is(pickle_entry(state, i), PICKLE_NONE))
                st = piece_source_leave(s, name, err);
        } else if (pickle_copy_can(pickle_entry(state, i))) {
            pickle_write_text(&w, key);
            pickle_copy(&w, pickle_entry(state, i));
        } else {
            st = piece_source_leave(s, name, err);
        }
    }
    if (!st)
        st = leave(s, ARGS, &w, err);
    pickle_writer_free(&w);
    return st;
}

static tp_status leave_other(struct piece_source *s, const char *key, const struct pickle_value *v,
                             struct tp_err *err)
{
    struct pickle_writer w = { 0 };
    tp_status st;

    if (strcmp(key, "rng_state") == 0 || !pickle_copy_can(v)) /* the former is of a rank */
        return piece_source_leave(s, key, err);
    pickle_copy(&w, v);
    st = leave(s, key, &w, err);
    pickle_writer_free(&w);
    return st;
}

/* Whether masters are not read, because there are no moments: the optimizer has no state. */
static bool has_only_masters(const struct pickle_value *optimizer)
{
    const struct pickle_value *masters = pickle_get(optimizer, MASTERS);
    bool found = false;

    for (int64_t i = 0; i < pickle_count(masters); i++)
        found = found || torch_tensor_is(pickle_item(pickle_item(masters, i), 0));
    return found && !pickle_entries(pickle_get(pickle_get(optimizer, "optimizer"), "state"));
}

/* What an optimizer has besides tensors that are read, such as the scale of the loss. Its
 * param_groups are taken over by read_adamw. */
static tp_status leave_optimizer(struct piece_source *s, const struct pickle_value *optimizer,
                                 struct tp_err *err)
{
    static const char *const names[] = { "optimizer",   "param_groups",
                                         "param_state", "param_state_sharding_type",
                                         "state",       NULL };
    char name[NAME_BYTES];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(optimizer) && !st; i++) {
        const char *key = pickle_text(pickle_key(optimizer, i));

        if (!key || text_is_one_of(key, names) ||
            pickle_is(pickle_entry(optimizer, i), PICKLE_NONE) ||
            (strcmp(key, MASTERS) == 0 && !has_only_masters(optimizer)))
            continue;
        snprintf(name, sizeof name, "optimizer.%s", key);
        st = piece_source_leave(s, name, err);
    }
    return st;
}

tp_status megatron_extras_read(struct piece_source *s, const struct pickle_value *root,
                               struct tp_err *err)
{
    tp_status st = leave_optimizer(s, pickle_get(root, "optimizer"), err);

    if (!st)
        st = read_adamw(s, root, err);
    for (int64_t i = 0; i < pickle_entries(root) && !st; i++) {
        const char *key = pickle_text(pickle_key(root, i));

        if (!key || is_known(key))
            continue;
        st = strcmp(key, ARGS) == 0 ? leave_args(s, pickle_entry(root, i), err)
                                    : leave_other(s, key, pickle_entry(root, i), err);
    }
    return st;
}

/* ---- writing ---- */

void megatron_extras_write_args(struct pickle_writer *w, const struct piece_source *from)
{
    for (int i = 0; from && i < piece_source_left(from); i++) {
        const struct piece_extra *x = piece_source_left_extra(from, i);

        if (x && strcmp(piece_source_left_name(from, i), ARGS) == 0)
            pickle_write_pushed(w, x->bytes, x->n);
    }
}

void megatron_extras_write_others(struct pickle_writer *w, const struct piece_source *from)
{
    for (int i = 0; from && i < piece_source_left(from); i++) {
        const struct piece_extra *x = piece_source_left_extra(from, i);
        const char *key = piece_source_left_name(from, i);

        if (!x || strcmp(key, ARGS) == 0)
            continue;
        pickle_write_text(w, key);
        pickle_write_pushed(w, x->bytes, x->n);
    }
}

tp_status megatron_extras_args(const struct pickle_value **out, const struct piece_source *from,
                               struct arena *arena, struct tp_err *err)
{
    struct pickle_writer w = { 0 };
    tp_status st;

    pickle_write_begin(&w);
    pickle_write_op(&w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(&w, PICKLE_OP_MARK);
    megatron_extras_write_args(&w, from);
    pickle_write_op(&w, PICKLE_OP_SETITEMS);
    pickle_write_op(&w, PICKLE_OP_STOP);
    st = w.failed ? tp_fail(err, TP_E_NOMEM, "no memory for Megatron's arguments")
                  : pickle_read(out, w.data, w.n, "args", arena, err);
    pickle_writer_free(&w);
    return st;
}
