/* cli/ckpt/cmd_import.c - tp-ckpt import: turn what another framework saved into a checkpoint. */
#include <jansson.h>
#include <stdio.h>

#include "cli/ckpt/cmd.h"
#include "cli/copy_options.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"
#include "reshard/formats/foreign.h"
#include "reshard/import.h"

#define PROG "tp-ckpt"

static const char intro[] =
    "Makes a checkpoint of what another framework saved:\n"
    "\n"
    "    safetensors     model.safetensors or its parts, of Hugging Face\n"
    "    bin             pytorch_model.bin or its parts, of Hugging Face\n"
    "    trainer         checkpoint-N of transformers' Trainer, with optimizer.pt\n"
    "    dcp             a torch.distributed.checkpoint, of FSDP2, DTensor and other programs\n"
    "    accelerate      Hugging Face Accelerate or Trainer, with FSDP\n"
    "    accelerate-ddp  Hugging Face Accelerate in one process or with DDP\n"
    "    torchtitan      a Llama, Qwen3 or Qwen3-MoE of torchtitan\n"
    "    megatron        Megatron-LM, a folder for each rank\n"
    "    torch_dist      Megatron-core's torch_dist\n"
    "    fsdp_dtensor    Megatron-FSDP's, of Megatron-LM and Megatron-Bridge\n"
    "    deepspeed       ZeRO-1, ZeRO-2, ZeRO-3, Universal; GPT-NeoX, Megatron-DeepSpeed\n"
    "    verl            verl's files of each rank, of FSDP2 and FSDP1\n"
    "    meta            Meta's params.json and consolidated.NN.pth; Mistral's\n"
    "                    consolidated.safetensors\n"
    "    vllm            vLLM's sharded state, files of each tensor-parallel rank\n"
    "    pt              a file: what a program has given to torch.save, or Lightning's .ckpt\n"
    "\n"
    "config.json says which model it is; --config names it when it is not in SRC. Where SRC has "
    "the\n"
    "state of AdamW, the checkpoint has it too, and the step is the optimizer's. Else it is step "
    "0,\n"
    "or --step, and tp-train --resume starts from it with zero moments. Pickles are read, never\n"
    "executed.\n"
    "Tensors that the model does not have are an error. Only what follows from others is left "
    "out:\n"
    "rotary inv_freq, GPT-2's causal mask attn.bias, and the copy of a tied head; objects that "
    "are\n"
    "no tensors stay behind and are listed.\n"
    "\n"
    "ROOT may be in a store, s3://BUCKET/PREFIX; an interrupted import to it starts over.";

static bool parse(struct import_request *q, struct copy_options *copy, struct opt_list *ignore,
                  bool *json, int *exit_code, int argc, char **argv)
{
    char formats[FOREIGN_LIST_TEXT];
    const struct opt opts[] = {
        OPT_ARG("SRC", &q->source,
                "folder that the framework wrote (or a file: pt), also https:// or s3://"),
        OPT_STR('o', "out", "ROOT", &q->out, "checkpoint root to which the step is added"),
        OPT_STR(0, "layout", "SPEC", &q->layout, "layout to write (default tp1)"),
        OPT_STR(0, "format", foreign_format_list(formats, "auto|", "|"), &q->format,
                "format of SRC (default auto: detected from its files)"),
        OPT_STR(0, "config", "FILE", &q->config,
                "config.json of the model (default: SRC's; of Megatron-LM, one\nthat is made from "
                "its arguments, of meta from params.json)"),
        OPT_INT64(0, "step", "N", &q->step,
                  "step of the checkpoint (default: that of SRC's optimizer, otherwise 0);\n"
                  "the optimizer keeps its own count"),
        OPT_FLAG(0, "no-optim", &q->no_optim, "import the weights only"),
        OPT_STR(0, "dtype", "f32|bf16|f16", &copy->dtype_text,
                "cast the weights (default: unchanged)"),
        OPT_SIZE(0, "mem", "SIZE", &copy->memory_bytes, "limit on resident memory (default 1G)"),
        OPT_INT('j', "jobs", "N", &copy->threads, "threads (default: processors)"),
        COPY_OPTION_JOURNAL(&copy->journal_s),
        COPY_OPTION_ZSTD(&copy->zstd),
        OPT_LIST(0, "ignore", "NAME", ignore,
                 "leave out this tensor of SRC, which the model does not have; * matches\n"
                 "any text; may be given several times"),
        OPT_STR(0, "rules", "FILE", &q->rules,
                "how tensors are cut, for a model of an unknown architecture"),
        OPT_FLAG('f', "force", &q->force, "replace the step of ROOT if it exists"),
        OPT_FLAG(0, "json", json, "print one JSON object; on stderr, one progress object per line"),
        OPT_END
    };

    return report_options(exit_code, PROG " import", opts, argc, argv, intro, COPY_EXIT_CODES);
}

