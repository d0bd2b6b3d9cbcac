/*
 * cli/hf_assets.h - the small files beside a Hugging Face model's weights: tokenizer, chat
 * template, generation_config.json.
 */
#ifndef CLI_HF_ASSETS_H
#define CLI_HF_ASSETS_H

#include "core/err.h"

/* Copy those that are in `from` to the folder `to`, byte by byte. TP_E_NOTFOUND: there are none. */
tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err);

#endif
