/*
 * reshard/formats/gguf/gguf_pre.h - what a tokenizer.json does with a text before and after BPE, in
 * llama.cpp's terms.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_PRE_H
#define RESHARD_FORMATS_GGUF_GGUF_PRE_H

#include <jansson.h>
#include <stdbool.h>

struct gguf_pre {
    bool bytes;        /* BPE works on bytes */
    const char *name;  /* llama.cpp's name of the rule that cuts text into words; NULL: unknown */
    const char *regex; /* the expression that is the rule; borrowed; NULL: the usual one, or none */
};

/* Of the member "pre_tokenizer", which may be NULL. ignore_merges: words that are tokens are not
 * merged. */
struct gguf_pre gguf_pre_find(json_t *pre_tokenizer, bool ignore_merges);

/* Whether a space is put before a text. */
bool gguf_pre_has_space_prefix(json_t *normalizer, json_t *pre_tokenizer);

/* The token that a post-processor puts before a text; borrowed; NULL: none. */
const char *gguf_pre_first_token(json_t *post_processor);

#endif
