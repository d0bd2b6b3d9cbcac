/* reshard/formats/foreign.c - see reshard/formats/foreign.h. */
#include "reshard/formats/foreign.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed.h"
#include "reshard/formats/hf_trainer/hf_trainer.h"
#include "reshard/formats/megatron/fsdp_dtensor.h"
#include "reshard/formats/megatron/master_check.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/torch_dist.h"
#include "reshard/formats/megatron/torch_dist_root.h"
#include "reshard/formats/meta/meta.h"
#include "reshard/formats/pt/pt.h"
#include "reshard/formats/safetensors/safetensors_pieces.h"
#include "reshard/formats/torch/accelerate.h"
#include "reshard/formats/torch/dcp.h"
#include "reshard/formats/torch/torch_bin.h"
#include "reshard/formats/verl/verl.h"
#include "reshard/formats/vllm/vllm.h"
#include "storage/object.h"

#define ONE_SAVE "that the files of all ranks are of one save, beyond their equal steps"
#define FLAT                                                                                       \
    "where parameters begin in flat buffers of the distributed optimizer, beyond a comparison of " \
    "some masters with the weights"
#define ORDER(optimizer)                                                                     \
    "that no bit of safetensors changed, which have no checksums; which state of " optimizer \
    " is of which parameter, beyond their shapes and the order of transformers' modules"
#define PT_ORDER                                                                                \
    "which state of an optimizer without names is of which parameter, beyond their shapes and " \
    "the "                                                                                      \
    "order of transformers' modules"
#define METADATA "the names and places in .metadata, which has no checksum"

/* Formats with an optimizer come first: trainers leave the weights alone beside it. */
static const struct foreign_format formats[] = {
    { .name = "megatron",
      .title = "Megatron-LM, a folder for each rank",
      .detect = megatron_detect,
      .read = megatron_read,
      .check = master_check,
      .config = megatron_config,
      .fused = true,
      .unproved = ONE_SAVE "; " FLAT },
    { .name = "torch_dist",
      .title = "Megatron-core torch_dist",
      .detect = torch_dist_detect,
      .read = torch_dist_read,
      .check = torch_dist_check,
      .config = torch_dist_root_config,
      .fused = true,
      .unproved = METADATA "; " FLAT },
    { .name = "fsdp_dtensor",
      .title = "Megatron-FSDP",
      .detect = fsdp_dtensor_detect,
      .read = fsdp_dtensor_read,
      .config = torch_dist_root_config,
      .fused = true,
      .extras = "megatron",
      .unproved = METADATA },
    { .name = "deepspeed",
      .title = "DeepSpeed, ZeRO or Universal",
      .detect = deepspeed_detect,
      .read = deepspeed_read,
      .config = deepspeed_config,
      .unproved = ONE_SAVE },
    { .name = "verl",
      .title = "verl, FSDP",
      .detect = verl_detect,
      .read = verl_read,
      .config = verl_config,
      .assets = verl_assets,
      .unproved = ONE_SAVE },
    { .name = "accelerate",
      .title = "Hugging Face Accelerate, FSDP",
      .detect = accelerate_detect,
      .read = accelerate_read,
      .check = accelerate_check,
      .unproved = METADATA "; " ONE_SAVE },
    { .name = "torchtitan",
      .title = "torchtitan",
      .detect = torchtitan_detect,
      .read = torchtitan_read,
      .fused = true,
      .unproved = METADATA },
    { .name = "dcp",
      .title = "PyTorch distributed checkpoint",
      .detect = dcp_detect,
      .read = dcp_read,
      .unproved = METADATA },
    { .name = "trainer",
      .title = "transformers' Trainer",
      .detect = hf_trainer_detect,
      .read = hf_trainer_read,
      .unproved = ORDER("optimizer.pt") },
    { .name = "accelerate-ddp",
      .title = "Hugging Face Accelerate, one process or DDP",
      .detect = hf_trainer_accelerate_detect,
      .read = hf_trainer_accelerate_read,
      .unproved = ORDER("optimizer.bin") },
    { .name = "vllm",
      .title = "vLLM's sharded state",
      .detect = vllm_detect,
      .read = vllm_read,
      .fused = true,
      .unproved = "that the files of all ranks are of one save, and their copies of one tensor "
                  "equal; that no bit changed, because the files have no checksums" },
    { .name = "bin",
      .title = "pytorch_model.bin",
      .detect = torch_bin_detect,
      .read = torch_bin_read },
    { .name = "meta",
      .title = "Meta's consolidated files",
      .detect = meta_detect,
      .read = meta_read,
      .config = meta_config,
      .fused = true,
      .unproved = "that the files of all ranks are of one save; that all have the norms of the "
                  "first, which are read" },
    { .name = "pt",
      .title = "a file of torch.save",
      .detect = pt_detect,
      .read = pt_read,
      .assets = pt_assets,
      .is_file = true,
      .unproved = PT_ORDER },
};

