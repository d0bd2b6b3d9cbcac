/* reshard/formats/megatron/bridge_files.c - see reshard/formats/megatron/bridge_files.h. */
#include "reshard/formats/megatron/bridge_files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/bridge_args.h"
#include "reshard/formats/megatron/yaml_tree.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "storage/object.h"

#define TRAIN_STATE "train_state.pt"

enum { FILE_BYTES_MAX = 1 << 20, NUMBER_BYTES = 24 };

bool bridge_files_is(const char *name)
{
    return strcmp(name, BRIDGE_RUN_CONFIG) == 0 || strcmp(name, TRAIN_STATE) == 0;
}

/* ---- reading ---- */

/* An extra's bytes: those of a file, after the step that they are of, which is 0 for
 * run_config.yaml. */
static tp_status note(struct piece_source *s, const char *path, const char *name, int64_t step,
                      struct tp_err *err)
{
    struct arena arena = { 0 };
    char *data, *bytes;
    size_t size;
    tp_status st;

    TP_TRY(object_read_any(&data, &size, path, FILE_BYTES_MAX, &arena, err));
    bytes = arena_alloc(&arena, sizeof step + size);
    if (!bytes) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for it", path);
        goto done;
    }
    memcpy(bytes, &step, sizeof step);
    memcpy(bytes + sizeof step, data, size);
    st = piece_source_leave_extra(s, name, bytes, sizeof step + size, err);
done:
    arena_free(&arena);
    return st;
}

static tp_status read_counters(struct bridge_files_counters *out, struct piece_source *s,
                               const char *path, struct tp_err *err)
{
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = { { "step", &out->step },
                    { "consumed_train_samples", &out->train_samples },
                    { "skipped_train_samples", &out->skipped_samples },
                    { "consumed_valid_samples", &out->valid_samples } };
    struct torch_pieces x = { .source = s };
    int file = 0;
    tp_status st;

    TP_TRY(file_table_add(piece_source_files(s), &file, path, err));
    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    for (int i = 0; i < 4; i++) {
        const struct pickle_value *v = pickle_get(x.root, numbers[i].name);

        if (torch_pieces_is_number(v))
            TP_TRY(torch_pieces_number(numbers[i].to, &x, v, numbers[i].name, err));
    }
done:
    torch_pieces_close(&x);
    return st;
}

tp_status bridge_files_read(struct bridge_files_counters *out, struct piece_source *s,
                            const char *dir, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st;

    *out = (struct bridge_files_counters){ -1, -1, -1, -1 };
    TP_TRY(file_join(path, dir, BRIDGE_RUN_CONFIG, err));
    if (object_is_there(path))
        TP_TRY(note(s, path, BRIDGE_RUN_CONFIG, 0, err));
    TP_TRY(file_join(path, dir, TRAIN_STATE, err));
    if (object_is_there(path)) {
        TP_TRY(read_counters(out, s, path, err));
        st = note(s, path, TRAIN_STATE, out->step, err);
    }
done:
    return st;
}

/* ---- writing ---- */

/* A file that is to be written; bytes NULL: there is none. */
struct bridge_file {
    const char *bytes;
    size_t n;
    int64_t step;
};

static struct bridge_file find(const struct piece_source *s, const char *name)
{
    struct bridge_file f = { 0 };

    for (int i = 0; s && i < piece_source_left(s); i++) {
        const struct piece_extra *x = piece_source_left_extra(s, i);

        if (x && strcmp(piece_source_left_name(s, i), name) == 0) {
            memcpy(&f.step, x->bytes, sizeof f.step);
            f.bytes = (const char *)x->bytes + sizeof f.step;
            f.n = x->n - sizeof f.step;
        }
    }
    return f;
}

void bridge_files_leave(const struct export_contents *q)
{
    if (find(q->extras, BRIDGE_RUN_CONFIG).bytes || find(q->extras, TRAIN_STATE).bytes)
        progress_note(q->progress,
                      "%s: " BRIDGE_RUN_CONFIG " and " TRAIN_STATE
                      " are not written, because Megatron-Bridge does not load this format",
                      q->source);
}

