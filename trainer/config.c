/* trainer/config.c - see trainer/config.h. */
#include "trainer/config.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "layout/workload_check.h"

struct train_config train_config_default(void)
{
    const struct workload w = workload_default();

    return (struct train_config){
        .spec = spec_default(),
        .exit_step = -1,
        .step = -1,
        .seq_length = w.seq_length,
        .global_batch_size = w.global_batch_size,
        .seed = 1234,
        .cuda_graphs = true,
        .dtype = w.dtype,
        .opt = { .lr = 1e-3,
                 .min_lr = 1e-4,
                 .beta1 = 0.9,
                 .beta2 = 0.95,
                 .eps = 1e-8,
                 .weight_decay = 0.1,
                 .clip = 1.0,
                 .warmup = 5 },
    };
}

struct workload train_config_work(const struct train_config *c)
{
    return (struct workload){ .dtype = c->dtype,
                              .seq_length = c->seq_length,
                              .global_batch_size = c->global_batch_size,
                              .micro_batch_size = c->micro_batch_size,
                              .recompute = c->recompute,
                              .threads = c->threads,
                              .same_bits = c->same_bits };
}

int64_t train_config_micros(const struct train_config *c)
{
    return c->global_batch_size / c->spec.dp / c->micro_batch_size;
}

int64_t train_config_sequence(const struct train_config *c, int dp_rank, int64_t micro)
{
    if (c->same_bits && c->spec.zero == 3)
        return (micro * c->spec.dp + dp_rank) * c->micro_batch_size;
    return c->global_batch_size / c->spec.dp * dp_rank + micro * c->micro_batch_size;
}

/* The optimizer computes in fp32, where a number beyond FLT_MAX is infinite. */
static tp_status check_range(const struct train_optimizer *o, struct tp_err *err)
{
    const struct {
        const char *option;
        double value;
    } numbers[] = { { "--lr", o->lr },
                    { "--min-lr", o->min_lr },
                    { "--eps", o->eps },
                    { "--weight-decay", o->weight_decay },
                    { "--clip", o->clip } };
    const double most_lr = fmax(o->lr, o->min_lr);

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value > FLT_MAX)
            return tp_fail(err, TP_E_USAGE, "%s %g is too large: fp32 ends at %g",
                           numbers[i].option, numbers[i].value, (double)FLT_MAX);
    if (most_lr / (1 - o->beta1) > FLT_MAX || most_lr * o->weight_decay > FLT_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "the learning rate %g is too large: divided by (1 - --beta1 %g), or times "
                       "--weight-decay %g, it is more than fp32 can hold, %g",
                       most_lr, o->beta1, o->weight_decay, (double)FLT_MAX);
    return TP_OK;
}

static bool is_beta(double beta)
{
    return beta >= 0 && (float)beta < 1;
}

static tp_status check_optimizer(const struct train_optimizer *o, struct tp_err *err)
{
    if (o->lr < 0 || o->min_lr < 0)
        return tp_fail(err, TP_E_USAGE, "--lr %g and --min-lr %g must not be negative", o->lr,
                       o->min_lr);
    if (!is_beta(o->beta1) || !is_beta(o->beta2))
        return tp_fail(err, TP_E_USAGE, "--beta1 %.15g and --beta2 %.15g must be in [0, 1) in fp32",
                       o->beta1, o->beta2);
    if (!((float)o->eps > 0)) /* with 0, what has no gradient would be divided by 0 */
        return tp_fail(err, TP_E_USAGE, "--eps %g must be more than 0 in fp32", o->eps);
    if (o->weight_decay < 0 || o->clip < 0)
        return tp_fail(err, TP_E_USAGE, "--weight-decay %g and --clip %g must not be negative",
                       o->weight_decay, o->clip);
    return check_range(o, err);
}

/* Check by the rules of layout/workload_check.h, and fill in its microbatch if none is given. */
static tp_status check_work(struct train_config *c, const struct model *m, struct tp_err *err)
{
    const struct workload w = train_config_work(c);
    tp_status st;

    if ((st = workload_check_run(&w, m, err)) || (st = workload_check_mesh(&w, &c->spec, m, err)) ||
        (st = workload_check_micro(&w, &c->spec, err)))
        return st;
    c->micro_batch_size = workload_micro(&w, &c->spec);
    return TP_OK;
}

tp_status train_config_check(struct train_config *c, const struct model *m, struct tp_err *err)
{
    tp_status st;

    if (c->steps < 1)
        return tp_fail(err, TP_E_USAGE, "--steps must be at least 1 (steps of the whole run)");
    if (!c->ckpt &&
        (c->resume != RESUME_NO || c->save_every || c->keep || c->exit_step >= 0 || c->ckpt_zstd))
        return tp_fail(err, TP_E_USAGE,
                       "--resume, --save-every, --keep, --exit-step and --ckpt-zstd need --ckpt "
                       "ROOT, the folder of the checkpoints");
    if (c->exit_step == 0)
        return tp_fail(
            err, TP_E_USAGE,
            "--exit-step 0 stops after no step: give 1 or more, or leave it out to train "
            "to --steps %lld",
            (long long)c->steps);
    if (c->resume == RESUME_NO && (c->step >= 0 || c->reset_optim))
        return tp_fail(err, TP_E_USAGE,
                       "%s needs --resume, because it says how to load the checkpoint",
                       c->reset_optim ? "--reset-optim" : "--step");
    if ((st = check_optimizer(&c->opt, err)))
        return st;
    return check_work(c, m, err);
}
