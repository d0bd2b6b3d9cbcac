/*
 * reshard/formats/vllm/vllm.h - vLLM's sharded state: the weights of each tensor-parallel rank in
 * safetensors files of its own, under the names of vLLM's modules (vllm_map.h). vLLM loads them
 * with load_format="sharded_state".
 *
 *     model-rank-0-part-0.safetensors, model-rank-0-part-1.safetensors, model-rank-1-part-0...
 */
#ifndef RESHARD_FORMATS_VLLM_VLLM_H
#define RESHARD_FORMATS_VLLM_VLLM_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

/* Whether a folder has the first file of rank 0, or of the first stage, which vllm_read refuses. */
bool vllm_detect(const char *path);

/* Add the weights of all ranks. How many there are follows from the rows of rank 0's embedding.
 * TP_E_CORRUPT: a rank lacks a tensor, or one has another shape. TP_E_NOTFOUND: a rank has no
 * files. TP_E_USAGE: vLLM's names for this model are not known. */
tp_status vllm_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* As a row of reshard/formats/export_format.h: the files of each rank of the layout's tp.
 * TP_E_USAGE: the layout has pp or ep. */
tp_status vllm_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err);

enum { VLLM_FILE_MAX = 64 };

/* The name of a part of a rank. Returns buf. */
char *vllm_file_name(char buf[VLLM_FILE_MAX], int tp_rank, int part);

#endif
