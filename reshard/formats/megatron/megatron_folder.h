/*
 * reshard/formats/megatron/megatron_folder.h - the folder of an iteration of Megatron-LM, of
 * Megatron-Bridge or of NeMo.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_FOLDER_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_FOLDER_H

#include <limits.h>

#include "core/err.h"

/* The folder that `latest_checkpointed_iteration.txt` in `path` names (iter_0000100, release);
 * `path` itself when there is no such file. Where the checkpoint is in `path`/weights, as in
 * folders of NeMo 2 and NeMo-RL, the same of that folder. TP_E_CORRUPT: the file names none. */
tp_status megatron_folder_find(char dir[PATH_MAX], const char *path, struct tp_err *err);

#endif
