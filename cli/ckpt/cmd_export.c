/* cli/ckpt/cmd_export.c - tp-ckpt export: whole tensors as safetensors with their config.json. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commit.h"
#include "cli/ckpt/cmd.h"
#include "cli/ckpt/hf_assets.h"
#include "cli/ckpt/hf_config.h"
#include "cli/ckpt/publish.h"
#include "cli/print.h"
#include "cli/report.h"
#include "cli/rss.h"
#include "cli/transfer.h"
#include "core/file.h"
#include "core/size.h"
#include "core/thread_pool.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "reshard/formats/checkpoint.h"
#include "reshard/formats/safetensors.h"

#define PROG "tp-ckpt"

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

static const char intro[] =
    "Writes a checkpoint's weights as whole tensors under their Hugging Face names, with\n"
    "config.json, into a new folder: what transformers, vLLM and others load. The folder appears\n"
    "whole or not at all. Formats: safetensors (gguf is to come).";

static const char tail[] =
    "exit codes: 0 done; 2 the request is wrong; 3 it failed: with both nothing was written.";

struct options {
    const char *ckpt, *format, *out, *dtype_text, *assets;
    int64_t step, mem, max_shard;
    int jobs;
    bool force, json, has_dtype;
    enum dtype dtype;
};

struct export
{
    struct arena arena;
    char dir[PATH_MAX];
    struct manifest m;
    struct model model;
    int n, *ids;                        /* manifest ids of what is read */
    struct safetensors_tensor *tensors; /* what is written */
    struct reshard_tensor *moved;
    struct checkpoint_source *source;
    struct safetensors_target *target;
    struct publish publish;
    struct cli_transfer transfer;
    int n_files;
};

static bool parse(struct options *o, int *exit_code, int argc, char **argv)
{
    const struct opt opts[] = {
        OPT_ARG("CKPT", &o->ckpt, "checkpoint root (its newest complete step) or step directory"),
        OPT_STR('o', "out", "DIR", &o->out, "folder to make"),
        OPT_STR(0, "format", "safetensors", &o->format, "format to write (default safetensors)"),
        OPT_STR(0, "dtype", "f32|bf16|f16", &o->dtype_text,
                "cast the weights (default: as trained); f32 is taken from the\n"
                "masters where there are any"),
        OPT_SIZE(0, "max-shard-size", "SIZE", &o->max_shard,
                 "most bytes of tensors in a file (default 5GB)"),
        OPT_STR(0, "assets", "DIR", &o->assets,
                "copy tokenizer, chat template and generation_config.json\nfrom here"),
        OPT_INT64(0, "step", "N", &o->step, "this step, not the newest"),
        OPT_SIZE(0, "mem", "SIZE", &o->mem, "most resident memory (default 1G)"),
        OPT_INT('j', "jobs", "N", &o->jobs, "threads (default: processors)"),
        OPT_FLAG('f', "force", &o->force, "replace DIR when it is an export"),
        OPT_FLAG(0, "json", &o->json, "one JSON object on stdout"),
        OPT_END
    };

    return report_options(exit_code, PROG " export", opts, argc, argv, intro, tail);
}

static tp_status check_options(struct options *o, struct tp_err *err)
{
    tp_status st;

    if (!o->out)
        return tp_fail(err, TP_E_USAGE, "-o is missing: the folder to make");
    if (strcmp(o->format, "gguf") == 0)
        return tp_fail(err, TP_E_USAGE, "--format gguf: this version writes only safetensors");
    if (strcmp(o->format, "safetensors") != 0)
        return tp_fail(err, TP_E_USAGE, "--format is safetensors, not '%s'", o->format);
    if ((st = thread_pool_check_workers("--jobs", o->jobs, err)))
        return st;
    return transfer_dtype(&o->dtype, &o->has_dtype, o->dtype_text, err);
}

/* The checkpoint must hold every tensor of its model, with the model's shape. */
static tp_status check_complete(struct export *x, struct tp_err *err)
{
    struct tensor *want;
    int n;
    tp_status st = model_params(&want, &n, &x->model, DTYPE_F32, &x->arena, err);

    for (int i = 0; i < n && !st; i++) {
        int at = layout_find(&x->m.layout, GROUP_PARAM, want[i].name);
        struct box box = box_whole(want[i].ndim, want[i].shape), have;
        char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

        if (at < 0)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s of its model is missing; what was trained with --plan "
                           "under other names is not what transformers expects of this model",
                           x->dir, want[i].name);
        have = box_whole(x->m.layout.tensors[at].ndim, x->m.layout.tensors[at].shape);
        if (!box_equal(&box, &have))
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, where its model has %s", x->dir,
                           want[i].name, box_format(a, &have), box_format(b, &box));
    }
    return st;
}

/* From which tensor of the checkpoint `t` is taken: from its master when f32 is wanted. */
static int source_of(const struct export *x, int id, enum dtype dtype)
{
    const struct tensor *t = &x->m.layout.tensors[id];
    int master = dtype == DTYPE_F32 && t->dtype != DTYPE_F32
                     ? layout_find(&x->m.layout, GROUP_MASTER, t->name)
                     : -1;

    return master >= 0 ? master : id;
}

