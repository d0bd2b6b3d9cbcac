/* reshard/formats/export_format.c - see reshard/formats/export_format.h. */
#include "reshard/formats/export_format.h"

#include <stdio.h>
#include <string.h>

#include "reshard/formats/deepspeed/deepspeed.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/gguf/gguf.h"
#include "reshard/formats/hf_trainer/hf_trainer.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/torch_dist.h"
#include "reshard/formats/meta/meta.h"
#include "reshard/formats/pieces/piece_target.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/dcp.h"
#include "reshard/formats/verl/verl.h"
#include "reshard/formats/vllm/vllm.h"

/* What formats of pieces have in common. */
#define PIECES                                                              \
    .send = piece_target_export_send, .finish = piece_target_export_finish, \
    .close = piece_target_export_close, .keep = piece_target_export_keep,   \
    .share = piece_target_export_share

static const struct export_format formats[] = {
    { .name = "safetensors",
      .title = "safetensors",
      .state = EXPORT_WEIGHTS,
      .shards = true,
      .create = safetensors_export_create,
      PIECES },
    { .name = "trainer",
      .title = "transformers' Trainer",
      .state = EXPORT_MOMENTS,
      .shards = true,
      .extras = "trainer",
      .create = hf_trainer_export_create,
      PIECES },
    { .name = "vllm",
      .title = "vLLM's sharded state",
      .state = EXPORT_WEIGHTS,
      .cuts = true,
      .tp_only = true,
      .shards = true,
      .create = vllm_export_create,
      PIECES },
    { .name = "gguf",
      .title = "GGUF of llama.cpp",
      .state = EXPORT_WEIGHTS,
      .q8_0 = true,
      .create = gguf_export_create,
      .send = gguf_export_send,
      .finish = gguf_export_finish,
      .close = gguf_export_close },
    { .name = "dcp",
      .title = "PyTorch distributed checkpoint",
      .state = EXPORT_MOMENTS,
      .cuts = true,
      .module_names = true,
      .extras = "dcp",
      .create = dcp_export_create,
      PIECES },
    { .name = "accelerate",
      .title = "Hugging Face Accelerate, FSDP",
      .state = EXPORT_MOMENTS,
      .cuts = true,
      .module_names = true,
      .extras = "accelerate",
      .create = accelerate_export_create,
      PIECES },
    { .name = "accelerate-ddp",
      .title = "Hugging Face Accelerate, one process or DDP",
      .state = EXPORT_MOMENTS,
      .param_groups = true,
      .extras = "accelerate-ddp",
      .create = hf_trainer_accelerate_export_create,
      PIECES },
    { .name = "torchtitan",
      .title = "torchtitan",
      .state = EXPORT_MOMENTS,
      .cuts = true,
      .extras = "torchtitan",
      .create = torchtitan_export_create,
      PIECES },
    { .name = "megatron",
      .title = "Megatron-LM, a folder for each rank",
      .state = EXPORT_MASTERS,
      .cuts = true,
      .distributed_optimizer = true,
      .modules = true,
      .extras = "megatron",
      .padding = megatron_args_padding,
      .create = megatron_export_create,
      PIECES },
    { .name = "torch_dist",
      .title = "Megatron-core torch_dist",
      .state = EXPORT_MASTERS,
      .cuts = true,
      .distributed_optimizer = true,
      .megatron_core = true,
      .extras = "megatron",
      .padding = megatron_args_padding,
      .create = torch_dist_export_create,
      PIECES },
    { .name = "deepspeed",
      .title = "DeepSpeed Universal",
      .state = EXPORT_MASTERS,
      .module_names = true,
      .create = deepspeed_export_create,
      PIECES },
    { .name = "verl",
      .title = "verl, FSDP",
      .state = EXPORT_MOMENTS,
      .cuts = true,
      .from_itself = true,
      .model_folder = "huggingface",
      .extras = "verl",
      .create = verl_export_create,
      PIECES },
    { .name = "meta",
      .title = "Meta's consolidated files",
      .state = EXPORT_WEIGHTS,
      .cuts = true,
      .tp_only = true,
      .extras = "meta",
      .create = meta_export_create,
      PIECES },
};

enum { FORMATS = sizeof formats / sizeof *formats };

const char *export_format_list(char text[EXPORT_LIST_TEXT], const char *first,
                               const char *separator, bool of_own)
{
    size_t n = (size_t)snprintf(text, EXPORT_LIST_TEXT, "%s", first);

    for (int i = 0; i < FORMATS && n < EXPORT_LIST_TEXT; i++)
        if (!of_own || !formats[i].from_itself)
            n += (size_t)snprintf(text + n, EXPORT_LIST_TEXT - n, "%s%s", i ? separator : "",
                                  formats[i].name);
    return text;
}

tp_status export_format_find(const struct export_format **out, const char *name, struct tp_err *err)
{
    char list[EXPORT_LIST_TEXT];

    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, foreign_format_name(name)) == 0) {
            *out = &formats[i];
            return TP_OK;
        }
    export_format_list(list, "", ", ", false);
    if (foreign_format_find(name))
        return tp_fail(err, TP_E_USAGE, "%s is read and not written; give --format with one of %s",
                       name, list);
    return tp_fail(err, TP_E_USAGE, "unknown format '%s'; it is one of %s", name, list);
}
