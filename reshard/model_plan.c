/* reshard/model_plan.c - see reshard/model_plan.h. */
#include "reshard/model_plan.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "layout/model_tensors.h"
#include "layout/stored_box.h"
#include "reshard/formats/foreign_model.h"

/* What happens to the tensors of one kind, and the bytes of each. */
struct model_plan_kind {
    const struct tensor *from, *to; /* the first of them */
    struct transfer_tensor_stats tensor;
    struct transfer_stats all;
};

struct model_plan {
    const struct reshard_request *request;
    struct layout from, to;
    struct model_plan_kind *kinds; /* [n_kinds] */
    int n_kinds;
    struct transfer_tensor_stats *stats; /* [tensors] */
};

/* ---- layouts ---- */

/* The tensors of both layouts: those that are kept, and the same with the types of the target. */
static tp_status make_tensors(struct tensor *tensors[2], int *n, const char *path,
                              const struct reshard_request *q, int *layers, struct arena *arena,
                              struct tp_err *err)
{
    struct model model;
    int kept = 0;
    tp_status st;

    TP_TRY(foreign_model_config(&model, path, false, arena, err));
    *layers = model.layers;
    TP_TRY(model_state(&tensors[0], n, &model, DTYPE_BF16, arena, err));
    for (int i = 0; i < *n; i++)
        if (!q->no_optim || strcmp(tensors[0][i].group, GROUP_PARAM) == 0)
            tensors[0][kept++] = tensors[0][i];
    *n = kept;
    tensors[1] = arena_array(arena, (size_t)kept, sizeof *tensors[1]);
    if (!tensors[1])
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < kept; i++) {
        tensors[1][i] = tensors[0][i];
        if (q->dtype && strcmp(tensors[1][i].group, GROUP_PARAM) == 0)
            tensors[1][i].dtype = *q->dtype;
    }
done:
    return st;
}

static tp_status make_layouts(struct model_plan *p, const char *model, struct reshard_report *r,
                              struct tp_err *err)
{
    const struct reshard_request *q = p->request;
    struct tensor *tensors[2];
    int n = 0, layers = 0;
    tp_status st;

    if (spec_parse(&r->from, q->from, err))
        return tp_fail_in(err, "--from");
    if (spec_parse(&r->to, q->to, err))
        return tp_fail_in(err, "--to");
    r->kept = spec_kept(&r->to, &r->from);
    spec_fill(&r->to, &r->from);
    TP_TRY(make_tensors(tensors, &n, model, q, &layers, &r->arena, err));
    TP_TRY(layout_make(&p->from, &r->from, layers, tensors[0], n, &r->arena, err));
    TP_TRY(layout_make(&p->to, &r->to, layers, tensors[1], n, &r->arena, err));
    p->kinds = arena_array(&r->arena, (size_t)n + 1, sizeof *p->kinds);
    p->stats = arena_array(&r->arena, (size_t)n + 1, sizeof *p->stats);
    if (!p->kinds || !p->stats)
        st = tp_fail(err, TP_E_NOMEM, "no memory for a plan");
done:
    return st;
}

/* ---- one kind ---- */

/* Whether the same happens to two tensors, layers apart. */
static bool same_kind(const struct model_plan *p, const struct tensor *a, const struct tensor *b)
{
    const struct placement *x = &a->placement, *y = &b->placement;

    return tensor_same_shape(a, b) && a->dtype == b->dtype && x->dim == y->dim &&
           x->unit == y->unit && x->blocks == y->blocks && x->replicate == y->replicate &&
           x->uneven == y->uneven &&
           layout_owners(&p->from.spec, a) == layout_owners(&p->from.spec, b) &&
           layout_owners(&p->to.spec, a) == layout_owners(&p->to.spec, b);
}

/* Plan a transfer of the one tensor that both layouts have. */
static tp_status plan_tensor(struct model_plan_kind *k, const struct layout *from,
                             const struct layout *to, const struct reshard_request *q,
                             struct tp_err *err)
{
    struct reshard_tensor tensor = { .name = to->tensors[0].name, .ndim = to->tensors[0].ndim };
    struct transfer t = {
        .n_tensors = 1, .tensors = &tensor, .memory_bytes = q->memory_bytes, .threads = q->threads
    };
    struct checkpoint_target *source = NULL, *target = NULL; /* the extents of a source to be */
    struct transfer_plan *plan = NULL;
    tp_status st;

