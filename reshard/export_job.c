/* reshard/export_job.c - see reshard/export_job.h. */
#include "reshard/export_job.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/control.h"
#include "core/file.h"
#include "reshard/export_options.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/foreign_model.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/hf_config.h"
#include "storage/location.h"

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

bool export_job_is_root(const struct export_job *x)
{
    return control_rank(x->control) == 0;
}

struct resume_job export_job_resume(struct export_job *x)
{
    return (struct resume_job){ &x->copy, &x->arena, x->request->progress };
}

bool export_job_to_store(const struct export_job *x)
{
    return location_is_remote(x->request->out);
}

/* The folder that is written, or that has headers and small files. */
static const char *folder_of(const struct export_job *x)
{
    return export_job_to_store(x) ? x->store.dir : x->folder.tmp;
}

/* Whether Megatron's distributed optimizer is written: as the source has it, unless one is
 * chosen. */
static bool is_distributed(const struct export_job *x)
{
    return x->request->options.distributed_optimizer ||
           (x->source.distributed && !x->request->options.ordinary_optimizer);
}

/* Whether Megatron's ordinary optimizer is written as torch.optim.AdamW: as the source has it,
 * unless a class is chosen. */
static bool is_torch_adam(const struct export_job *x)
{
    const char *chosen = x->request->options.megatron_adam;

    return chosen ? strcmp(chosen, "torch") == 0 : x->source.torch_adam;
}

/* The modules of Megatron-LM that are written: those that are chosen, else the source's. How the
 * source's experts were stored counts only for the same kind of modules. */
static struct export_modules modules_of(const struct export_job *x)
{
    const struct export_modules from = x->source.modules;
    const int impl = export_options_word(x->request->options.transformer_impl, "local",
                                         "transformer_engine"),
              experts =
                  export_options_word(x->request->options.moe_experts, "sequential", "grouped");
    struct export_modules m = { impl ? (enum export_impl)impl : from.impl,
                                (enum export_experts)experts, from.fused_mlp_norm };

    if (!experts && m.impl == from.impl)
        m.experts = from.experts;
    return m;
}

/* Whether names of transformers 5's modules are written: as the source has them, unless a version
 * is chosen. */
static bool has_module_names(const struct export_job *x)
{
    const char *chosen = x->request->options.transformers;

    return x->format->module_names && (chosen ? strcmp(chosen, "5") == 0 : x->source.module_names);
}

/* AdamW's options, with the rates that were chosen for a schedule. */
static struct export_adamw adamw_of(const struct export_job *x)
{
    struct export_adamw a = x->source.adamw;

    if (x->request->options.lr)
        export_options_rate(&a.max_lr, x->request->options.lr);
    if (x->request->options.min_lr)
        export_options_rate(&a.min_lr, x->request->options.min_lr);
    else if (x->request->options.lr && a.min_lr < 0) /* Megatron-LM's default */
        a.min_lr = 0;
    return a;
}

struct export_contents export_job_contents(const struct export_job *x, const char *dir)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;

    return (struct export_contents){ .dir = dir,
                                     .source = from->path,
                                     .from_format = q->foreign ? q->from_format : NULL,
                                     .model = &from->model,
                                     .tensors = from->layout.tensors,
                                     .n = from->layout.n_tensors,
                                     .layout = &from->layout,
                                     .step = from->step,
                                     .optimizer_step = from->optimizer_step,
                                     .adamw = adamw_of(x),
                                     .distributed_optimizer = is_distributed(x),
                                     .torch_adam = is_torch_adam(x),
                                     .modules = modules_of(x),
                                     .module_names = has_module_names(x),
                                     .param_groups = q->options.param_groups,
                                     .megatron_core = q->options.megatron_core,
                                     .max_shard_bytes = q->max_shard_bytes,
                                     .q8_0 = q->q8_0,
                                     .assets = q->assets,
                                     .progress = q->progress,
                                     .extras = from->extras };
}

tp_status export_job_create(struct export_job *x, const char *dir, struct tp_err *err)
{
    const struct export_contents contents = export_job_contents(x, dir);

    return x->format->create(&x->writer, &contents, err);
}

void export_job_close_writer(struct export_job *x)
{
    if (x->writer.endpoint)
        x->format->close(&x->writer);
    x->writer = (struct export_writer){ 0 };
}

