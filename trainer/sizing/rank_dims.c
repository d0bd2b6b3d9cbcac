/* trainer/sizing/rank_dims.c - see trainer/sizing/rank_dims.h. */
#include "trainer/sizing/rank_dims.h"

#include "layout/family.h"
#include "layout/layout.h"
#include "layout/parallel_plan.h"

static bool is_cut(const struct parallel_plan *plan, enum tensor_role role)
{
    const struct parallel_plan_entry *e = parallel_plan_find(plan, role);

    return e && (e->cut == CUT_ROW || e->cut == CUT_VOCABULARY);
}

/* The input of a row-parallel layer is cut as the layer is (parallel_plan_check). So the output
 * projection's cut is that of all of attention, and the down projection's that of the MLP. */
struct rank_dims_cuts model_cuts_of(const struct model *m)
{
    const struct parallel_plan plan = parallel_plan_of(m);

    return (struct rank_dims_cuts){ .attention = is_cut(&plan, ROLE_OUT),
                                    .mlp = is_cut(&plan, m->experts ? ROLE_EXPERT_DOWN : ROLE_DOWN),
                                    .head = is_cut(&plan, m->tied ? ROLE_EMBEDDING : ROLE_HEAD) };
}

/* The first part of n units. */
static int64_t part_of(int64_t n, bool is_cut, int parts)
{
    return is_cut ? (n + parts - 1) / parts : n;
}

/* The number of passes (of a microbatch through a virtual stage) whose activations rank `pp` keeps
 * at the same time. By the schedule (trainer/pipeline/schedule.h) these are the forward passes of
 * the warm-up and one more (Narayanan et al. 2021). */
static int64_t slots_of(const struct spec *s, int pp, int64_t micros)
{
    int64_t behind = s->pp - pp, all = micros * s->vpp, slots;

    if (s->vpp == 1)
        slots = behind;
    else if (micros == s->pp) /* one group of microbatches: nothing to interleave with */
        slots = all;
    else
        slots = 2 * (behind - 1) + (int64_t)(s->vpp - 1) * s->pp + 1;
    return micros && all < slots ? all : slots;
}

/* The layers of rank `pp` of a pipeline, and how many microbatches' activations it keeps. */
static void count_layers(struct rank_dims *d, const struct model *m, const struct spec *s, int pp)
{
    int64_t stages = (int64_t)s->pp * s->vpp;

    for (int64_t stage = pp; stage < stages; stage += s->pp)
        d->n_layers += layout_stage_layers(m->layers, stages, stage);
    d->stage_layers = layout_stage_layers(m->layers, stages, pp);
    d->n_slots = slots_of(s, pp, d->micros);
    d->is_first = pp == 0;
    d->is_last = pp == s->pp - 1;
    d->is_pipeline = s->pp > 1;
}

static void count_widths(struct rank_dims *d, const struct model *m,
                         const struct rank_dims_cuts *cuts)
{
    bool is_gated = family_is_gated(family_of(m));

    d->heads = part_of(m->heads, cuts->attention, d->n_virtual);
    d->kv_heads = part_of(m->kv_heads, cuts->attention, d->n_virtual);
    d->ffn =
        part_of(family_dim_size(m->experts ? DIM_EXPERT_FFN : DIM_FFN, m), cuts->mlp, d->n_virtual);
    d->q_width = d->heads * m->head_dim;
    d->kv_width = d->kv_heads * m->head_dim;
    d->qkv_width = d->q_width + 2 * d->kv_width;
    d->up_width = (is_gated ? 2 : 1) * d->ffn;
    if (d->is_last)
        d->logit_rows = part_of(m->vocab, cuts->head, d->n_virtual);
}

/* A sum with a bias that a norm reads at once is f32. */
static enum dtype outer_of(const struct model *m, const struct workload *w)
{
    bool adds_bias_before_norm =
        m->out_bias && family_tensor_find(family_of(m), ROLE_MLP_POST_NORM);

    return w->keeps_bf16 && !adds_bias_before_norm ? w->dtype : DTYPE_F32;
}

struct rank_dims rank_dims_make(const struct model *m, const struct rank_dims_cuts *cuts,
                                const struct spec *s, const struct workload *w, int pp)
{
    const struct family *family = family_of(m);
    struct rank_dims d = { .dtype = w->dtype,
                           .inner = w->keeps_bf16 ? w->dtype : DTYPE_F32,
                           .outer = outer_of(m, w),
                           .recompute = w->recompute,
                           .micros = workload_micros(w, s),
                           .sequences = workload_micro(w, s),
                           .seq = w->seq_length / s->cp,
                           .hidden = m->hidden,
                           .head_dim = m->head_dim,
                           .rotary_dim = m->rotary_dim,
                           .norm_stats = family->norm == FAMILY_LAYER_NORM ? 2 : 1,
                           .is_rotary = family->position == FAMILY_ROTARY,
                           .has_unit_norms = family->norm == FAMILY_UNIT_RMS_NORM,
                           .has_qkv_by_head = family->qkv_by_head,
                           .has_head_norms = m->head_norms,
                           .has_whole_norms = family_norms_all_heads(m),
                           .has_pre_norms = family_tensor_find(family, ROLE_MLP_NORM),
                           .has_post_norms = family_tensor_find(family, ROLE_MLP_POST_NORM),
                           .has_local_rope = m->local_rope_theta > 0,
                           .caps_scores = m->attention_cap > 0,
                           .experts = m->experts,
                           .per_token = m->experts ? m->experts_per_token : 1,
                           .ep = s->ep > 1 ? s->ep : 1,
                           .load = m->balances_experts ? 2 * m->experts : 0,
                           .is_ring = s->cp > 1,
                           .has_long_ring = s->cp > 2,
                           .split = s->sp ? s->tp : 1,
                           .same_bits = w->same_bits > 0,
                           .n_virtual = w->same_bits ? w->same_bits : s->tp };

    d.shards = d.n_virtual / s->tp;
    d.token_copies = d.per_token;
    if (d.ep > 1)
        d.token_copies = d.ep * (d.experts / d.ep < d.per_token ? d.experts / d.ep : d.per_token);
    count_layers(&d, m, s, pp);
    count_widths(&d, m, cuts);
    return d;
}
