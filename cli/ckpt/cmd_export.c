/* cli/ckpt/cmd_export.c - tp-ckpt export: write the weights as whole tensors for other programs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "cli/ckpt/cmd.h"
#include "cli/copy_options.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"
#include "core/text.h"
#include "reshard/export.h"
#include "reshard/foreign_contents.h"
#include "reshard/formats/export_format.h"
#include "storage/location.h"

#define PROG "tp-ckpt"

static const char intro[] =
    "Writes a checkpoint in the format of another framework, with config.json, into a new folder:\n"
    "\n"
    "    safetensors     weights as whole tensors under their Hugging Face names, which\n"
    "                    transformers, vLLM and other programs load\n"
    "    trainer         the same with AdamW's state, from which transformers' Trainer continues\n"
    "    accelerate-ddp  the same, which Accelerate loads in one process or with DDP\n"
    "    vllm            weights cut and named for the tensor-parallel ranks of vLLM, each of\n"
    "                    which loads its own file (load_format sharded_state)\n"
    "    gguf            model.gguf, weights and tokenizer for llama.cpp\n"
    "    dcp             a torch.distributed.checkpoint with AdamW's state, which FSDP2 and other\n"
    "                    programs load at any layout\n"
    "    accelerate      the same in the folders that Accelerate and the Trainer load with FSDP\n"
    "    torchtitan      the same for torchtitan: a Llama, Qwen3 or Qwen3-MoE, under its names\n"
    "    megatron        Megatron-LM, a folder for each rank, with AdamW's state and masters\n"
    "    torch_dist      Megatron-core's torch_dist, with the same\n"
    "    deepspeed       DeepSpeed Universal, with the same\n"
    "    meta            Meta's params.json and consolidated.NN.pth, a file for each tp rank: a\n"
    "                    Llama's weights\n"
    "\n"
    "The folder appears complete or not at all; in a store, config.json is created last. What is\n"
    "not written is listed. An interrupted export to GGUF or to a store starts over.";

/* Options that are not those of the request. */
struct export_command {
    struct copy_options copy;
    bool max_shard_given, json;
};

static bool parse(struct export_request *q, struct export_command *o, int *exit_code, int argc,
                  char **argv)
{
    struct copy_options *copy = &o->copy;
    char formats[EXPORT_LIST_TEXT];
    const struct opt opts[] = {
        OPT_ARG("CKPT", &q->ckpt, "checkpoint root (its newest complete step) or step directory"),
        OPT_STR('o', "out", "DIR", &q->out, "folder to create, or s3://BUCKET/PREFIX"),
        OPT_STR(0, "format", export_format_list(formats, "", "|", true), &q->format,
                "format to write (default safetensors)"),
        OPT_STR(0, "layout", "SPEC", &q->layout,
                "vllm, dcp, accelerate, torchtitan, megatron, torch_dist, meta: layout of\nthe "
                "files (default: CKPT's)"),
        OPT_FLAG(0, "no-optim", &q->no_optim, "write the weights only"),
        OPT_FLAG(0, "distributed-optimizer", &q->options.distributed_optimizer,
                 "megatron, torch_dist: write the optimizer as\n--use-distributed-optimizer of "
                 "Megatron-LM loads it (default: the\nordinary optimizer)"),
        COPY_OPTIONS_MODULES(&q->options, ""),
        OPT_STR(0, "dtype", "f32|bf16|f16|q8_0", &copy->dtype_text,
                "cast the weights (default: as trained, but f32 where a format has\n"
                "the moments without masters); f32 is taken from the masters where\n"
                "there are any, and so is q8_0 (GGUF only)"),
        { OPT_KIND_SIZE, 0, "max-shard-size", "SIZE", &q->max_shard_bytes,
          "safetensors, vllm, trainer: limit on the bytes of tensors in a file (default 5GB)",
          &o->max_shard_given },
        OPT_STR(0, "assets", "DIR", &q->assets,
                "copy tokenizer, chat templates and generation_config.json\n"
                "from this folder; GGUF contains the tokenizer"),
        OPT_INT64(0, "step", "N", &q->step, "this step (default: the newest complete one)"),
        OPT_SIZE(0, "mem", "SIZE", &copy->memory_bytes, "limit on resident memory (default 1G)"),
        OPT_INT('j', "jobs", "N", &copy->threads, "threads (default: processors)"),
        COPY_OPTION_JOURNAL(&copy->journal_s),
        OPT_FLAG('f', "force", &q->force,
                 "replace DIR, with all that is in it, if it has config.json and\nweights"),
        OPT_FLAG(0, "json", &o->json,
                 "print one JSON object; on stderr, one progress object per line"),
        OPT_END
    };

    return report_options(exit_code, PROG " export", opts, argc, argv, intro, COPY_EXIT_CODES);
}

