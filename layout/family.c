/* layout/family.c - see layout/family.h. */
#include "layout/family.h"

#include <string.h>

#include "core/text.h"

static const struct family *const families[MODEL_FAMILIES] = {
    [MODEL_LLAMA] = &family_llama,       [MODEL_GPT2] = &family_gpt2,
    [MODEL_MISTRAL] = &family_mistral,   [MODEL_QWEN2] = &family_qwen2,
    [MODEL_QWEN3] = &family_qwen3,       [MODEL_GEMMA] = &family_gemma,
    [MODEL_GEMMA2] = &family_gemma2,     [MODEL_GEMMA3] = &family_gemma3,
    [MODEL_PHI3] = &family_phi3,         [MODEL_OLMO2] = &family_olmo2,
    [MODEL_GPT_NEOX] = &family_gpt_neox, [MODEL_OPT] = &family_opt,
    [MODEL_MIXTRAL] = &family_mixtral,   [MODEL_QWEN3_MOE] = &family_qwen3_moe,
    [MODEL_GRANITE] = &family_granite,   [MODEL_OLMO3] = &family_olmo3,
    [MODEL_SMOLLM3] = &family_smollm3,
};

const struct family *family_at(enum model_family number)
{
    return families[number];
}

const struct family *family_of(const struct model *m)
{
    return families[m->family];
}

bool family_has_buffer(const struct family *f, const char *name)
{
    if (!f) {
        for (int i = 0; i < MODEL_FAMILIES; i++)
            if (family_has_buffer(families[i], name))
                return true;
        return false;
    }
    for (const char *const *end = f->buffers; *end; end++)
        if (text_ends_with(name, *end))
            return true;
    return false;
}

bool family_find(enum model_family *out, const char *architecture, const char *model_type)
{
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        const char *asked = architecture ? architecture : model_type;
        const char *known = architecture ? families[i]->architecture : families[i]->model_type;

        if (asked && strcmp(asked, known) == 0) {
            *out = (enum model_family)i;
            return true;
        }
    }
    return false;
}

bool family_layer_has_window(const struct model *m, int layer)
{
    return m->sliding_window > 0 && !(m->full_layers && m->full_layers[layer]);
}

bool family_layer_has_rope(const struct model *m, int layer)
{
    return family_of(m)->position == FAMILY_ROTARY && !(m->nope_layers && m->nope_layers[layer]);
}

bool family_is_gated(const struct family *f)
{
    return f->mlp == FAMILY_SWIGLU || f->mlp == FAMILY_GEGLU;
}

bool family_norms_all_heads(const struct model *m)
{
    const struct family_tensor *t = family_tensor_find(family_of(m), ROLE_Q_NORM);

    return t && t->shape[0] == DIM_Q;
}

const struct family_tensor *family_tensor_find(const struct family *f, enum tensor_role role)
{
    for (const struct family_tensor *t = f->tensors; t->role != ROLE_NONE; t++)
        if (t->role == role)
            return t;
    return NULL;
}

bool family_tensor_is_in(const struct family_tensor *t, const struct model *m)
{
    if (t->role == ROLE_HEAD && m->tied)
        return false;
    return t->has == 0 || *(const bool *)((const char *)m + t->has);
}

int family_tensor_copies(const struct family_tensor *t, const struct model *m)
{
    return tensor_role_is_of_expert(t->role) ? m->experts : 1;
}

int64_t family_dim_size(enum family_dim d, const struct model *m)
{
    switch (d) {
    case DIM_VOCAB:
        return m->vocab;
    case DIM_POSITIONS:
        return m->max_positions + family_of(m)->extra_positions;
    case DIM_HIDDEN:
        return m->hidden;
    case DIM_FFN:
        return m->ffn;
    case DIM_GATE_UP:
        return 2 * m->ffn;
    case DIM_HEAD_DIM:
        return m->head_dim;
    case DIM_EXPERTS:
        return m->experts;
    case DIM_EXPERT_FFN:
        return m->expert_ffn ? m->expert_ffn : m->ffn;
    case DIM_Q:
        return m->heads * m->head_dim;
    case DIM_KV:
        return m->kv_heads * m->head_dim;
    case DIM_QKV:
        return (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim;
    default:
        return 0;
    }
}

int family_out_axis(const struct family *f, const struct family_tensor *t)
{
    return f->in_out && t->shape[1] != DIM_NONE ? 1 : 0;
}
