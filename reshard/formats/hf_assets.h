/*
 * reshard/formats/hf_assets.h - the small files next to the weights of a Hugging Face model:
 * tokenizer, chat template, generation_config.json.
 */
#ifndef RESHARD_FORMATS_HF_ASSETS_H
#define RESHARD_FORMATS_HF_ASSETS_H

#include "core/err.h"

/* Check that the folder `from` contains any of them, before other work begins. TP_E_NOTFOUND: there
 * is no such folder, or none of the files. */
tp_status hf_assets_check(const char *from, struct tp_err *err);

/* Copy those that are in `from` to the folder `to`, byte by byte, and the further chat templates in
 * its folder additional_chat_templates, unless it is on a web server, which has no listings, or in
 * a store that refuses one. */
tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err);

#endif
