/* trainer/sizing/param_count.c - see trainer/sizing/param_count.h. */
#include "trainer/sizing/param_count.h"

#include "layout/layout.h"
#include "layout/model_tensors.h"
#include "layout/same_bits.h"

tp_status param_tensors_list(struct param_tensors *out, const struct model *m, struct arena *arena,
                             struct tp_err *err)
{
    struct model one = *m;

    one.layers = 1;
    *out = (struct param_tensors){ .ties = m->tied };
    return model_params(&out->tensors, &out->n, &one, DTYPE_F32, arena, err);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* ---- one unit ---- */

/* A unit while its entries are counted, and its last bucket, which is not closed yet. */
struct unit_count {
    const struct param_rank *rank;
    const struct tensor *tensors;
    struct param_unit unit;
    int64_t bucket_n, bucket_grads, bucket_bytes;
    bool is_expert; /* the bucket is of experts, with ep */
};

static void close_bucket(struct unit_count *c)
{
    struct param_buckets *b = &c->unit.buckets;

    if (c->bucket_n == 0)
        return;
    b->n++;
    b->grads = most(b->grads, c->bucket_grads);
    b->weight_bytes = most(b->weight_bytes, round_up(c->bucket_bytes, 4));
    c->bucket_n = c->bucket_grads = c->bucket_bytes = 0;
}

static void count_entry(struct unit_count *c, const struct param *q)
{
    struct param_unit *u = &c->unit;
    int64_t owned = param_piece(c->rank, &c->tensors[q->tensor], q, 0).n;
    int64_t bytes = owned * dtype_bytes(q->type);

    u->n_entries++;
    u->n += q->n;
    param_place(&u->elements, q->n, q->joins);
    param_place(&u->owned, owned, q->joins);
    if (q->type != c->rank->dtype)
        param_place(&u->vectors, q->n, q->joins);
    if (q->partial) {
        u->partial += q->n;
        u->owned_partial += owned;
    }
    if (q->counted && q->n)
        u->rows += q->box.len[0];
    c->bucket_n += q->n;
    if (q->is_expert) { /* zero3 sends them by themselves, and zero1 does not */
        u->expert_grads += owned;
        param_pack(&u->expert_bytes, bytes, q->begins_group);
        return;
    }
    u->owned_grads += owned;
    param_pack(&u->owned_bytes, bytes, q->begins_group);
    c->bucket_grads += owned;
    param_pack(&c->bucket_bytes, bytes, q->begins_group);
}

/* When ZeRO partitions a tensor that has several shards, another owner's rows may be in more
 * shards than the first owner's. In each shard they begin on a cache line. */
static int64_t owners_gap(const struct param_rank *r, int n_shards)
{
    return r->n_owners > 1 && n_shards > 1 ? (int64_t)n_shards * PARAM_GAP : 0;
}

/* The numbers of the norm are those of all ranks. */
static void count_places(struct unit_count *c, int first, int n)
{
    for (int i = first; i < first + n; i++) {
        const struct placement *p = &c->tensors[i].placement;

        c->unit.places += p->dim < 0 ? 1 : (int64_t)c->rank->n_virtual * p->blocks;
    }
}

static void count_group(struct unit_count *c, int first, int n, bool copy)
{
    const struct tensor *t = &c->tensors[first];
    struct param entries[PARAM_SHARD_MAX];
    bool is_expert = layout_ep_of(&c->rank->spec, t) >= 0;
    int n_shards, shard = param_shards_of(c->rank, t, &n_shards);

    if (c->bucket_n >= PARAM_BUCKET || c->is_expert != is_expert)
        close_bucket(c);
    c->is_expert = is_expert;
    for (int i = 0; i < n_shards; i++) {
        int listed = param_list_shard(entries, c->rank, c->tensors, first, n, shard + i, copy);

        for (int k = 0; k < listed; k++)
            count_entry(c, &entries[k]);
    }
    c->unit.owned += owners_gap(c->rank, n_shards);
    count_places(c, first, n);
    if (t->role == ROLE_EMBEDDING) {
        c->unit.table = c->unit.elements;
        c->unit.owned_table = c->unit.owned;
    }
}

/* The tensors of `layer`; copy: only the embedding's copy on the last stage. */
static struct param_unit count_unit(const struct param_rank *r, const struct tensor *tensors,
                                    int n_tensors, int layer, bool copy)
{
    struct unit_count c = { .rank = r, .tensors = tensors };

    for (int t = 0, n; t < n_tensors; t += n) {
        n = param_group_size(tensors, n_tensors, t);
        if (tensors[t].layer != layer || (copy && !param_is_at_both_ends(r, &tensors[t])))
            continue;
        if (layout_ep_of(&r->spec, &tensors[t]) > 0) /* experts of other ranks */
            count_places(&c, t, n);
        else
            count_group(&c, t, n, copy);
    }
    close_bucket(&c);
    c.unit.elements = round_up(c.unit.elements, PARAM_GAP);
    c.unit.vectors = round_up(c.unit.vectors, PARAM_GAP);
    c.unit.owned = round_up(c.unit.owned, PARAM_GAP);
    c.unit.owned_bytes = round_up(c.unit.owned_bytes, 4);
    c.unit.expert_bytes = round_up(c.unit.expert_bytes, 4);
    return c.unit;
}

struct param_units param_units_count(const struct param_tensors *t, const struct param_rank *r)
{
    const struct tensor *tensors = t->tensors;
    struct tensor cut[ROLE_COUNT]; /* models with more tensors, of experts, have no --same-bits */
    struct param_units u = { .rank = *r };

