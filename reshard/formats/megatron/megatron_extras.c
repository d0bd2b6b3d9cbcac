/* reshard/formats/megatron/megatron_extras.c - see reshard/formats/megatron/megatron_extras.h. */
#include "reshard/formats/megatron/megatron_extras.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/megatron/bridge_files.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_impl.h"
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
                                         "use_megatron_fsdp",
                                         "use_custom_fsdp",
                                         "data_parallel_sharding_strategy",
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

/* NeMo's is always in a list. */
static const struct pickle_value *first_optimizer(const struct pickle_value *root)
{
    const struct pickle_value *optimizer = pickle_get(root, "optimizer");

    if (pickle_is(optimizer, PICKLE_LIST))
        optimizer = pickle_item(optimizer, 0);
    return pickle_get_number(optimizer, 0) ? pickle_get_number(optimizer, 0) : optimizer;
}

const struct pickle_value *megatron_extras_optimizer(const struct pickle_value *root)
{
    const struct pickle_value *optimizer = first_optimizer(root),
                              *inner = pickle_get(optimizer, "optimizer");

    return inner ? inner : optimizer;
}

/* The group with weight decay is the one that has the options of the whole. */
static const struct pickle_value *find_group(const struct pickle_value *groups)
{
    for (int64_t i = 0; i < pickle_count(groups); i++) {
        const struct pickle_value *group = pickle_item(groups, i);
        double mult = 0;

        pickle_real(&mult, pickle_get(group, "wd_mult"));
        if (mult > 0)
            return group;
    }
    return NULL;
}

/* A rate of the schedule. A program without --min-lr has None. */
static void read_rate(double *out, const struct pickle_value *group, const char *key)
{
    const struct pickle_value *rate = pickle_get(group, key);

    if (pickle_is(rate, PICKLE_NONE))
        *out = NAN;
    else
        pickle_real(out, rate);
}

/* Adam of Transformer Engine and of Apex, and so the distributed optimizer, count the steps of
 * a group. */
tp_status megatron_extras_adamw(bool *found, struct piece_source *s,
                                const struct pickle_value *groups, struct tp_err *err)
{
    const struct pickle_value *group = find_group(groups);
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;
    int64_t step = -1;
    tp_status st = TP_OK;

    if (pickle_int(&step, pickle_get(group, "step")) && step >= 0)
        st = piece_source_set_step(s, step, "param_groups", err);
    *found = !st && torch_pieces_adamw(&a, group);
    if (!*found)
        return st;
    read_rate(&a.max_lr, group, "max_lr");
    read_rate(&a.min_lr, group, "min_lr");
    piece_source_set_adamw(s, &a);
    return TP_OK;
}

/* Muon and others, of which each tensor has other state: an error that says so, in place of one
 * about shapes or names. */
static void refuse_other_optimizer(struct piece_source *s, const struct pickle_value *root)
{
    static const char *const known[] = { "adam", "sgd", NULL };
    const char *name = pickle_text(pickle_get(pickle_get(root, ARGS), "optimizer"));
    struct tp_err why = { 0 };

    if (!name || text_is_one_of(name, known) || !pickle_get(root, "optimizer"))
        return;
    tp_fail(&why, TP_E_USAGE,
            "%s: was saved with --optimizer %.40s, and only AdamW's state is read",
            piece_source_path(s), name);
    piece_source_refuse_state(s, &why);
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

/* An argument goes along, or is listed. */
static tp_status leave_arg(struct piece_source *s, struct pickle_writer *w, const char *key,
                           const struct pickle_value *v, struct tp_err *err)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, ARGS ".%s", key);
    if (strcmp(key, MEGATRON_BLOCK_ARG) == 0) /* what is written is not in blocks */
        return pickle_is(v, PICKLE_NONE) ? TP_OK : piece_source_leave(s, name, err);
    if (!pickle_copy_can(v))
        return piece_source_leave(s, name, err);
    pickle_write_text(w, key);
    pickle_copy(w, v);
    return TP_OK;
}

static void push_counter(struct pickle_writer *w, const char *key, int64_t n)
{
    if (n >= 0)
        pickle_write_key_int(w, key, n);
}

/* Megatron-LM's are attributes of an object; those made of Bridge's config are a dict. */
static tp_status leave_args(struct piece_source *s, const struct pickle_value *args,
                            const struct bridge_files_counters *counters, struct tp_err *err)
{
    const struct pickle_value *state = pickle_is(args, PICKLE_OBJECT) ? args->object.state : args;
    struct pickle_writer w = { 0 };
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        if (key && !is_of_job(key))
            st = leave_arg(s, &w, key, pickle_entry(state, i), err);
    }
    if (counters) {
        push_counter(&w, "consumed_train_samples", counters->train_samples);
        push_counter(&w, "skipped_train_samples", counters->skipped_samples);
        push_counter(&w, "consumed_valid_samples", counters->valid_samples);
    }
    if (!st)
        st = leave(s, ARGS, &w, err);
    pickle_writer_free(&w);
    return st;
}

/* PyTorch Lightning's entries, which NeMo saves, are for its own loops. */
static bool is_of_lightning(const struct pickle_value *root)
{
    return pickle_get(root, "pytorch-lightning_version") || pickle_get(root, "global_step");
}

/* State of a rank, with a part that is not in this file. */
static bool is_of_rank(const char *key)
{
    return strcmp(key, "rng_state") == 0 || strcmp(key, "rerun_state_machine") == 0;
}

static tp_status leave_other(struct piece_source *s, const char *key, const struct pickle_value *v,
                             struct tp_err *err)
{
    struct pickle_writer w = { 0 };
    tp_status st;

    if (is_of_rank(key) || bridge_files_is(key) || !pickle_copy_can(v))
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
 * param_groups are taken over by megatron_extras_adamw. */
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
                               const struct bridge_files_counters *counters, struct tp_err *err)
{
    const bool lightning = is_of_lightning(root);
    bool found;
    tp_status st =
        leave_optimizer(s, lightning ? first_optimizer(root) : pickle_get(root, "optimizer"), err);

    refuse_other_optimizer(s, root);
    if (!st)
        st = megatron_extras_adamw(
            &found, s, pickle_get(megatron_extras_optimizer(root), "param_groups"), err);
    piece_source_set_modules(s, megatron_impl_read(pickle_get(root, ARGS)));
    for (int64_t i = 0; i < pickle_entries(root) && !st; i++) {
        const char *key = pickle_text(pickle_key(root, i));

        if (!key || is_known(key))
            continue;
        if (strcmp(key, ARGS) == 0)
            st = leave_args(s, pickle_entry(root, i), counters, err);
        else if (lightning)
            st = piece_source_leave(s, key, err);
        else
            st = leave_other(s, key, pickle_entry(root, i), err);
    }
    return st;
}

/* ---- writing ---- */

bool megatron_extras_has(const struct piece_source *from, const char *key)
{
    for (int i = 0; from && i < piece_source_left(from); i++)
        if (piece_source_left_extra(from, i) && strcmp(piece_source_left_name(from, i), key) == 0)
            return true;
    return false;
}

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

        if (!x || strcmp(key, ARGS) == 0 || bridge_files_is(key))
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
    pickle_write_dict(&w);
    megatron_extras_write_args(&w, from);
    pickle_write_op(&w, PICKLE_OP_SETITEMS);
    pickle_write_op(&w, PICKLE_OP_STOP);
    st = w.failed ? tp_fail(err, TP_E_NOMEM, "no memory for Megatron's arguments")
                  : pickle_read(out, w.data, w.n, "args", arena, err);
    pickle_writer_free(&w);
    return st;
}
