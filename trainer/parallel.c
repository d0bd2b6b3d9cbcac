/* trainer/parallel.c - see trainer/parallel.h. */
#include "trainer/parallel.h"

#include <stdbool.h>

static bool same_part(const struct tensor *t, const struct spec *s, int a, int b)
{
    struct box x[TENSOR_BOXES_MAX], y[TENSOR_BOXES_MAX];
    int n = layout_tp_boxes(t, s, a, x);

    if (n != layout_tp_boxes(t, s, b, y))
        return false;
    for (int i = 0; i < n; i++)
        if (!box_equal(&x[i], &y[i]))
            return false;
    return n > 0;
}

int parallel_first_holder(const struct tensor *t, const struct spec *s, int tp_rank)
{
    while (tp_rank > 0 && same_part(t, s, tp_rank - 1, tp_rank))
        tp_rank--;
    return tp_rank;
}

tp_status parallel_make(struct parallel *out, struct comm *world, const struct layout *l,
                        struct tp_err *err)
{
    struct parallel p = { .spec = l->spec, .world = world };
    int rank = comm_rank(world), n_tp = l->spec.tp, kv = -1;
    tp_status st;

    p.at = mesh_coord_of(&l->spec, rank);
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].rule.share) {
            kv = parallel_first_holder(&l->tensors[i], &l->spec, p.at.tp);
            break;
        }
    TP_TRY(comm_split(&p.tp, world, rank / n_tp, p.at.tp, err));
    TP_TRY(comm_split(&p.dp, world, p.at.pp * n_tp + p.at.tp, p.at.dp, err));
    TP_TRY(comm_split(&p.kv, p.tp, kv, p.at.tp, err));
    if (p.kv && comm_size(p.kv) == 1) {
        comm_free(p.kv);
        p.kv = NULL;
    }
    *out = p;
    return TP_OK;
done:
    parallel_free(&p);
    return st;
}

void parallel_free(struct parallel *p)
{
    if (p->kv)
        comm_free(p->kv);
    if (p->dp)
        comm_free(p->dp);
    if (p->tp)
        comm_free(p->tp);
    p->kv = p->dp = p->tp = NULL;
}
