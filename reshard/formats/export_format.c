/* reshard/formats/export_format.c - see reshard/formats/export_format.h. */
#include "reshard/formats/export_format.h"

#include <stdio.h>
#include <string.h>

#include "reshard/formats/deepspeed/deepspeed.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/gguf/gguf.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/torch_dist.h"
#include "reshard/formats/pieces/piece_target.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/dcp.h"

static const struct export_format formats[] = {
    { "safetensors", "safetensors", EXPORT_WEIGHTS, false, true, false, false, false, NULL,
      safetensors_export_create, piece_target_export_send, piece_target_export_finish,
      piece_target_export_close, piece_target_export_keep },
    { "gguf", "GGUF of llama.cpp", EXPORT_WEIGHTS, false, false, true, false, false, NULL,
      gguf_export_create, gguf_export_send, gguf_export_finish, gguf_export_close, NULL },
    { "dcp", "PyTorch distributed checkpoint", EXPORT_MOMENTS, true, false, false, false, false,
      "dcp", dcp_export_create, piece_target_export_send, piece_target_export_finish,
      piece_target_export_close, piece_target_export_keep },
    { "torchtitan", "torchtitan", EXPORT_MOMENTS, true, false, false, false, false, NULL,
      torchtitan_export_create, piece_target_export_send, piece_target_export_finish,
      piece_target_export_close, piece_target_export_keep },
    { "megatron", "Megatron-LM, a folder for each rank", EXPORT_MASTERS, true, false, false, true,
      false, "megatron", megatron_export_create, piece_target_export_send,
      piece_target_export_finish, piece_target_export_close, piece_target_export_keep },
    { "torch_dist", "Megatron-core torch_dist", EXPORT_MASTERS, true, false, false, true, true,
      "megatron", torch_dist_export_create, piece_target_export_send, piece_target_export_finish,
      piece_target_export_close, piece_target_export_keep },
    { "deepspeed", "DeepSpeed Universal", EXPORT_MASTERS, false, false, false, false, false, NULL,
      deepspeed_export_create, piece_target_export_send, piece_target_export_finish,
      piece_target_export_close, piece_target_export_keep },
};

enum { FORMATS = sizeof formats / sizeof *formats, LIST_TEXT = 256 };

tp_status export_format_find(const struct export_format **out, const char *name, struct tp_err *err)
{
    char list[LIST_TEXT] = "";

    for (int i = 0; i < FORMATS; i++) {
        const size_t n = strlen(list);

        if (strcmp(formats[i].name, foreign_format_name(name)) == 0) {
            *out = &formats[i];
            return TP_OK;
        }
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", formats[i].name);
    }
    if (foreign_format_find(name))
        return tp_fail(err, TP_E_USAGE,
                       "%s can be read, but not written; give --format and one of %s", name, list);
    return tp_fail(err, TP_E_USAGE, "--format %s: is not known; this version writes %s", name,
                   list);
}
