/*
 * reshard/formats/model_folder.h - whether a folder is a model's: what an export made, or what
 * other programs save in one of its formats.
 */
#ifndef RESHARD_FORMATS_MODEL_FOLDER_H
#define RESHARD_FORMATS_MODEL_FOLDER_H

#include "core/err.h"

/* Whether --force may replace `dir`, which exists and is not empty: it has config.json, and weights
 * in a format that is written here or that transformers reads. TP_E_EXISTS: not, and the message
 * says what it has. */
tp_status model_folder_replaceable(const char *dir, struct tp_err *err);

#endif
