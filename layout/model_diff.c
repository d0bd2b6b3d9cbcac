/* layout/model_diff.c - see layout/model_diff.h. */
#include "layout/model_diff.h"

#include <stdio.h>

#include "layout/family.h"

bool model_diff(char buf[MODEL_DIFF_MAX], const struct model *was, const struct model *now)
{
    const struct {
        const char *name;
        int64_t was, now;
    } fields[] = { { "hidden_size", was->hidden, now->hidden },
                   { "num_hidden_layers", was->layers, now->layers },
                   { "num_attention_heads", was->heads, now->heads },
                   { "num_key_value_heads", was->kv_heads, now->kv_heads },
                   { "head_dim", was->head_dim, now->head_dim },
                   { "intermediate_size", was->ffn, now->ffn },
                   { "vocab_size", was->vocab, now->vocab },
                   { "tie_word_embeddings", was->tied, now->tied },
                   { "the biases of query, key and value", was->qkv_bias, now->qkv_bias },
                   { "the bias of attention's output", was->out_bias, now->out_bias },
                   { "mlp_bias", was->mlp_bias, now->mlp_bias },
                   { "the number of experts", was->experts, now->experts },
                   { "the width of an expert", was->expert_ffn, now->expert_ffn } };

    buf[0] = 0;
    if (was->family != now->family)
        snprintf(buf, MODEL_DIFF_MAX, "architecture is %s, not %s", family_of(was)->architecture,
                 family_of(now)->architecture);
    for (size_t i = 0; !buf[0] && i < sizeof fields / sizeof *fields; i++)
        if (fields[i].was != fields[i].now)
            snprintf(buf, MODEL_DIFF_MAX, "%s is %lld, not %lld", fields[i].name,
                     (long long)fields[i].was, (long long)fields[i].now);
    return buf[0] != 0;
}
