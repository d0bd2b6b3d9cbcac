/*
 * cli/ckpt/hf_assets.h - the small files beside a Hugging Face model's weights: tokenizer, chat
 * template, generation_config.json.
 */
#ifndef CLI_CKPT_HF_ASSETS_H
#define CLI_CKPT_HF_ASSETS_H

#include "core/err.h"

/* Whether there are any of them in `from`, before work is put into what they shall lie beside.
 * TP_E_NOTFOUND: no such folder, or none of them. */
tp_status hf_assets_check(const char *from, struct tp_err *err);

/* Copy those that are in `from` to the folder `to`, byte by byte. */
tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err);

#endif
