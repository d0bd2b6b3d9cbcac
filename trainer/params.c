/* trainer/params.c - see trainer/params.h. */
#include "trainer/params.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/cast.h"
#include "layout/memory.h"
#include "trainer/parallel.h"

enum { GAP_ELEMENTS = 16 }; /* tensors start on cache lines */

/* Whether tensor t goes straight behind the one before it: they are one matrix to the products. */
static bool joins_previous(const struct layout *l, int t)
{
    enum role before = t > 0 ? l->tensors[t - 1].role : ROLE_NONE;

    switch (l->tensors[t].role) {
    case ROLE_K:
        return before == ROLE_Q;
    case ROLE_V:
        return before == ROLE_K;
    case ROLE_UP:
        return before == ROLE_GATE;
    default:
        return false;
    }
}

/* Entries that a rank has of tensor t: one a part, none when it is another stage's. */
static int parts_of(const struct layout *l, int t, int rank)
{
    const struct tensor *tensor = &l->tensors[t];

    if (!layout_holds(l, t, rank))
        return 0;
    return tensor->rule.dim < 0 ? 1 : tensor->rule.blocks;
}

static tp_status add_entry(struct params *p, const struct layout *l, const struct param *entry,
                           bool joins, struct tp_err *err)
{
    struct param *q = &p->list[p->n++];

    *q = *entry;
    if (!joins)
        p->n_elements = (p->n_elements + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    q->at = p->n_elements;
    if (__builtin_add_overflow(p->n_elements, q->n, &p->n_elements))
        return tp_fail(err, TP_E_LAYOUT, "%s: too many parameters", l->tensors[q->tensor].name);
    return TP_OK;
}

/* The boxes of tensor t that tensor parallelism gives to (virtual) tp rank `shard`. */
static tp_status add(struct params *p, const struct layout *l, int t, int shard, int parts,
                     bool joins, bool copy, struct tp_err *err)
{
    const struct tensor *tensor = &l->tensors[t];
    struct spec spec = l->spec;
    struct box boxes[TENSOR_BOXES_MAX];
    struct param q = { .tensor = t,
                       .shard = shard,
                       .decay = tensor->ndim >= 2,
                       .copy = copy,
                       .partial =
                           l->spec.sp && l->spec.tp > 1 && tensor->rule.dim < 0 && !p->same_bits,
                       .shared = tensor->rule.share };
    tp_status st;
    int n;

    spec.tp = p->n_virtual;
    n = layout_tp_boxes(tensor, &spec, shard, boxes);
    q.counted = parallel_first_holder(tensor, &spec, shard) == shard && !copy;
    for (q.part = 0; q.part < parts; q.part++) {
        q.box = (struct box){ .ndim = tensor->ndim };
        if (q.part < n)
            q.box = boxes[q.part];
        q.n = q.part < n ? box_elements(&q.box) : 0;
        p->n_partial += q.partial ? q.n : 0;
        if ((st = add_entry(p, l, &q, q.part > 0 || joins, err)))
            return st;
    }
    return TP_OK;
}

/* Tensors first .. first + n - 1, which are one matrix to the products, shard by shard. */
static tp_status add_group(struct params *p, const struct layout *l, int first, int n, int rank,
                           bool copy, struct tp_err *err)
{
    int first_shard = mesh_coord_of(&l->spec, rank).tp * p->n_shards;
    int shards = l->tensors[first].rule.dim < 0 ? 1 : p->n_shards;
    tp_status st = TP_OK;

    for (int s = first_shard; s < first_shard + shards && !st; s++)
        for (int t = first; t < first + n && !st; t++)
            st = add(p, l, t, s, copy ? 1 : parts_of(l, t, rank), t > first, copy, err);
    return st;
}

/* Whether tensor t is an embedding that is the head too. Pipelines put it at both ends: the first
 * stage owns it, the last has a copy. */
static bool is_tied(const struct layout *l, int t)
{
    if (l->tensors[t].role != ROLE_EMBEDDING)
        return false;
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].role == ROLE_HEAD)
            return false;
    return true;
}

/* The rows of entry q that dp rank `owner` updates: what the entry has of the owner's boxes. Those
 * are disjoint rows of the fused parts of a tensor, and an entry lies within one part, so it meets
 * at most one, in whole rows of its own. `to` is behind what the owner has already. */