    if (r->same_bits && t->n <= ROLE_COUNT) {
        for (int i = 0; i < t->n; i++)
            cut[i] = t->tensors[i];
        same_bits_cut_vocabulary(cut, t->n, r->n_virtual);
        tensors = cut;
    }
    u.before = count_unit(r, tensors, t->n, LAYER_FIRST, false);
    u.copy = count_unit(r, tensors, t->n, LAYER_FIRST, true);
    u.layer = count_unit(r, tensors, t->n, 0, false);
    u.after = count_unit(r, tensors, t->n, LAYER_LAST, false);
    return u;
}

/* ---- a rank ---- */

/* A rank's parameters before, in and after the layers. A part that it does not have is empty. */
struct stage_units {
    const struct param_units *units;
    struct param_unit before, layer, after;
    int64_t n_layers;
};

static struct stage_units units_of(const struct param_units *u, const struct param_stage *s)
{
    struct stage_units x = { .units = u, .layer = u->layer, .n_layers = s->n_layers };

    if (s->is_first)
        x.before = u->before;
    else if (s->is_last)
        x.before = u->copy;
    if (s->is_last)
        x.after = u->after;
    return x;
}

static void add_buckets(struct param_buckets *to, const struct param_buckets *b, int64_t times)
{
    to->n += b->n * times;
    to->grads = most(to->grads, b->grads);
    to->weight_bytes = most(to->weight_bytes, b->weight_bytes);
}

/* Buckets of whole layers; the last one may not be full. */
static struct param_buckets layer_buckets(const struct stage_units *x)
{
    const struct param_unit *u = &x->layer;
    int64_t each = ceil_div(PARAM_BUCKET, most(u->n, 1));
    int64_t layers = each < x->n_layers ? each : x->n_layers;

    return (struct param_buckets){ .n = ceil_div(x->n_layers, each),
                                   .grads = layers * u->owned_grads,
                                   .weight_bytes = layers * u->owned_bytes };
}

/* Count the buckets that param_bucket_takes makes. */
static struct param_buckets count_buckets(const struct stage_units *x, bool is_one)
{
    const struct param_unit *a = &x->before, *y = &x->layer, *b = &x->after;
    struct param_buckets all = { 0 }, layers;