static void print_result(const struct export_report *r, const char *dtype, bool json)
{
    const struct copy_totals *t = &r->totals;
    char bytes[SIZE_TEXT_MAX];

    if (json) {
        json_t *root = json_pack(
            "{s:o, s:s, s:I, s:i, s:i, s:i, s:i, s:I, s:s, s:I, s:o}", "out", print_text(r->out),
            "format", r->format, "step", (json_int_t)t->step, "tensors", t->n_tensors, "files",
            r->files, "digests_equal", t->digests_equal, "casts", t->casts, "bytes_written",
            (json_int_t)t->bytes_written, "dtype", dtype, "peak_rss_bytes",
            (json_int_t)t->peak_bytes, "left_out", print_text(r->left_out));

        json_object_update_new(root, copy_options_resumed_json(t));
        print_json(root);
        json_decref(root);
        return;
    }
    print_field("exported ", r->dir);
    print_field("to       ", r->out);
    printf("tensors  %d, %s as %s, in %d file%s\n", t->n_tensors,
           size_format(bytes, t->bytes_written), dtype, r->files, r->files == 1 ? "" : "s");
    if (r->left_out[0])
        print_field("left out ", r->left_out);
    copy_options_print_resumed(t->resumed_tiles, t->tiles, t->damaged_chunks);
    copy_options_print_proof(t->digests_equal, t->casts, true);
}

/* Checkpoints of other frameworks are converted without a detour, by another program. */
static tp_status check_source(const struct export_request *q, struct tp_err *err)
{
    const struct foreign_format *found = NULL;
    char from[TEXT_WORD_MAX], to[TEXT_WORD_MAX];
    tp_status st = TP_OK;

    if (!location_is_remote(q->ckpt))
        st = foreign_contents_find(&found, q->ckpt, q->step, err);
    if (!st && found)
        st = tp_fail(
            err, TP_E_USAGE,
            "%.300s: has the format %s, and export takes checkpoints of tp-train; tp-reshard %s "
            "--to tp1 --format %s -o %s converts it",
            q->ckpt, found->name, text_shell_word(from, q->ckpt), q->format,
            text_shell_word(to, q->out));
    return st;
}

/* An option that the format has no use for is a mistake. --max-shard-size, which scripts give with
 * any format, is only said to have no effect. */
static tp_status check_format(const struct export_request *q, const struct export_command *o,
                              struct tp_err *err)
{
    const struct export_format *format;
    tp_status st = export_format_find(&format, q->format, err);

    if (st)
        return st;
    if (q->layout && !format->cuts)
        return tp_fail(err, TP_E_USAGE,
                       "--layout %s: the files of %s are the same at every layout; leave it out",
                       q->layout, format->name);
    if (o->max_shard_given && !format->shards)
        report_note(PROG, "--max-shard-size has no effect with --format %s", format->name);
    return TP_OK;
}

int cmd_export(int argc, char **argv)
{
    struct export_request q = { .format = "safetensors",
                                .step = -1,
                                .max_shard_bytes = INT64_C(5) << 30 };
    struct export_command o = { .copy = copy_options_default() };
    struct copy_options *copy = &o.copy;
    struct export_report r;
    struct tp_err err = { 0 };
    int exit_code;
    tp_status st;

    if (!parse(&q, &o, &exit_code, argc, argv))
        return exit_code;
    report_outlive_reader();
    if (!q.out)
        TP_TRY(tp_fail(&err, TP_E_USAGE, "-o is missing: the folder to create"));
    TP_TRY(check_format(&q, &o, &err));
    TP_TRY(check_source(&q, &err));
    q.q8_0 = copy->dtype_text && strcasecmp(copy->dtype_text, "q8_0") == 0;
    if (q.q8_0)
        copy->dtype_text = "f32"; /* what it is made from */
    TP_TRY(copy_options_check(copy, &q.dtype, &err));
    q.memory_bytes = copy->memory_bytes;
    q.threads = copy->threads;
    q.journal_s = copy->journal_s;
    q.scratch = getenv("TMPDIR");
    q.progress = copy_options_progress("exporting", o.json);
    st = export_run(&r, &q, &err);
    progress_end(q.progress, st == TP_OK);
    if (!st) {
        print_result(&r, q.q8_0 ? "q8_0" : dtype_name(r.dtype), o.json);
        st = print_reported(print_done(&err), q.out, &err);
    }
done:
    return report_json(o.json, PROG, st, &err);
}