    memcpy(tensor.shape, to->tensors[0].shape, sizeof tensor.shape);
    TP_TRY(checkpoint_target_plan(&source, from, NULL, err));
    TP_TRY(checkpoint_target_plan(&target, to, NULL, err));
    t.from = checkpoint_target_endpoint(source);
    t.to = checkpoint_target_endpoint(target);
    TP_TRY(transfer_plan_make(&plan, &t, err));
    transfer_plan_stats(plan, &k->all);
    st = transfer_plan_tensors(plan, &k->tensor, err);
done:
    transfer_plan_free(plan);
    checkpoint_target_close(source);
    checkpoint_target_close(target);
    return st;
}

/* The kind of tensor i; planned when it is the first of its kind. */
static tp_status find_kind(const struct model_plan_kind **out, struct model_plan *p, int i,
                           struct tp_err *err)
{
    struct layout from = p->from, to = p->to;
    struct model_plan_kind *k = p->kinds;
    tp_status st = TP_OK;

    while (k < p->kinds + p->n_kinds &&
           !(same_kind(p, k->from, &p->from.tensors[i]) && k->to->dtype == p->to.tensors[i].dtype))
        k++;
    if (k == p->kinds + p->n_kinds) {
        from.tensors = &p->from.tensors[i];
        to.tensors = &p->to.tensors[i];
        from.n_tensors = to.n_tensors = 1;
        k->from = from.tensors;
        k->to = to.tensors;
        st = plan_tensor(k, &from, &to, p->request, err);
        p->n_kinds++;
    }
    *out = k;
    return st;
}

/* ---- all ---- */

static void add(struct reshard_report *r, const struct model_plan_kind *k)
{
    struct transfer_stats *all = &r->planned;

    r->boxes_from += k->tensor.from;
    r->boxes_to += k->tensor.to;
    all->bytes_read += k->all.bytes_read;
    all->bytes_written += k->all.bytes_written;
    all->bytes_wanted += k->all.bytes_wanted;
    all->tiles += k->all.tiles;
    all->splits += k->all.splits;
    all->merges += k->all.merges;
    all->copies += k->all.copies;
    if (k->all.buffer_bytes > all->buffer_bytes)
        all->buffer_bytes = k->all.buffer_bytes;
}

static tp_status plan_all(struct model_plan *p, struct reshard_report *r, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->to.n_tensors; i++) {
        const struct model_plan_kind *k = NULL;

        TP_TRY(find_kind(&k, p, i, err));
        p->stats[i] = k->tensor;
        add(r, k);
    }
    r->rank_bytes = arena_array(&r->arena, (size_t)spec_world(&p->to.spec), sizeof *r->rank_bytes);
    if (!r->rank_bytes)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    TP_TRY(stored_box_rank_bytes(r->rank_bytes, &p->to, err));
    TP_TRY(reshard_kinds_list(&r->kinds, &r->n_kinds, &p->to, p->stats, &r->arena, err));
done:
    return st;
}

tp_status model_plan_make(struct reshard_report *report, const char *model,
                          const struct reshard_request *q, struct tp_err *err)
{
    struct reshard_report r = { .step = -1, .processes = 1 };
    struct model_plan p = { .request = q };
    double start = clock_seconds();
    tp_status st;

    snprintf(r.dir, sizeof r.dir, "%s", model);
    TP_TRY(make_layouts(&p, model, &r, err));
    TP_TRY(plan_all(&p, &r, err));
    r.n_tensors = p.to.n_tensors;
    r.bytes_read = r.planned.bytes_read;
    r.bytes_written = r.planned.bytes_written;
    r.tiles = r.planned.tiles;
    r.peak_bytes = r.planned.buffer_bytes;
    r.seconds = clock_seconds() - start;
done:
    *report = r; /* also after a failure: the caller frees its arena */
    return st;
}
