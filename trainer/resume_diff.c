/* trainer/resume_diff.c - see trainer/resume_diff.h. */
#include "trainer/resume_diff.h"

#include "layout/family.h"
#include "layout/model_config.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct sentence {
    char *text;
    size_t used;
};

/* Append to the sentence; what does not fit is left out. */
__attribute__((format(printf, 2, 3))) static void add(struct sentence *s, const char *fmt, ...)
{
    size_t room = RESUME_DIFF_MAX - s->used;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(s->text + s->used, room, fmt, ap);
    va_end(ap);
    s->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

static const char *separator(const struct sentence *s)
{
    return s->used ? "; " : "this run differs from the run that saved it: ";
}

/* Weights that were cast and saved without masters have lost precision. */
static void add_cast(struct sentence *s, const struct layout *l)
{
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];

        if (strcmp(t->group, GROUP_PARAM) != 0 || t->dtype == DTYPE_F32)
            continue;
        if (layout_find(l, GROUP_MASTER, t->name) < 0)
            add(s,
                "%sweights were cast to %s without fp32 masters: training continues from rounded "
                "weights",
                separator(s), dtype_name(t->dtype));
        return;
    }
}

/* Append the number if it differs, and return whether it does. */
static bool add_number(struct sentence *s, const char *name, double was, double now)
{
    if (was != now)
        add(s, "%s%s was %.9g, now %.9g", separator(s), name, was, now);
    return was != now;
}

/* The first layer where it differs whether there is what `has` tells. */
static void add_layer(struct sentence *s, const char *name, bool (*has)(const struct model *, int),
                      const struct model *was, const struct model *now)
{
    for (int i = 0; i < was->layers && i < now->layers; i++)
        if (has(was, i) != has(now, i)) {
            add(s, "%sthe %s of layer %d was %s, now %s", separator(s), name, i,
                has(was, i) ? "on" : "off", has(now, i) ? "on" : "off");
            return;
        }
}

static void add_factors(struct sentence *s, const char *name, const double *was, const double *now,
                        int n)
{
    for (int i = 0; i < n; i++)
        if (was[i] != now[i]) {
            add(s, "%snumber %d of %s was %.9g, now %.9g", separator(s), i, name, was[i], now[i]);
            return;
        }
}

/* Members that a type does not have are 0 in both, but the original positions are in all. */
static void add_rope_scaling(struct sentence *s, const struct rope_scaling *was,
                             const struct rope_scaling *now)
{
    bool differs = add_number(s, "the type of rope_scaling", was->type, now->type);

    add_number(s, "rope_scaling's factor", was->factor, now->factor);
    if (differs || now->type < ROPE_SCALING_YARN)
        return;
    add_number(s, "original_max_position_embeddings", was->original_positions,
               now->original_positions);
    add_number(s, "the factor of cos and sin", rope_scaling_attention_factor(was),
               rope_scaling_attention_factor(now));
    add_number(s, "low_freq_factor", was->low_freq_factor, now->low_freq_factor);
    add_number(s, "high_freq_factor", was->high_freq_factor, now->high_freq_factor);
    add_number(s, "beta_fast", was->beta_fast, now->beta_fast);
    add_number(s, "beta_slow", was->beta_slow, now->beta_slow);
    add_number(s, "truncate", was->truncate, now->truncate);
    if (was->n_short == now->n_short)
        add_factors(s, "short_factor", was->short_factor, now->short_factor, now->n_short);
    if (was->n_long == now->n_long)
        add_factors(s, "long_factor", was->long_factor, now->long_factor, now->n_long);
}

/* Constants of the model that no shape of a tensor depends on. */
static void add_model(struct sentence *s, const struct manifest *m, const struct model *now,
                      struct arena *arena)
{
    struct tp_err ignored = { 0 };
    struct model was;

