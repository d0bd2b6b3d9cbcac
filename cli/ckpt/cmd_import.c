/* cli/ckpt/cmd_import.c - tp-ckpt import: a Hugging Face folder to a checkpoint with a layout. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commit.h"
#include "cli/ckpt/cmd.h"
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

enum { LATER_BYTES = 12 << 20, ROW_BYTES = 512 };

static const char intro[] =
    "Makes a checkpoint (step 0) of a model's weights, from a folder with config.json and\n"
    "model.safetensors (or its parts). Formats: safetensors (dcp, megatron and deepspeed are to\n"
    "come).";

static const char tail[] =
    "exit codes: 0 done; 2 the request is wrong; 3 it failed: with both nothing was written.";

struct options {
    const char *src, *layout, *out, *format, *dtype_text;
    int64_t mem;
    int jobs;
    bool force, json, has_dtype;
    enum dtype dtype;
};

struct import {
    struct arena arena;
    struct model model;
    struct layout layout;
    struct reshard_tensor *moved;
    struct safetensors_source *source;
    struct checkpoint_target *target;
    struct cli_transfer transfer;
};

static bool parse(struct options *o, int *exit_code, int argc, char **argv)
{
    const struct opt opts[] = {
        OPT_ARG("SRC", &o->src, "folder with config.json and model.safetensors"),
        OPT_STR('o', "out", "ROOT", &o->out, "checkpoint root to add step 0 to"),
        OPT_STR(0, "layout", "SPEC", &o->layout, "layout to write (default tp1)"),
        OPT_STR(0, "format", "auto|safetensors", &o->format, "format of SRC (default auto)"),
        OPT_STR(0, "dtype", "f32|bf16|f16", &o->dtype_text,
                "cast the weights (default: as they are)"),
        OPT_SIZE(0, "mem", "SIZE", &o->mem, "most resident memory (default 1G)"),
        OPT_INT('j', "jobs", "N", &o->jobs, "threads (default: processors)"),
        OPT_FLAG('f', "force", &o->force, "replace ROOT's step 0 when it exists"),
        OPT_FLAG(0, "json", &o->json, "one JSON object on stdout"),
        OPT_END
    };

    return report_options(exit_code, PROG " import", opts, argc, argv, intro, tail);
}

static tp_status check_options(struct options *o, struct tp_err *err)
{
    static const char *const later[] = { "dcp", "megatron", "deepspeed" };
    tp_status st;

    if (!o->out)
        return tp_fail(err, TP_E_USAGE, "-o is missing: the checkpoint root to add to");
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(o->format, later[i]) == 0)
            return tp_fail(err, TP_E_USAGE, "--format %s: this version reads only safetensors",
                           o->format);
    if (strcmp(o->format, "auto") != 0 && strcmp(o->format, "safetensors") != 0)
        return tp_fail(err, TP_E_USAGE, "--format is auto or safetensors, not '%s'", o->format);
    if ((st = thread_pool_check_workers("--jobs", o->jobs, err)))
        return st;
    return transfer_dtype(&o->dtype, &o->has_dtype, o->dtype_text, err);
}

static tp_status read_model(struct import *x, const struct options *o, struct tp_err *err)
{
    if (!file_is_dir(o->src))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", o->src);
    return model_config_read(&x->model, o->src, &x->arena, err);
}

/* The model's tensors, with the types that the files have, or --dtype. */
static tp_status choose_tensors(struct import *x, const struct options *o, struct tensor **tensors,
                                int *n, struct tp_err *err)
{
    tp_status st = model_params(tensors, n, &x->model, DTYPE_F32, &x->arena, err);

    if (st)
        return st;
    x->moved = arena_array(&x->arena, (size_t)*n, sizeof *x->moved);
    if (!x->moved)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", o->src);
    for (int i = 0; i < *n; i++) {
        x->moved[i] = (struct reshard_tensor){ (*tensors)[i].name, (*tensors)[i].ndim, { 0 } };
        memcpy(x->moved[i].shape, (*tensors)[i].shape, sizeof x->moved[i].shape);
    }
    TP_TRY(safetensors_open(&x->source, o->src, err));
    TP_TRY(safetensors_select(x->source, x->moved, *n, err));
    for (int i = 0; i < *n; i++)
        (*tensors)[i].dtype =
            o->has_dtype ? o->dtype : safetensors_source_endpoint(x->source)->dtypes[i];
done:
    return st;
}