static struct piece piece_of(const struct params *p, const struct param *q, const struct layout *l,
                             int tp_rank, int owner, int64_t *to)
{
    struct box boxes[TENSOR_BOXES_MAX], meet;
    struct piece piece = { .box = q->box, .from = q->at, .n = q->n, .to = *to };

    if (p->n_owners > 1 && q->n) {
        int n = layout_dp_boxes(&l->tensors[q->tensor], &l->spec, tp_rank, owner, boxes);

        piece.n = 0;
        for (int i = 0; i < n; i++)
            if (box_meet(&meet, &q->box, &boxes[i])) {
                piece.box = meet;
                piece.n = box_elements(&meet);
                piece.from += box_offset_in(&q->box, &meet);
            }
    }
    *to += (piece.n + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    return piece;
}

/* Close a bucket once it has MEMORY_BUCKET elements, and lay out its owners' parts. */
static void fill_buckets(struct params *p)
{
    for (int first = 0; first < p->n;) {
        struct bucket *b = &p->buckets[p->n_buckets++];
        int64_t sum = 0;

        *b = (struct bucket){ .first = first };
        while (first < p->n && sum < MEMORY_BUCKET) {
            sum += p->list[first++].n;
            b->n++;
        }
        for (int owner = 0; owner < p->n_owners; owner++) {
            int64_t at = 0;

            for (int i = b->first; i < b->first + b->n; i++) {
                struct piece *x = &p->pieces[owner * p->n + i];

                x->packed = at;
                at += x->n;
            }
            b->each = at > b->each ? at : b->each;
        }
    }
}

static int64_t largest_bucket(const struct params *p)
{
    int64_t largest = 0;

    for (int i = 0; i < p->n_buckets; i++)
        largest = p->buckets[i].each > largest ? p->buckets[i].each : largest;
    return largest;
}

static tp_status deal_pieces(struct params *p, const struct layout *l, struct mesh_coord at,
                             struct arena *arena, struct tp_err *err)
{
    p->n_owners = l->spec.zero ? l->spec.dp : 1;
    p->pieces = arena_array(arena, (size_t)p->n_owners * (size_t)p->n + 1, sizeof *p->pieces);
    p->buckets = arena_array(arena, (size_t)p->n + 1, sizeof *p->buckets);
    if (!p->pieces || !p->buckets)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int owner = 0; owner < p->n_owners; owner++) {
        int64_t to = 0;

        for (int i = 0; i < p->n; i++)
            p->pieces[owner * p->n + i] = piece_of(p, &p->list[i], l, at.tp, owner, &to);
        if (to > p->n_moments)
            p->n_moments = to;
    }
    if (p->n_owners > 1)
        fill_buckets(p);
    for (int i = 0; i < p->n; i++)
        p->list[i].own = p->pieces[(p->n_owners > 1 ? at.dp : 0) * p->n + i];
    return TP_OK;
}

/* Tensors from t on that are one matrix to the products. */
static int group_size(const struct layout *l, int t)
{
    int n = 1;

    while (t + n < l->n_tensors && joins_previous(l, t + n))
        n++;
    return n;
}

/* A tied embedding is the head too: another stage's, or this one's. */
static void note_tied(struct params *p, const struct layout *l, int first, int same_bits)
{
    const struct param *q = &p->list[first];
    struct range table = { q->at, p->n_elements - q->at };

    if (l->spec.pp > 1)
        p->tied = table;
    else if (same_bits)
        p->head.n = table.n;
}

static tp_status list_entries(struct params *p, const struct layout *l, int rank, int same_bits,
                              struct tp_err *err)
{
    bool last = mesh_coord_of(&l->spec, rank).pp == l->spec.pp - 1;
    tp_status st = TP_OK;

    for (int t = 0, n; t < l->n_tensors && !st; t += n) {
        bool tied = is_tied(l, t), copy = tied && l->spec.pp > 1 && last;
        int first = p->n;

        n = group_size(l, t);
        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0 || !(copy || layout_holds(l, t, rank)))
            continue;
        st = add_group(p, l, t, n, rank, copy, err);
        if (tied && !st)
            note_tied(p, l, first, same_bits);
    }
    return st;
}

