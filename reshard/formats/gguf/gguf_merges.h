/*
 * reshard/formats/gguf/gguf_merges.h - the merges of a BPE tokenizer, in the order of their ranks.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_MERGES_H
#define RESHARD_FORMATS_GGUF_GGUF_MERGES_H

#include <jansson.h>

#include "core/arena.h"
#include "core/err.h"
#include "reshard/formats/gguf/gguf_bytes.h"

struct gguf_merges {
    /* set by the caller, borrowed */
    const char *path;          /* of the tokenizer's file, for messages */
    const char *const *tokens; /* [n_tokens]; NULL: there is none of this number */
    int64_t n_tokens;
    float *scores;            /* [n_tokens] receives minus the rank of the merge that makes a token,
                                 where it is 0; NULL: no scores */
    struct gguf_bytes *bytes; /* receives the merges as strings of GGUF */

    int64_t n;       /* merges that were added */
    int64_t *sorted; /* [n_sorted] the tokens that there are, by text; in the arena */
    int64_t n_sorted;
};

/* After all tokens were read. TP_E_NOMEM. */
tp_status gguf_merges_begin(struct gguf_merges *m, struct arena *arena, struct tp_err *err);

/* Add the next merge, "a b" or ["a", "b"]. TP_E_CORRUPT, TP_E_NOMEM. */
tp_status gguf_merges_add(struct gguf_merges *m, const json_t *merge, struct tp_err *err);

#endif