    if (is_one)
        return (struct param_buckets){
            .n = 1,
            .grads = a->owned_grads + x->n_layers * y->owned_grads + b->owned_grads,
            .weight_bytes = a->owned_bytes + x->n_layers * y->owned_bytes + b->owned_bytes,
        };
    layers = layer_buckets(x);
    add_buckets(&all, &a->buckets, 1);
    if (y->n < PARAM_BUCKET && x->units->rank.spec.ep <= 1)
        add_buckets(&all, &layers, 1);
    else
        add_buckets(&all, &y->buckets, x->n_layers);
    add_buckets(&all, &b->buckets, 1);
    return all;
}

/* The largest FSDP unit: a layer, or what is before or after the layers. If the head uses the
 * embedding's weights, before and after are one unit: a single stage has these weights, and the
 * last of several stages has a copy. */
static int64_t largest(const struct stage_units *x, int64_t before, int64_t layer, int64_t after)
{
    return most(layer, x->units->rank.ties ? before + after : most(before, after));
}

static void count_zero3(struct param_sizes *z, const struct stage_units *x)
{
    const struct param_unit *a = &x->before, *y = &x->layer, *b = &x->after;
    int64_t owners = x->units->rank.n_owners;
    int64_t bytes = largest(x, a->owned_bytes, y->owned_bytes, b->owned_bytes);

    z->n_elements = largest(x, a->elements, y->elements, b->elements);
    z->n_vectors = largest(x, a->vectors, y->vectors, b->vectors);
    z->n_partial = a->owned_partial + x->n_layers * y->owned_partial + b->owned_partial;
    z->n_packs = 1;
    z->pack_floats = round_up(owners * bytes / 4, PARAM_GAP);
    z->grad_pack_floats = owners * largest(x, a->owned_grads, y->owned_grads, b->owned_grads);
    z->expert_pack_floats = x->units->rank.n_expert_owners * y->expert_bytes / 4;
    z->expert_grad_pack_floats = x->units->rank.n_expert_owners * y->expert_grads;
}

static void count_whole(struct param_sizes *z, const struct stage_units *x)
{
    const struct param_unit *a = &x->before, *y = &x->layer, *b = &x->after;
    bool is_one = a->n + x->n_layers * y->n + b->n < PARAM_BUCKET && x->units->rank.spec.ep <= 1;
    const struct param_buckets buckets = count_buckets(x, is_one);

    z->n_elements = a->elements + x->n_layers * y->elements + b->elements;
    z->n_vectors = a->vectors + x->n_layers * y->vectors + b->vectors;
    z->n_partial = a->partial + x->n_layers * y->partial + b->partial;
    z->is_one_bucket = is_one;
    z->n_packs = buckets.n > 1 || x->units->rank.spec.ep > 1 ? PARAM_PACKS_MAX : 1;
    z->pack_floats = round_up(
        x->units->rank.n_owners * most(buckets.grads, buckets.weight_bytes / 4), PARAM_GAP);
}

struct param_sizes param_sizes_count(const struct param_units *u, const struct param_stage *s)
{
    const struct param_rank *r = &u->rank;
    const struct stage_units x = units_of(u, s);
    const struct param_unit *a = &x.before, *y = &x.layer, *b = &x.after;
    struct param_sizes z = { .rank = *r,
                             .is_sharded = param_rank_is_sharded(r),
                             .is_partitioned = r->n_owners > 1,
                             .n_levels = s->n_levels };

    z.n_entries = a->n_entries + x.n_layers * y->n_entries + b->n_entries;
    z.n_owned = a->owned + x.n_layers * y->owned + b->owned;
    if (z.is_sharded)
        count_zero3(&z, &x);
    else
        count_whole(&z, &x);
    z.n_rows = a->rows + x.n_layers * y->rows + b->rows;
    z.n_places = u->before.places + s->model_layers * u->layer.places + u->after.places;
    if (r->same_bits && r->ties && r->spec.pp == 1)
        z.n_head = z.is_sharded ? u->before.owned_table : u->before.table;
    return z;
}