static tp_status choose_tensors(struct export *x, const struct options *o, struct tp_err *err)
{
    const struct layout *l = &x->m.layout;
    size_t room = (size_t)l->n_tensors + 1;

    x->ids = arena_array(&x->arena, room, sizeof *x->ids);
    x->tensors = arena_array(&x->arena, room, sizeof *x->tensors);
    x->moved = arena_array(&x->arena, room, sizeof *x->moved);
    if (!x->ids || !x->tensors || !x->moved)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", x->dir);
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];
        enum dtype dtype = o->has_dtype && dtype_is_float(t->dtype) ? o->dtype : t->dtype;

        if (strcmp(t->group, GROUP_PARAM) != 0)
            continue;
        x->ids[x->n] = source_of(x, i, dtype);
        x->tensors[x->n] = (struct safetensors_tensor){ t->name, dtype, t->ndim, { 0 } };
        x->moved[x->n] = (struct reshard_tensor){ t->name, t->ndim, { 0 } };
        memcpy(x->tensors[x->n].shape, t->shape, sizeof t->shape);
        memcpy(x->moved[x->n].shape, t->shape, sizeof t->shape);
        x->n++;
    }
    return TP_OK;
}

static tp_status open_source(struct export *x, const struct options *o, struct tp_err *err)
{
    tp_status st;

    TP_TRY(ckpt_open(x->dir, &x->m, o->ckpt, o->step, &x->arena, err));
    if (err->msg[0])
        report_note(PROG, "%s", err->msg);
    if (!x->m.model_config)
        return tp_fail(err, TP_E_USAGE,
                       "%s: does not say which model it is of, so no config.json can be made",
                       x->dir);
    TP_TRY(model_config_parse(&x->model, x->m.model_config, strlen(x->m.model_config), x->dir,
                              &x->arena, err));
    TP_TRY(check_complete(x, err));
    TP_TRY(choose_tensors(x, o, err));
    TP_TRY(checkpoint_source_open(&x->source, x->dir, &x->m, x->ids, x->n, NULL, err));
done:
    return st;
}

static tp_status move(struct export *x, const struct options *o, struct tp_err *err)
{
    tp_status st;

    x->transfer.move = (struct transfer){ .n_tensors = x->n,
                                          .tensors = x->moved,
                                          .from = checkpoint_source_endpoint(x->source),
                                          .to = safetensors_target_endpoint(x->target),
                                          .threads = o->jobs };
    TP_TRY(transfer_plan(&x->transfer, o->mem, LATER_BYTES, err));
    TP_TRY(transfer_run(&x->transfer, "exporting", err));
done:
    return st;
}

/* What was written must be what the checkpoint's digests say. */
static tp_status compare(void *ctx, int i, struct tp_err *err)
{
    const struct export *x = ctx;
    struct digest written = safetensors_target_digest(x->target, i);

    return checkpoint_source_compare(x->source, i, x->tensors[i].name, &written, err);
}

static tp_status write_config(struct export *x, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    tp_status st = hf_config_make(&text, &x->model, x->tensors[0].dtype, err);

    if (st)
        return st;
    if (snprintf(path, sizeof path, "%s/config.json", x->publish.tmp) >= (int)sizeof path)
        st = tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", x->publish.tmp);
    else
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

static tp_status write_folder(struct export *x, const struct options *o, struct tp_err *err)
{
    tp_status st;

    if (o->assets)
        TP_TRY(hf_assets_check(o->assets, err));
    TP_TRY(publish_begin(&x->publish, o->out, o->force, "config.json", err));
    TP_TRY(safetensors_create(&x->target, x->publish.tmp, x->tensors, x->n, o->max_shard, err));
    TP_TRY(move(x, o, err));
    TP_TRY(transfer_compare(&x->transfer, compare, x, err));
    x->n_files = safetensors_target_files(x->target);
    TP_TRY(safetensors_finish(x->target, err));
    TP_TRY(write_config(x, err));
    if (o->assets)
        TP_TRY(hf_assets_copy(o->assets, x->publish.tmp, err));
    TP_TRY(publish_commit(&x->publish, err));
done:
    publish_abort(&x->publish);
    return st;
}

static void print_result(const struct export *x, const struct options *o)
{
    char bytes[SIZE_TEXT_MAX];

    if (o->json) {
        json_t *root = json_pack("{s:s, s:I, s:i, s:i, s:i, s:I, s:s, s:I}", "out", x->publish.dir,
                                 "step", (json_int_t)x->m.step, "tensors", x->n, "files",
                                 x->n_files, "digests_equal", x->transfer.digests_equal,
                                 "bytes_written", (json_int_t)x->transfer.stats.bytes_written,
                                 "dtype", dtype_name(x->tensors[0].dtype), "peak_rss_bytes",
                                 (json_int_t)rss_peak_bytes());

        print_json(root);
        json_decref(root);
        return;
    }
    printf("exported %s\nto       %s\ntensors  %d, %s as %s, in %d file%s\n", x->dir,
           x->publish.dir, x->n, size_format(bytes, x->transfer.stats.bytes_written),
           dtype_name(x->tensors[0].dtype), x->n_files, x->n_files == 1 ? "" : "s");
    transfer_print_checked(&x->transfer, "every checksum of the source; ");
}

int cmd_export(int argc, char **argv)
{
    struct options o = { .format = "safetensors",
                         .step = -1,
                         .mem = INT64_C(1) << 30,
                         .max_shard = INT64_C(5) << 30,
                         .jobs = thread_pool_cores() };
    struct export x = { 0 };
    struct tp_err err = { 0 };
    int exit_code;
    tp_status st;

    if (!parse(&o, &exit_code, argc, argv))
        return exit_code;
    TP_TRY(check_options(&o, &err));
    TP_TRY(open_source(&x, &o, &err));
    TP_TRY(write_folder(&x, &o, &err));
    print_result(&x, &o);
    st = print_done(&err);
done:
    transfer_free(&x.transfer);
    safetensors_target_close(x.target);
    checkpoint_source_close(x.source);
    arena_free(&x.arena);
    return report(PROG, st, &err);
}
