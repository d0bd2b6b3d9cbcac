/* trainer/step.c - see trainer/step.h. */
#include "trainer/step.h"

#include "trainer/loss_tp.h"
#include "trainer/optimizer.h"
#include "trainer/schedule_lr.h"
#include "trainer/stage.h"

static struct pass pass_of(const struct trainer *t, int64_t micro)
{
    return (struct pass){ .net = &t->net,
                          .scratch = &t->scratch,
                          .sequences = t->config->micro,
                          .rows = t->config->micro * t->config->seq,
                          .add = micro > 0 };
}

tp_status step_forward(struct trainer *t, int64_t micro, struct tp_err *err)
{
    const struct train_config *c = t->config;
    struct pass p = pass_of(t, micro);
    int64_t share = c->batch / c->spec.dp;
    int64_t first = t->position.next_sample + t->parallel.at.dp * share + micro * c->micro;

    data_fetch(&t->data, first, c->micro, t->slot.ids, t->slot.targets);
    return stage_forward(&p, &t->slot, err);
}

static tp_status run_micro(struct trainer *t, int64_t micro, double *loss, struct tp_err *err)
{
    struct pass p = pass_of(t, micro);
    float scale = (float)(1 / (double)(t->config->batch * t->config->seq));
    double total;
    tp_status st;

    TP_TRY(step_forward(t, micro, err));
    TP_TRY(loss_tp_forward(&p, &t->slot, &total, err));
    *loss += total;
    TP_TRY(loss_tp_backward(&p, &t->slot, scale, err));
    TP_TRY(stage_backward(&p, &t->slot, err));
done:
    return st;
}

tp_status step_run(struct trainer *t, struct step_result *r, struct tp_err *err)
{
    const struct train_config *c = t->config;
    struct position *at = &t->position;
    double loss = 0;
    tp_status st;

    stage_clear_gradients(&t->net);
    for (int64_t i = 0; i < train_config_micros(c); i++)
        TP_TRY(run_micro(t, i, &loss, err));
    TP_TRY(optimizer_reduce(&t->params, &t->parallel, err));
    TP_TRY(optimizer_norm(&r->grad_norm, &t->params, &t->parallel, err));
    r->lr = schedule_lr(&c->opt, at->step, c->steps);
    optimizer_update(&t->params, &c->opt, at->step, r->lr, r->grad_norm);
    /* tp ranks all know their replica's loss: one of them speaks for it */
    r->loss_share = t->parallel.at.tp == 0 ? loss / (double)(c->batch * c->seq) : 0;
    at->step++;
    at->next_sample += c->batch;
    at->tokens += c->batch * c->seq;
done:
    return st;
}