static tp_status make_layout(struct import *x, const struct options *o, struct tp_err *err)
{
    struct tensor *tensors;
    struct spec spec;
    int n = 0;
    tp_status st = spec_parse(&spec, o->layout, err);

    if (st)
        return tp_fail_in(err, "--layout");
    TP_TRY(choose_tensors(x, o, &tensors, &n, err));
    TP_TRY(layout_make(&x->layout, &spec, x->model.layers, tensors, n, &x->arena, err));
done:
    return st;
}

/* Bytes that were read and bytes that were written must be the same. */
static tp_status compare(void *ctx, int i, struct tp_err *err)
{
    const struct import *x = ctx;
    struct digest read = safetensors_source_digest(x->source, i);
    struct digest written = checkpoint_target_digest(x->target, i);

    if (read.d[0] == written.d[0] && read.d[1] == written.d[1])
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL, "%s: tensor %s was not written as it was read",
                   safetensors_source_endpoint(x->source)->name, x->layout.tensors[i].name);
}

static void fill_manifest(struct manifest *m, const struct import *x)
{
    *m = (struct manifest){ .layout = x->layout, .model_config = x->model.config };
    m->state.dtype = x->layout.tensors[0].dtype == DTYPE_BF16 ? "bf16" : "fp32";
}

static tp_status plan(struct import *x, const struct options *o, struct tp_err *err)
{
    tp_status st;

    TP_TRY(checkpoint_target_plan(&x->target, &x->layout, NULL, err));
    x->transfer.move = (struct transfer){ .n_tensors = x->layout.n_tensors,
                                          .tensors = x->moved,
                                          .from = safetensors_source_endpoint(x->source),
                                          .to = checkpoint_target_endpoint(x->target),
                                          .threads = o->jobs };
    TP_TRY(transfer_plan(&x->transfer, o->mem,
                         LATER_BYTES + ROW_BYTES * checkpoint_target_rows(x->target), err));
done:
    return st;
}

static tp_status write_checkpoint(struct import *x, const struct options *o, struct tp_err *err)
{
    struct ckpt_txn txn = { .alive = -1 };
    struct manifest manifest;
    int64_t epoch;
    tp_status st;

    fill_manifest(&manifest, x);
    TP_TRY(plan(x, o, err));
    TP_TRY(ckpt_epoch(&epoch, o->out, err));
    TP_TRY(ckpt_begin(&txn, o->out, 0, epoch, o->force, err));
    TP_TRY(checkpoint_target_create(x->target, &txn, err));
    TP_TRY(transfer_run(&x->transfer, "importing", err));
    TP_TRY(checkpoint_target_finish(x->target, &manifest, &x->arena, err));
    TP_TRY(transfer_compare(&x->transfer, compare, x, err));
    TP_TRY(ckpt_commit(&txn, &manifest, err));
done:
    if (st)
        ckpt_abort(&txn);
    return st;
}

static void print_result(const struct import *x, const struct options *o)
{
    char bytes[SIZE_TEXT_MAX], spec[SPEC_TEXT_MAX];

    spec_format(spec, &x->layout.spec);
    if (o->json) {
        json_t *root = json_pack(
            "{s:s, s:s, s:i, s:I, s:i, s:i, s:I, s:I}", "out", o->out, "layout", spec, "step", 0,
            "tensors", (json_int_t)x->layout.n_tensors, "boxes",
            checkpoint_target_endpoint(x->target)->n_extents, "digests_equal",
            x->transfer.digests_equal, "bytes_written", (json_int_t)x->transfer.stats.bytes_written,
            "peak_rss_bytes", (json_int_t)rss_peak_bytes());

        print_json(root);
        json_decref(root);
        return;
    }
    printf("imported %s\nto       %s, step 0, %s\ntensors  %d, %s\n", o->src, o->out, spec,
           x->layout.n_tensors, size_format(bytes, x->transfer.stats.bytes_written));
    transfer_print_checked(&x->transfer, "");
}

int cmd_import(int argc, char **argv)
{
    struct options o = {
        .layout = "tp1", .format = "auto", .mem = INT64_C(1) << 30, .jobs = thread_pool_cores()
    };
    struct import x = { 0 };
    struct tp_err err = { 0 };
    int exit_code;
    tp_status st;

    if (!parse(&o, &exit_code, argc, argv))
        return exit_code;
    TP_TRY(check_options(&o, &err));
    TP_TRY(read_model(&x, &o, &err));
    TP_TRY(make_layout(&x, &o, &err));
    TP_TRY(write_checkpoint(&x, &o, &err));
    print_result(&x, &o);
    st = print_done(&err);
done:
    transfer_free(&x.transfer);
    checkpoint_target_close(x.target);
    safetensors_source_close(x.source);
    arena_free(&x.arena);
    return report(PROG, st, &err);
}