tp_status export_job_plan(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    int64_t later = LATER_BYTES + x->remote_bytes + x->writer.later_bytes +
                    resume_memory_bytes(from->endpoint, &x->arena) +
                    resume_memory_bytes(x->writer.endpoint, &x->arena) +
                    (from->checkpoint ? checkpoint_source_memory(from->checkpoint, q->threads) : 0);

    later += memory_budget_remote_more(q->ckpt, q->memory_bytes, later, q->threads);
    x->copy.transfer = (struct transfer){ .n_tensors = from->layout.n_tensors,
                                          .tensors = from->transferred,
                                          .from = from->endpoint,
                                          .to = x->writer.endpoint,
                                          .control = x->control,
                                          .threads = q->threads,
                                          .progress = q->progress };
    return resume_plan(&x->resume, &x->copy, q->memory_bytes, later, err);
}

tp_status export_job_check_source(const struct export_request *q, struct tp_err *err)
{
    char source[PATH_MAX], out[PATH_MAX];
    size_t n;

    if (location_is_remote(q->ckpt) || !realpath(q->ckpt, source) || !realpath(q->out, out))
        return TP_OK;
    n = strlen(out);
    if (strncmp(source, out, n) != 0 || (source[n] != 0 && source[n] != '/'))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "-o %s: is the source, or a folder above it, which is never "
                   "replaced; name another folder",
                   q->out);
}

tp_status export_job_identify(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    const struct export_adamw adamw = adamw_of(x);
    char spec[SPEC_TEXT_MAX];
    struct sha256 *h;
    tp_status st = job_identity_new(&h, "export", err);

    if (st)
        return st;
    job_identity_text(h, x->format->name);
    job_identity_text(h, spec_format(spec, &from->layout.spec));
    job_identity_number(h, q->max_shard_bytes);
    job_identity_number(h, from->step);
    sha256_add(h, &adamw, sizeof adamw);
    if (is_distributed(x))
        job_identity_text(h, "distributed optimizer");
    if (is_torch_adam(x))
        job_identity_text(h, "torch's AdamW");
    if (q->options.transformer_impl)
        job_identity_text(h, q->options.transformer_impl);
    if (q->options.moe_experts)
        job_identity_text(h, q->options.moe_experts);
    if (q->options.megatron_core)
        job_identity_text(h, q->options.megatron_core);
    if (q->options.param_groups)
        job_identity_text(h, q->options.param_groups);
    if (has_module_names(x))
        job_identity_text(h, "names of modules");
    job_identity_text(h, from->model.config);
    st = export_source_identify(from, q, h, err);
    sha256_end(h, x->resume.head.identity_sha256);
    return st;
}

tp_status export_job_copy(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = export_job_resume(x);
    tp_status st;

    TP_TRY(x->format->keep && !export_job_to_store(x) ? resume_run(&x->resume, &job, err)
                                                      : copy_job_run_or_stop(&x->copy, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
    if (x->writer.bytes > 0)
        x->copy.done.bytes_written = x->writer.bytes;
done:
    return st;
}

static tp_status write_config(struct export_job *x, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    tp_status st = hf_config_make(&text, &x->source.model, x->source.layout.tensors[0].dtype, err);

    if (st)
        return st;
    st = file_join(path, dir, EXPORT_JOB_CONFIG, err);
    if (!st)
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

tp_status export_job_write_small_files(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct foreign_format *from =
        q->foreign && q->from_format ? foreign_format_find(q->from_format) : NULL;
    const char *assets = q->assets;
    char dir[PATH_MAX], beside[PATH_MAX];
    tp_status st;

    snprintf(dir, sizeof dir, "%s", folder_of(x));
    if (x->format->model_folder) {
        TP_TRY(file_join(dir, folder_of(x), x->format->model_folder, err));
        TP_TRY(file_make_dirs(dir, err));
    }
    if (!assets && q->foreign) {
        if (from && from->assets)
            TP_TRY(from->assets(beside, q->ckpt, err));
        else
            foreign_model_folder(beside, q->ckpt);
        assets = beside;
    }
    TP_TRY(write_config(x, dir, err));
    if (assets)
        st = hf_assets_copy(assets, dir, err);
done:
    return st;
}
