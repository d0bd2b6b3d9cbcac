/* reshard/formats/torch/torchtitan_map.c - see reshard/formats/torch/torchtitan_map.h. */
#include "reshard/formats/torch/torchtitan_map.h"

#include <string.h>

#include "core/text.h"
#include "layout/family.h"

/* The last name is one that no release has: it is read. */
enum { ALL_NAMES = TORCHTITAN_NAMES + 1 };

#define FUSED "layers.*.attention.qkv_linear.wqkv.weight"

/* A row is a line. */
/* clang-format off */
static const struct name_row {
    enum tensor_role role;
    const char *names[ALL_NAMES];
} table[] = {
    { ROLE_EMBEDDING, { "tok_embeddings.weight" } },
    { ROLE_ATTENTION_NORM, { "layers.*.attention_norm.weight" } },
    { ROLE_Q, { "layers.*.attention.wq.weight", "layers.*.attention.qkv_linear.wq.weight" } },
    { ROLE_K, { "layers.*.attention.wk.weight", "layers.*.attention.qkv_linear.wk.weight" } },
    { ROLE_V, { "layers.*.attention.wv.weight", "layers.*.attention.qkv_linear.wv.weight" } },
    { ROLE_Q_NORM, { "layers.*.attention.q_norm.weight" } },
    { ROLE_K_NORM, { "layers.*.attention.k_norm.weight" } },
    { ROLE_OUT, { "layers.*.attention.wo.weight" } },
    { ROLE_MLP_NORM, { "layers.*.ffn_norm.weight" } },
    { ROLE_GATE, { "layers.*.feed_forward.w1.weight" } },
    { ROLE_UP, { "layers.*.feed_forward.w3.weight" } },
    { ROLE_DOWN, { "layers.*.feed_forward.w2.weight" } },
    { ROLE_ROUTER, { "layers.*.moe.router.gate.weight" } },
    { ROLE_EXPERT_GATE, { "layers.*.moe.experts.w1", "layers.*.moe.routed_experts.inner_experts.w1_EFD", "layers.*.moe.experts.w1_EFD" } },
    { ROLE_EXPERT_UP, { "layers.*.moe.experts.w3", "layers.*.moe.routed_experts.inner_experts.w3_EFD", "layers.*.moe.experts.w3_EFD" } },
    { ROLE_EXPERT_DOWN, { "layers.*.moe.experts.w2", "layers.*.moe.routed_experts.inner_experts.w2_EDF", "layers.*.moe.experts.w2_EDF" } },
    { ROLE_FINAL_NORM, { "norm.weight" } },
    { ROLE_HEAD, { "output.weight", "lm_head.weight" } },
};
/* clang-format on */

enum { ROWS = sizeof table / sizeof *table };

bool torchtitan_map_has_family(const struct model *m)
{
    return (m->family == MODEL_LLAMA && m->head_dim % 2 == 0) || m->family == MODEL_QWEN3 ||
           m->family == MODEL_QWEN3_MOE;
}

static bool matches(int numbers[2], const struct model *m, const char *pattern, const char *name)
{
    return pattern && module_name_matches(numbers, pattern, name) && numbers[0] < m->layers;
}

bool torchtitan_map_ours(struct torchtitan_map_tensor *out, const struct model *m, const char *name)
{
    int numbers[2];

    *out = (struct torchtitan_map_tensor){ ROLE_NONE, 0 };
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < ALL_NAMES; k++)
            if (matches(numbers, m, table[i].names[k], name)) {
                if (family_tensor_find(family_of(m), table[i].role))
                    *out = (struct torchtitan_map_tensor){ table[i].role, numbers[0] };
                return out->role != ROLE_NONE;
            }
    if (!matches(numbers, m, FUSED, name))
        return false;
    *out = (struct torchtitan_map_tensor){ ROLE_QKV, numbers[0] };
    return true;
}

static bool is_qkv(enum tensor_role role)
{
    return role == ROLE_Q || role == ROLE_K || role == ROLE_V;
}

bool torchtitan_map_is_same(const struct torchtitan_map_tensor *a,
                            const struct torchtitan_map_tensor *b)
{
    if (a->role == ROLE_NONE || a->layer != b->layer)
        return false;
    return a->role == b->role || (a->role == ROLE_QKV && is_qkv(b->role)) ||
           (b->role == ROLE_QKV && is_qkv(a->role));
}

tp_status torchtitan_map_theirs(struct torchtitan_map_name *out, const struct model *m,
                                const struct tensor *t, int which, struct arena *arena,
                                struct tp_err *err)
{
    *out = (struct torchtitan_map_name){ .tensor = { ROLE_NONE, 0 } };
    for (int i = 0; i < ROWS; i++) {
        const struct family_module row = { table[i].names[which], { table[i].role } };
        int numbers[2];

        if (!family_tensor_find(family_of(m), table[i].role) ||
            !module_name_matches(numbers, module_name_pattern(m, table[i].role), t->name))
            continue;
        out->tensor = (struct torchtitan_map_tensor){ table[i].role, numbers[0] };
        return row.name ? module_name_of_row(&out->module, m, &row, 0, numbers, t, arena, err)
                        : TP_OK;
    }
    return TP_OK;
}

const char *torchtitan_map_fused(int layer, struct arena *arena)
{
    const char *star = strchr(FUSED, '*');

    return arena_printf(arena, "%.*s%d%s", (int)(star - FUSED), FUSED, layer, star + 1);
}

bool torchtitan_map_is_other(const char *name)
{
    static const char *const heads[] = { "train_state.", "lr_scheduler.", "dataloader." };

    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

const char *torchtitan_map_bias(int layer, int which, struct arena *arena)
{
    return arena_printf(arena, "layers.%d.moe.expert_bias%s", layer, which ? "_E" : "");
}

bool torchtitan_map_is_balance(const char *name)
{
    static const char *const ends[] = { ".moe.expert_bias", ".moe.expert_bias_E",
                                        ".moe.tokens_per_expert", ".moe.tokens_per_expert_E" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (text_ends_with(name, ends[i]))
            return true;
    return false;
}

/* ---- rows ---- */

bool torchtitan_map_has_pairs(const struct model *m, enum tensor_role role)
{
    return (m->family == MODEL_LLAMA || m->family == MODEL_MISTRAL) &&
           (role == ROLE_Q || role == ROLE_K);
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

int64_t torchtitan_map_fused_count(const struct model *m)
{
    return (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim;
}

struct torchtitan_map_part torchtitan_map_fused_rows(const struct model *m, enum tensor_role role,
                                                     int64_t head)
{
    const int64_t q = m->heads / m->kv_heads, hd = m->head_dim, n = role == ROLE_Q ? q * hd : hd;
    const int64_t before = role == ROLE_Q ? 0 : role == ROLE_K ? q * hd : (q + 1) * hd;

    return (
        struct torchtitan_map_part){ .row = head * n, .n = n, .at = head * (q + 2) * hd + before };
}