/* What of a model's config depends on the layout. */
static bool set_sizes(struct yaml_tree *t, int model, const struct megatron_args_sizes *sizes)
{
    char tp[NUMBER_BYTES], pp[NUMBER_BYTES], ep[NUMBER_BYTES];
    const struct {
        const char *key, *value;
    } values[] = { { "tensor_model_parallel_size", tp },
                   { "pipeline_model_parallel_size", pp },
                   { "expert_model_parallel_size", ep },
                   { "expert_tensor_parallel_size", tp },
                   { "virtual_pipeline_model_parallel_size", "null" },
                   { "pipeline_model_parallel_layout", "null" },
                   { "num_layers_in_first_pipeline_stage", "null" },
                   { "num_layers_in_last_pipeline_stage", "null" },
                   { "account_for_embedding_in_pipeline_split", "false" },
                   { "account_for_loss_in_pipeline_split", "false" } };
    bool done = true;

    snprintf(tp, sizeof tp, "%d", sizes->tp);
    snprintf(pp, sizeof pp, "%d", sizes->pp);
    snprintf(ep, sizeof ep, "%d", sizes->ep);
    for (size_t i = 0; i < sizeof values / sizeof *values && done; i++)
        done = yaml_tree_set(t, model, values[i].key, values[i].value);
    if (done && sizes->tp == 1) /* which it needs */
        done = yaml_tree_set(t, model, "sequence_parallel", "false");
    return done;
}

/* What is written is torch_dist, also of a job with Megatron-FSDP. */
static bool set_format(struct yaml_tree *t)
{
    static const struct {
        const char *section, *key, *value;
    } values[] = { { "checkpoint", "ckpt_format", "torch_dist" },
                   { "ddp", "use_megatron_fsdp", "false" },
                   { "dist", "use_megatron_fsdp", "false" } };
    bool done = true;

    for (size_t i = 0; i < sizeof values / sizeof *values && done; i++) {
        const int map = yaml_tree_get(t, yaml_tree_root(t), values[i].section);

        if (yaml_tree_get(t, map, values[i].key))
            done = yaml_tree_set(t, map, values[i].key, values[i].value);
    }
    return done;
}

static bool set_all(struct yaml_tree *t, const struct megatron_args_sizes *sizes)
{
    const int root = yaml_tree_root(t), model = yaml_tree_get(t, root, "model"),
              checkpoint = yaml_tree_get(t, root, "checkpoint");

    return set_format(t) && set_sizes(t, model, sizes) &&
           set_sizes(t, yaml_tree_get(t, model, "transformer"), sizes) &&
           yaml_tree_set(t, checkpoint, "save_rng", "false") &&
           yaml_tree_set(t, checkpoint, "save_optim", sizes->has_optimizer ? "true" : "false");
}

static tp_status write_config(const struct bridge_file *x, const char *path,
                              const struct megatron_args_sizes *sizes, struct tp_err *err)
{
    struct yaml_tree t = { 0 };
    char *text = NULL;
    size_t size = 0;
    tp_status st;

    TP_TRY(yaml_tree_parse(&t, x->bytes, x->n, path, err));
    if (!set_all(&t, sizes)) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its values", path);
        goto done;
    }
    TP_TRY(yaml_tree_write(&text, &size, &t, err));
    st = file_write_new(path, text, size, err);
done:
    free(text);
    yaml_tree_free(&t);
    return st;
}

tp_status bridge_files_write(const struct export_contents *q, const char *dir,
                             const struct megatron_args_sizes *sizes, struct tp_err *err)
{
    const struct bridge_file config = find(q->extras, BRIDGE_RUN_CONFIG),
                             state = find(q->extras, TRAIN_STATE);
    char path[PATH_MAX];
    tp_status st = TP_OK;

    if (config.bytes) {
        TP_TRY(file_join(path, dir, BRIDGE_RUN_CONFIG, err));
        TP_TRY(write_config(&config, path, sizes, err));
    }
    if (state.bytes && state.step == q->step) {
        TP_TRY(file_join(path, dir, TRAIN_STATE, err));
        st = file_write_new(path, state.bytes, state.n, err);
    } else if (state.bytes) {
        progress_note(q->progress,
                      "%s: " TRAIN_STATE
                      " is of step %lld, and what is written is of step %lld, so "
                      "it is not written; the samples that it counts are in the arguments",
                      q->source, (long long)state.step, (long long)q->step);
    }
done:
    return st;
}