    if (!m->model_config ||
        model_config_parse(&was, m->model_config, strlen(m->model_config), "", arena, &ignored))
        return;
    add_number(s, "the norms' eps", was.norm_eps, now->norm_eps);
    if (family_of(now)->position == FAMILY_ROTARY)
        add_number(s, "rope_theta", was.rope_theta, now->rope_theta);
    add_number(s, "partial_rotary_factor", was.rotary_part, now->rotary_part);
    add_rope_scaling(s, &was.rope_scaling, &now->rope_scaling);
    add_layer(s, "rotary embedding", family_layer_has_rope, &was, now);
    if (!add_number(s, "sliding_window", (double)was.sliding_window, (double)now->sliding_window))
        add_layer(s, "sliding window", family_layer_has_window, &was, now);
    add_number(s, "query_pre_attn_scalar", was.attention_scalar, now->attention_scalar);
    add_number(s, "attention_multiplier", was.attention_multiplier, now->attention_multiplier);
    add_number(s, "embedding_multiplier", was.embedding_multiplier, now->embedding_multiplier);
    add_number(s, "residual_multiplier", was.residual_multiplier, now->residual_multiplier);
    add_number(s, "logits_scaling", was.logits_scaling, now->logits_scaling);
    add_number(s, "attn_logit_softcapping", was.attention_cap, now->attention_cap);
    add_number(s, "final_logit_softcapping", was.logit_cap, now->logit_cap);
    add_number(s, "rope_local_base_freq", was.local_rope_theta, now->local_rope_theta);
    add_number(s, "use_parallel_residual", was.parallel_residual, now->parallel_residual);
    add_number(s, "whether the GELU has erf", was.exact_gelu, now->exact_gelu);
    add_number(s, "num_experts_per_tok", was.experts_per_token, now->experts_per_token);
    add_number(s, "norm_topk_prob", was.normalized_experts, now->normalized_experts);
    add_number(s, "output_router_logits", was.balances_experts, now->balances_experts);
    add_number(s, "router_aux_loss_coef", was.balance_factor, now->balance_factor);
}

static void add_options(struct sentence *s, const char *text, const struct train_config *c,
                        int64_t data_tokens)
{
    const struct train_optimizer *o = &c->opt;
    const struct {
        const char *key, *name;
        double now;
    } options[] = {
        { "batch", "--batch", (double)c->global_batch_size },
        { "seq", "--seq", (double)c->seq_length },
        { "steps", "--steps", (double)c->steps },
        { "lr", "--lr", o->lr },
        { "min_lr", "--min-lr", o->min_lr },
        { "warmup", "--warmup", (double)o->warmup },
        { "beta1", "--beta1", o->beta1 },
        { "beta2", "--beta2", o->beta2 },
        { "eps", "--eps", o->eps },
        { "weight_decay", "--weight-decay", o->weight_decay },
        { "clip", "--clip", o->clip },
        { "data_tokens", "the number of tokens of --data", (double)data_tokens },
    };
    json_t *was = text ? json_loads(text, 0, NULL) : NULL;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *value = json_object_get(was, options[i].key);

        if (json_is_number(value) &&
            add_number(s, options[i].name, json_number_value(value), options[i].now) &&
            strcmp(options[i].key, "seq") == 0)
            add(s, " (data is counted in sequences: some text is repeated or skipped)");
    }
    json_decref(was);
}

/* The Python package notes how many steps AdamW has counted where the manifest cannot say it. */
static void add_counted(struct sentence *s, const struct manifest_train_state *was)
{
    json_t *options = was->options ? json_loads(was->options, 0, NULL) : NULL;
    const json_t *counted = json_object_get(json_object_get(options, "optimizer_steps"), "*");
    const int64_t now = was->step - was->optimizer_start;

    if (json_is_integer(counted) && json_integer_value(counted) != now)
        add(s, "%sAdamW had counted %lld steps, now %lld, on which its bias correction depends",
            separator(s), (long long)json_integer_value(counted), (long long)now);
    json_decref(options);
}

void resume_diff_describe(char buf[RESUME_DIFF_MAX], const struct manifest *was,
                          const struct train_config *now, const struct model *model,
                          int64_t data_tokens, struct arena *arena)
{
    struct sentence s = { .text = buf };
    const char *dtype = now->dtype == DTYPE_BF16 ? "bf16" : "fp32";

    buf[0] = 0;
    if (was->state.dtype && strcmp(was->state.dtype, dtype) != 0)
        add(&s, "%sarithmetic was %s, now %s", separator(&s), was->state.dtype, dtype);
    add_cast(&s, &was->layout);
    add_model(&s, was, model, arena);
    add_options(&s, was->state.options, now, data_tokens);
    add_counted(&s, &was->state);
}