enum { FORMATS = sizeof formats / sizeof *formats };

const char *const foreign_trackers[FOREIGN_TRACKERS] = { "latest_checkpointed_iteration.txt",
                                                         "latest_universal", "latest" };

const char *foreign_format_name(const char *name)
{
    static const char *const other[][2] = { { "torch", "bin" },
                                            { "megatron-dist", "torch_dist" },
                                            { "sharded_state", "vllm" } };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strcmp(other[i][0], name) == 0)
            return other[i][1];
    return name;
}

const struct foreign_format *foreign_format_find(const char *name)
{
    name = foreign_format_name(name);
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const char *foreign_format_list(char text[FOREIGN_LIST_TEXT], const char *first,
                                const char *separator)
{
    size_t n = (size_t)snprintf(text, FOREIGN_LIST_TEXT, "%s%s", first,
                                foreign_format_safetensors()->name);

    for (int i = 0; i < FORMATS && n < FOREIGN_LIST_TEXT; i++)
        n += (size_t)snprintf(text + n, FOREIGN_LIST_TEXT - n, "%s%s", separator, formats[i].name);
    return text;
}

/* Whether a file is a part of the checkpoint in its folder, or in the folder above those of ranks.
 */
static bool is_part(const char *path)
{
    char above[PATH_MAX], part[PATH_MAX];

    file_parent(above, path);
    if (foreign_format_detect_any(above))
        return true;
    memcpy(part, above, sizeof part);
    file_parent(above, part);
    return megatron_detect(above) || deepspeed_detect(above);
}

const struct foreign_format *foreign_format_detect(const char *path)
{
    for (int i = 0; i < FORMATS; i++)
        if (formats[i].detect(path))
            return formats[i].is_file && is_part(path) ? NULL : &formats[i];
    return NULL;
}

const struct foreign_format *foreign_format_safetensors(void)
{
    static const struct foreign_format safetensors = {
        .name = "safetensors",
        .title = "Hugging Face safetensors",
        .detect = safetensors_pieces_detect,
        .read = safetensors_pieces_read,
        .unproved = "that no bit changed, because the files have no checksums"
    };

    return &safetensors;
}

const struct foreign_format *foreign_format_detect_any(const char *path)
{
    const struct foreign_format *found = foreign_format_detect(path);

    if (!found && safetensors_pieces_detect(path))
        found = foreign_format_safetensors();
    return found;
}

tp_status foreign_reach(const char *path, struct tp_err *err)
{
    char file[PATH_MAX];
    bool ignored;
    tp_status st = file_join(file, path, "config.json", err);

    return st ? st : object_exists(&ignored, file, err);
}

tp_status foreign_open(struct piece_source **out, const struct foreign_format *format,
                       const char *path, const struct model *m, int64_t memory_bytes,
                       struct tp_err *err)
{
    struct piece_source *s = NULL;
    tp_status st;

    TP_TRY(piece_source_new(&s, path, err));
    piece_source_limit(s, memory_bytes);
    TP_TRY(format->read(s, m, err));
    TP_TRY(piece_source_finish(s, err));
    if (piece_source_count(s) == 0) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: has no tensors", path);
        goto done;
    }
    *out = s;
    s = NULL;
done:
    piece_source_close(s);
    return st;
}

int foreign_find(const struct piece_source *s, const char *group, const char *name)
{
    static const char prefix[] = "transformer.";
    int i = piece_source_find(s, group, name);

    if (i < 0 && strncmp(name, prefix, sizeof prefix - 1) == 0)
        i = piece_source_find(s, group, name + sizeof prefix - 1);
    return i;
}