static void print_result(const struct import_report *r, const struct import_request *q, bool json)
{
    const struct copy_totals *t = &r->totals;
    char bytes[SIZE_TEXT_MAX], spec[SPEC_TEXT_MAX];

    spec_format(spec, &t->spec);
    if (json) {
        json_t *root = json_pack(
            "{s:o, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:o, s:i, s:i, s:I, s:I, s:I}", "out",
            print_text(q->out), "format", r->format, "from_format", r->name, "layout", spec, "step",
            (json_int_t)t->step, "tensors", (json_int_t)t->n_tensors, "boxes", t->boxes, "left_out",
            r->left_out.n, "left_out_names", print_text(r->left_out.text), "digests_equal",
            t->digests_equal, "casts", t->casts, "bytes_written", (json_int_t)t->bytes_written,
            "peak_rss_bytes", (json_int_t)t->peak_bytes, "bytes_stored",
            (json_int_t)(q->zstd ? r->stored_bytes : t->bytes_written));

        json_object_update_new(root, copy_options_resumed_json(t));
        print_json(root);
        json_decref(root);
        return;
    }
    printf("imported ");
    print_safe(q->source);
    printf(", %s\nto       ", r->format);
    print_safe(q->out);
    printf(", step %lld, %s\ntensors  %d, %s\n", (long long)t->step, spec, t->n_tensors,
           size_format(bytes, t->bytes_written));
    copy_options_print_stored(q->zstd, r->stored_bytes, t->bytes_written);
    if (r->left_out.n) {
        printf("left out %d", r->left_out.n);
        print_field(": ", r->left_out.text);
    }
    copy_options_print_resumed(t->resumed_tiles, t->tiles, t->damaged_chunks);
    copy_options_print_proof(t->digests_equal, t->casts, t->checksums);
}

int cmd_import(int argc, char **argv)
{
    struct import_request q = { .layout = "tp1", .format = "auto", .step = -1 };
    struct copy_options copy = copy_options_default();
    struct opt_list ignore = { 0 };
    struct import_report r;
    struct tp_err err = { 0 };
    bool json = false;
    int exit_code;
    tp_status st;

    if (!parse(&q, &copy, &ignore, &json, &exit_code, argc, argv))
        return exit_code;
    report_outlive_reader();
    if (!q.out)
        TP_TRY(tp_fail(&err, TP_E_USAGE, "-o is missing: the checkpoint root to add to"));
    TP_TRY(import_check_format(q.format, &err));
    TP_TRY(copy_options_check(&copy, &q.dtype, &err));
    TP_TRY(copy_options_level(&q.zstd, &copy, &err));
    q.memory_bytes = copy.memory_bytes;
    q.threads = copy.threads;
    q.journal_s = copy.journal_s;
    q.ignore = (struct unknown_tensors_ignore){ ignore.values, ignore.n };
    q.progress = copy_options_progress("importing", json);
    st = import_run(&r, &q, &err);
    progress_end(q.progress, st == TP_OK);
    if (!st) {
        print_result(&r, &q, json);
        st = print_reported(print_done(&err), q.out, &err);
    }
done:
    return report_json(json, PROG, st, &err);
}
