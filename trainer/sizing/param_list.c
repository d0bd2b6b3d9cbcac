/* trainer/sizing/param_list.c - see trainer/sizing/param_list.h. */
#include "trainer/sizing/param_list.h"

#include "layout/layout.h"

struct param_rank param_rank_make(const struct spec *s, int tp, enum dtype dtype, int same_bits,
                                  bool ties)
{
    struct param_rank r = { .spec = *s,
                            .tp = tp,
                            .ties = ties,
                            .dtype = dtype,
                            .same_bits = same_bits > 0,
                            .n_virtual = same_bits ? same_bits : s->tp,
                            .n_owners = s->zero ? s->dp : 1,
                            .n_expert_owners = 1 };

    r.n_shards = r.n_virtual / s->tp;
    if (s->ep > 1 && param_rank_is_sharded(&r))
        r.n_expert_owners = s->dp * s->cp / s->ep;
    return r;
}

int param_owners(const struct param_rank *r, bool is_expert)
{
    return is_expert ? r->n_expert_owners : r->n_owners;
}

bool param_rank_is_sharded(const struct param_rank *r)
{
    return r->spec.zero == 3 && r->spec.dp > 1;
}

/* ---- groups of tensors ---- */

/* Whether tensor t directly follows the one before it, because the products use both as one
 * matrix. */
static bool joins_previous(const struct tensor *tensors, int t)
{
    enum tensor_role before = t > 0 ? tensors[t - 1].role : ROLE_NONE;

    switch (tensors[t].role) {
    case ROLE_K:
        return before == ROLE_Q;
    case ROLE_V:
        return before == ROLE_K;
    case ROLE_UP:
        return before == ROLE_GATE;
    case ROLE_K_BIAS:
        return before == ROLE_Q_BIAS;
    case ROLE_V_BIAS:
        return before == ROLE_K_BIAS;
    case ROLE_UP_BIAS:
        return before == ROLE_GATE_BIAS;
    default:
        return false;
    }
}

int param_group_size(const struct tensor *tensors, int n_tensors, int t)
{
    int n = 1;

    while (t + n < n_tensors && joins_previous(tensors, t + n))
        n++;
    return n;
}

bool param_is_at_both_ends(const struct param_rank *r, const struct tensor *t)
{
    return t->role == ROLE_EMBEDDING && r->spec.pp > 1 && r->ties;
}

int param_shards_of(const struct param_rank *r, const struct tensor *t, int *n)
{
    *n = t->placement.dim < 0 ? 1 : r->n_shards;
    return r->tp * r->n_shards;
}

/* ---- entries ---- */

/* Parameters that are always in fp32: norms, biases, learned positions. */
static bool is_always_fp32(enum tensor_role role)
{
    return tensor_role_is_bias(role) || tensor_role_is_norm(role) || role == ROLE_POSITIONS;
}

/* Whether tp ranks have different parts of the gradient of a tensor that is not cut: of their rows
 * of the residual with sp, of their heads, or of their features of the experts. --same-bits adds
 * these parts at once. */
static bool is_partial(const struct param_rank *r, const struct tensor *t)
{
    bool is_of_part = t->role == ROLE_Q_NORM || t->role == ROLE_K_NORM || t->role == ROLE_ROUTER;

    return t->placement.dim < 0 && r->spec.tp > 1 && !r->same_bits && (r->spec.sp || is_of_part);
}

/* On the last stage the copy of the embedding is the head; a single stage has both in one unit. */
int param_unit_of(const struct param_rank *r, const struct tensor *t, bool copy)
{
    if (t->layer == LAYER_FIRST && copy)
        return LAYER_LAST;
    if (t->layer == LAYER_LAST && r->spec.pp == 1 && r->ties)
        return LAYER_FIRST;
    return t->layer;
}