static int64_t round_up(int64_t n)
{
    return (n + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
}

/* Give every entry its rows and its number of the gradient norm: the same at every layout. */
static void number_places(struct params *p, const struct layout *l)
{
    for (int t = 0; t < l->n_tensors; t++) {
        const struct tensor *tensor = &l->tensors[t];

        if (strcmp(tensor->group, GROUP_PARAM) != 0)
            continue;
        for (int i = 0; i < p->n; i++)
            if (p->list[i].tensor == t)
                p->list[i].place =
                    p->n_places +
                    (tensor->rule.dim < 0 ? 0 : p->list[i].shard) * tensor->rule.blocks +
                    p->list[i].part;
        p->n_places += tensor->rule.dim < 0 ? 1 : p->n_virtual * tensor->rule.blocks;
    }
    for (int i = 0; i < p->n; i++) {
        p->list[i].row = p->n_rows;
        if (p->list[i].counted && p->list[i].n)
            p->n_rows += p->list[i].box.len[0];
    }
}

tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      int same_bits, struct arena *arena, struct tp_err *err)
{
    tp_status st;
    size_t most = 0;

    *p = (struct params){ .dtype = dtype,
                          .same_bits = same_bits > 0,
                          .n_virtual = same_bits ? same_bits : l->spec.tp };
    p->n_shards = p->n_virtual / l->spec.tp;
    for (int t = 0; t < l->n_tensors; t++)
        most += (size_t)l->tensors[t].rule.blocks * (size_t)p->n_shards;
    p->list = arena_array(arena, most, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    if ((st = list_entries(p, l, rank, same_bits, err)))
        return st;
    p->n_elements = round_up(p->n_elements);
    p->head.at = p->n_elements;
    number_places(p, l);
    return deal_pieces(p, l, mesh_coord_of(&l->spec, rank), arena, err);
}

void params_take(struct params *p, struct span *shared, struct span *own)
{
    p->grad = span_take(shared, p->n_elements + p->head.n, sizeof(float));
    p->fold.grad = p->grad;
    for (int i = 0; i < p->fold.levels; i++)
        p->fold.level[i] = span_take(own, p->n_elements + p->head.n, sizeof(float));
    if (p->same_bits) {
        p->places = span_take(shared, p->n_places, sizeof(double));
        p->rows = span_take(shared, p->n_rows, sizeof(double));
    }
    if (p->n_partial)
        p->partial = span_take(shared, p->n_partial, sizeof(float));
    p->value = span_take(own, p->n_elements, sizeof(float));
    p->exp_avg = span_take(own, p->n_moments, sizeof(float));
    p->exp_avg_sq = span_take(own, p->n_moments, sizeof(float));
    if (p->n_owners > 1)
        p->pack = span_take(shared, p->n_owners * largest_bucket(p), sizeof(float));
    if (p->dtype == DTYPE_BF16)
        p->value_bf16 = span_take(own, p->n_elements, sizeof(uint16_t));
}

int params_find(const struct params *p, const struct layout *l, enum role role, int layer)
{
    for (int i = 0; i < p->n; i++) {
        const struct tensor *t = &l->tensors[p->list[i].tensor];

        if (t->role == role && t->layer == layer)
            return i;
    }
    return -1;
}

int params_twin(const struct params *p, int i)
{
    const struct param *q = &p->list[i];
    int k = 0;

    while (k < i && (p->list[k].tensor != q->tensor || !box_equal(&p->list[k].box, &q->box)))
        k++;
    return k;
}

static void copy(float *to, const float *from, int64_t n)
{
    if (n)
        memcpy(to, from, (size_t)n * sizeof *to);
}

void params_copy_twins(const struct params *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i], *x = &p->list[params_twin(p, i)];

        if (x == q || q->n == 0)
            continue;
        copy(p->value + q->at, p->value + x->at, q->n);
        copy(p->exp_avg + q->own.to, p->exp_avg + x->own.to, q->own.n);
        copy(p->exp_avg_sq + q->own.to, p->exp_avg_sq + x->own.to, q->own.n);
    }
}

int64_t params_stride(const struct params *p, int i)
{
    const struct param *q = &p->list[i];

    for (int k = i + 1; k < p->n; k++)
        if (p->list[k].tensor == q->tensor && p->list[k].shard == q->shard + 1)
            return p->list[k].at - q->at;
    return 0;
}

const void *params_operand(const struct params *p, int64_t at)
{
    if (p->dtype == DTYPE_BF16)
        return p->value_bf16 + at;
    return p->value + at;
}

void params_round(struct params *p)
{
    if (p->value_bf16)
        cast(p->value_bf16, DTYPE_BF16, p->value, DTYPE_F32, p->n_elements);
}

void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype)
{
    const struct param *q = &p->list[i];

    *dtype = DTYPE_F32;
    *within = q->box;
    if (!strcmp(group, p->dtype == DTYPE_BF16 ? GROUP_MASTER : GROUP_PARAM))
        return p->value + q->at;
    if (!strcmp(group, GROUP_PARAM)) {
        *dtype = DTYPE_BF16;
        return p->value_bf16 + q->at;
    }
    *within = q->own.box;
    if (q->own.n == 0)
        return NULL;
    if (!strcmp(group, GROUP_EXP_AVG))
        return p->exp_avg + q->own.to;
    return strcmp(group, GROUP_EXP_AVG_SQ) ? NULL : p->exp_avg_sq + q->own.to;
}
