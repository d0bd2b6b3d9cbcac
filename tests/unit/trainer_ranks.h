/*
 * tests/unit/trainer_ranks.h - run a function in the ranks of a training run, each with an open
 * trainer on the CPU device.
 */
#ifndef TESTS_UNIT_TRAINER_RANKS_H
#define TESTS_UNIT_TRAINER_RANKS_H

#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/ranks.h"
#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/model/weight_init.h"
#include "trainer/trainer.h"

struct trainer_ranks {
    const struct train_config *config;
    const struct model *model;
    int (*fn)(struct trainer *t, void *ctx); /* returns the number of things that are wrong */
    void *ctx;
};

/* In a rank: open a trainer with random weights of seed 1 and call the function. */
static inline int run_trainer(struct comm_world *ranks, void *ctx)
{
    const struct trainer_ranks *r = ctx;
    const struct cpu_options options = { .threads = r->config->threads,
                                         .no_comm_thread = !comm_has_threads(ranks) };
    struct trainer_device d = { .ops = &kernels_cpu };
    struct trainer t;
    struct tp_err err = { 0 };
    int wrong = 0;

    if (cpu_device_open(&d.device, &options, &err) ||
        trainer_open(&t, r->config, r->model, &d, ranks, &err))
        return wrong_unless(0, err.msg);
    wrong +=
        wrong_unless(weight_init(&t.params, &t.layout, r->model, 1, 2, &err) == TP_OK, err.msg);
    bucket_transfer_start_weights(&t.weights);
    wrong += r->fn(&t, r->ctx);
    trainer_close(&t);
    device_close(d.device);
    return wrong;
}

/* Run fn in every rank of c, which train_config_check has accepted. Returns as run_ranks does. */
static inline int run_trainers(const struct train_config *c, const struct model *m,
                               int (*fn)(struct trainer *t, void *ctx), void *ctx)
{
    struct trainer_ranks r = { c, m, fn, ctx };
    struct trainer_size size;
    struct tp_err err = { 0 };

    cr_assert_eq(trainer_measure(&size, c, m, NULL, &err), TP_OK, "%s", err.msg);
    return run_ranks(spec_world(&c->spec), size.shared + (1 << 20), run_trainer, &r);
}

#endif
