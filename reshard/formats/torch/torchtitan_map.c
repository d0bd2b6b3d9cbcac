/* reshard/formats/torch/torchtitan_map.c - see reshard/formats/torch/torchtitan_map.h. */
#include "reshard/formats/torch/torchtitan_map.h"

#include <string.h>

/* A row is a line. */
/* clang-format off */
static const struct name_row {
    const char *ours, *theirs[TORCHTITAN_NAMES];
    bool pairs;
} table[] = {
    { "model.embed_tokens.weight", { "tok_embeddings.weight", NULL }, false },
    { "model.layers.*.input_layernorm.weight", { "layers.*.attention_norm.weight", NULL }, false },
    { "model.layers.*.self_attn.q_proj.weight", { "layers.*.attention.wq.weight", "layers.*.attention.qkv_linear.wq.weight" }, true },
    { "model.layers.*.self_attn.k_proj.weight", { "layers.*.attention.wk.weight", "layers.*.attention.qkv_linear.wk.weight" }, true },
    { "model.layers.*.self_attn.v_proj.weight", { "layers.*.attention.wv.weight", "layers.*.attention.qkv_linear.wv.weight" }, false },
    { "model.layers.*.self_attn.o_proj.weight", { "layers.*.attention.wo.weight", NULL }, false },
    { "model.layers.*.post_attention_layernorm.weight", { "layers.*.ffn_norm.weight", NULL }, false },
    { "model.layers.*.mlp.gate_proj.weight", { "layers.*.feed_forward.w1.weight", NULL }, false },
    { "model.layers.*.mlp.up_proj.weight", { "layers.*.feed_forward.w3.weight", NULL }, false },
    { "model.layers.*.mlp.down_proj.weight", { "layers.*.feed_forward.w2.weight", NULL }, false },
    { "model.norm.weight", { "norm.weight", NULL }, false },
    { "lm_head.weight", { "output.weight", "lm_head.weight" }, false },
};
/* clang-format on */

enum { ROWS = sizeof table / sizeof *table };

/* Whether a name is a pattern, of which * is a number: the *digits characters at *number. */
static bool matches(const char *pattern, const char *name, const char **number, int *digits)
{
    const char *star = pattern ? strchr(pattern, '*') : NULL;

    *number = "";
    *digits = 0;
    if (!star)
        return pattern && strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, (size_t)(star - pattern)) != 0)
        return false;
    *number = name + (star - pattern);
    *digits = (int)strspn(*number, "0123456789");
    return *digits > 0 && strcmp(star + 1, *number + *digits) == 0;
}

static const char *fill(const char *pattern, const char *number, int digits, struct arena *arena)
{
    const char *star = strchr(pattern, '*');

    if (!star)
        return pattern;
    return arena_printf(arena, "%.*s%.*s%s", (int)(star - pattern), pattern, digits, number,
                        star + 1);
}

bool torchtitan_map_ours(struct torchtitan_map_name *out, const char *name, struct arena *arena)
{
    const char *number;
    int digits;

    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < TORCHTITAN_NAMES; k++)
            if (matches(table[i].theirs[k], name, &number, &digits)) {
                out->name = fill(table[i].ours, number, digits, arena);
                out->pairs = table[i].pairs;
                return true;
            }
    return false;
}

bool torchtitan_map_theirs(struct torchtitan_map_name *out, const char *name, int which,
                           struct arena *arena)
{
    const char *number;
    int digits;

    for (int i = 0; i < ROWS; i++)
        if (table[i].theirs[which] && matches(table[i].ours, name, &number, &digits)) {
            out->name = fill(table[i].theirs[which], number, digits, arena);
            out->pairs = table[i].pairs;
            return true;
        }
    return false;
}

bool torchtitan_map_is_other(const char *name)
{
    static const char *const heads[] = { "train_state.", "lr_scheduler.", "dataloader." };

    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

struct torchtitan_map_part torchtitan_map_rows(int64_t head_dim, int64_t head, int half,
                                               int64_t begin, int64_t end)
{
    const int64_t base = head * head_dim + half, pairs = head_dim / 2;
    const int64_t first = begin > base ? (begin - base + 1) / 2 : 0;
    int64_t last = end > base ? (end - base + 1) / 2 : 0;

    if (last > pairs)
        last = pairs;
    return (struct torchtitan_map_part){ .row = head * head_dim + half * pairs + first,
                                         .n = last > first ? last - first : 0,
                                         .at = base + 2 * first };
}