/* List the boxes of tensor t that (emulated) tp rank `shard` has. */
static int list_tensor(struct param *out, const struct param_rank *r, const struct tensor *tensors,
                       int t, int shard, bool copy)
{
    const struct tensor *tensor = &tensors[t];
    int parts = tensor->placement.dim < 0 ? 1 : tensor->placement.blocks, n;
    struct spec spec = r->spec;
    struct box boxes[TENSOR_BOXES_MAX];
    struct param q = { .tensor = t,
                       .layer = tensor->layer,
                       .shard = shard,
                       .unit = param_unit_of(r, tensor, copy),
                       .type = is_always_fp32(tensor->role) ? DTYPE_F32 : r->dtype,
                       .decay = tensor->ndim >= 2,
                       .summed = is_always_fp32(tensor->role) || tensor->role == ROLE_EMBEDDING,
                       .copy = copy,
                       .is_expert = layout_ep_of(&r->spec, tensor) >= 0,
                       .partial = is_partial(r, tensor),
                       .after = tensor->layer == LAYER_LAST,
                       .shared = tensor->placement.replicate };

    spec.tp = r->n_virtual;
    n = layout_tp_boxes(tensor, &spec, shard, boxes);
    q.counted = layout_first_holder(tensor, &spec, shard) == shard && !copy;
    for (q.part = 0; q.part < parts; q.part++) {
        q.box = (struct box){ .ndim = tensor->ndim };
        if (q.part < n)
            q.box = boxes[q.part];
        q.n = q.part < n ? box_elements(&q.box) : 0;
        q.joins = q.part > 0 || joins_previous(tensors, t);
        out[q.part] = q;
    }
    return parts;
}

int param_list_shard(struct param out[PARAM_SHARD_MAX], const struct param_rank *r,
                     const struct tensor *tensors, int first, int n, int shard, bool copy)
{
    int listed = 0;

    for (int t = first; t < first + n; t++)
        listed += list_tensor(out + listed, r, tensors, t, shard, copy);
    out[0].begins_group = shard == r->tp * r->n_shards;
    return listed;
}

/* The part of the entry that is in the owner's boxes. These boxes are disjoint rows of the fused
 * parts of a tensor, and an entry is within one part. So it overlaps at most one box, in whole
 * rows. */
struct param_partition param_piece(const struct param_rank *r, const struct tensor *t,
                                   const struct param *q, int owner)
{
    struct box boxes[TENSOR_BOXES_MAX], meet;
    struct param_partition piece = { .box = q->box, .from = q->at, .n = q->n };
    int n, owners = param_owners(r, q->is_expert);

    if (owners == 1 || !q->n)
        return piece;
    n = layout_owned_boxes(t, &r->spec, r->tp, (struct layout_owner){ owner, owners }, boxes);
    piece.n = 0;
    for (int i = 0; i < n; i++)
        if (box_meet(&meet, &q->box, &boxes[i])) {
            piece.box = meet;
            piece.n = box_elements(&meet);
            piece.from += box_offset_in(&q->box, &meet);
        }
    return piece;
}

/* ---- positions of entries ---- */

int64_t param_place(int64_t *end, int64_t n, bool joins)
{
    int64_t at = joins ? *end : (*end + PARAM_GAP - 1) / PARAM_GAP * PARAM_GAP;

    *end = at + n;
    return at;
}

int64_t param_pack(int64_t *end, int64_t n_bytes, bool begins_group)
{
    int64_t at = begins_group ? (*end + 3) / 4 * 4 : *end;

    *end = at + n_bytes;
    return at;
}

bool param_bucket_takes(const struct param_bucket_fill *b, int previous, const struct param *next)
{
    bool is_full = b->n >= PARAM_BUCKET;

    if (next->is_expert != b->is_expert)
        return false;
    if (!next->begins_group || b->is_whole_list)
        return true;
    if (next->layer != previous)
        return previous >= 0 && next->layer >= 0 && b->begins_layer && !is_full;
    return next->layer != b->layer || !is_full;
}
