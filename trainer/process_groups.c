/* trainer/process_groups.c - see trainer/process_groups.h. */
#include "trainer/process_groups.h"

#include <stdbool.h>

/* The communicators of a pipeline. */
static tp_status make_pipeline(struct process_groups *p, struct tp_err *err)
{
    const struct spec *s = &p->spec;
    const struct mesh_coord *at = &p->at;
    int lane = (at->dp * s->cp + at->cp) * s->tp + at->tp; /* the number of this pipeline */
    bool is_end = at->pp == 0 || at->pp == s->pp - 1;
    tp_status st;

    TP_TRY(comm_split(&p->model, p->world, at->dp * s->cp + at->cp, comm_rank(p->world), err));
    TP_TRY(comm_split(&p->pp_forward, p->world, lane, at->pp, err));
    TP_TRY(comm_split(&p->pp_backward, p->world, lane, at->pp, err));
    TP_TRY(comm_split(&p->embedding_ends, p->world, is_end ? lane : -1, at->pp, err));
done:
    return st;
}

/* Groups of ranks that hold the same parameters, and of ranks that together hold each parameter
 * once. */
static tp_status make_replicas(struct process_groups *p, struct tp_err *err)
{
    const struct spec *s = &p->spec;
    const struct mesh_coord *at = &p->at;
    int part = at->pp * s->tp + at->tp, rank = comm_rank(p->world);
    tp_status st;

    TP_TRY(comm_split(&p->dp, p->world, part * s->cp + at->cp, rank, err));
    TP_TRY(comm_split(&p->cp, p->world, part * s->dp + at->dp, rank, err));
    p->dp_cp = p->dp;
    p->pp_dp_tp = p->world;
    if (s->ep > 1) {
        int lane = at->dp * s->cp + at->cp, replicas = s->dp * s->cp / s->ep;

        TP_TRY(comm_split(&p->ep, p->world, part * replicas + lane / s->ep, lane, err));
        TP_TRY(comm_split(&p->experts, p->world, part * s->ep + lane % s->ep, lane, err));
    }
    if (s->cp > 1) {
        p->dp_cp = p->cp_grads = NULL;
        TP_TRY(comm_split(&p->dp_cp, p->world, part, rank, err));
        TP_TRY(comm_split(&p->cp_grads, p->world, part * s->dp + at->dp, rank, err));
        TP_TRY(comm_split(&p->pp_dp_tp, p->world, at->cp, rank, err));
    }
done:
    return st;
}

tp_status process_groups_make(struct process_groups *out, struct comm_world *ranks,
                              struct device *d, const struct comm_transport *t,
                              const struct layout *l, struct tp_err *err)
{
    struct process_groups p = { .spec = l->spec, .ranks = ranks, .control = comm_control(ranks) };
    int rank = control_rank(p.control), n_tp = l->spec.tp, kv = -1;
    tp_status st;

    TP_TRY(comm_use_device(&p.world, ranks, d, t, err));
    p.at = mesh_coord_of(&l->spec, rank);
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].placement.replicate) {
            kv = layout_first_holder(&l->tensors[i], &l->spec, p.at.tp);
            break;
        }
    TP_TRY(comm_split(&p.tp, p.world, rank / n_tp, p.at.tp, err));
    TP_TRY(make_replicas(&p, err));
    TP_TRY(comm_split(&p.kv, p.tp, kv, p.at.tp, err));
    if (p.kv && comm_size(p.kv) == 1) {
        comm_free(p.kv);
        p.kv = NULL;
    }
    p.model = p.tp;
    if (l->spec.pp > 1)
        TP_TRY(make_pipeline(&p, err));
    *out = p;
    return TP_OK;
done:
    process_groups_free(&p);
    return st;
}

void process_groups_free(struct process_groups *p)
{
    struct comm *const all[] = { p->model == p->tp ? NULL : p->model,
                                 p->pp_dp_tp == p->world ? NULL : p->pp_dp_tp,
                                 p->dp_cp == p->dp ? NULL : p->dp_cp,
                                 p->cp_grads,
                                 p->ep,
                                 p->experts,
                                 p->pp_forward,
                                 p->pp_backward,
                                 p->embedding_ends,
                                 p->kv,
                                 p->dp,
                                 p->cp,
                                 p->tp,
                                 p->world };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        comm_free(all[i]);
    *p = (struct process_groups){
        .spec = p->spec, .at = p->at, .ranks = p->ranks, .control = p->control
    };
}
