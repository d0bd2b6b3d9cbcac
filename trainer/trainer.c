/* trainer/trainer.c - see trainer/trainer.h. */
#include "trainer/trainer.h"

#include <string.h>

#include "layout/model_tensors.h"
#include "layout/same_bits.h"
#include "trainer/same_bits/same_bits.h"

tp_status trainer_layout(struct layout *out, const struct train_config *c, const struct model *m,
                         struct arena *arena, struct tp_err *err)
{
    struct tensor *tensors;
    int n;
    tp_status st = model_state(&tensors, &n, m, c->dtype, arena, err);

    if (!st && c->same_bits)
        same_bits_cut_vocabulary(tensors, n, c->same_bits);
    return st ? st : layout_make(out, &c->spec, m->layers, tensors, n, arena, err);
}

/* A slot for every microbatch and chunk that the schedule keeps at a time. */
static tp_status prepare_slots(struct trainer *t, int pp, struct tp_err *err)
{
    const struct spec *s = &t->config->spec;
    int64_t micros = train_config_micros(t->config);
    tp_status st;

    if (micros > INT32_MAX)
        return tp_fail(err, TP_E_LAYOUT, "too many microbatches in a step");
    TP_TRY(schedule_make(&t->schedule, s->pp, (int)micros, s->vpp, &t->arena, err));
    t->n_slots = t->schedule.ranks[pp].n_slots;
    t->slots = arena_array(&t->arena, (size_t)t->n_slots, sizeof *t->slots);
    if (!t->slots)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d slots", t->n_slots);
    for (int i = 0; i < t->n_slots; i++)
        TP_TRY(slot_init(&t->slots[i], &t->net, &t->arena, err));
done:
    return st;
}

/* The order in which a step uses FSDP units. */
static tp_status prepare_units(struct trainer *t, int pp, struct tp_err *err)
{
    const struct net *n = &t->net;
    int *layers = arena_array(&t->arena, (size_t)n->n_layers, sizeof *layers);
    struct units_stage *stages = arena_array(&t->arena, (size_t)n->n_chunks, sizeof *stages);

    if (!layers || !stages)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", n->n_layers);
    for (int i = 0; i < n->n_layers; i++)
        layers[i] = n->layers[i].unit;
    for (int i = 0; i < n->n_chunks; i++) {
        bool is_first = n->is_first && i == 0, is_last = n->is_last && i == n->n_chunks - 1;

        stages[i] = (struct units_stage){ .layers = layers + n->chunks[i].first,
                                          .n = n->chunks[i].n,
                                          .before = is_first ? n->first_unit : -1,
                                          .after = is_last ? n->last_unit : -1 };
    }
    return units_init(&t->units, &t->params, stages, &t->schedule.ranks[pp], &t->arena, err);
}

/* Lists and counts: everything that needs no memory for tensors. */
static tp_status prepare(struct trainer *t, int rank, struct tp_err *err)
{
    int pp = mesh_coord_of(&t->config->spec, rank).pp;
    tp_status st;

    TP_TRY(trainer_layout(&t->layout, t->config, t->model, &t->arena, err));
    TP_TRY(params_init(&t->params, &t->layout, rank, t->config->dtype, t->config->same_bits,
                       &t->arena, err));
    t->params.fold.levels = same_bits_levels(t->config);
    TP_TRY(net_init(&t->net, t->model, &t->layout, &t->params, rank, t->config->seq_length,
                    &t->arena, err));
    t->net.recompute = t->config->recompute;
    TP_TRY(prepare_slots(t, pp, err));
    TP_TRY(prepare_units(t, pp, err));
done:
    return st;
}

/* What the host reads of a step, and what that is made from. */
static void take_numbers(struct trainer *t, struct buffer_pool *own)
{
    int64_t losses = train_config_micros(t->config) * (int64_t)sizeof *t->numbers->losses;

    t->numbers = buffer_pool_take(own, 1, (int64_t)sizeof *t->numbers + losses);
    t->params.squares = buffer_pool_take(own, t->params.n, sizeof *t->params.squares);
}

/* Take every buffer from the two spans; over spans without memory it only counts. */
static void take(struct trainer *t, struct buffer_pool *shared, struct buffer_pool *own)
{
    int64_t sequences = t->config->micro_batch_size;

    params_take(&t->params, shared, own);
    net_take(&t->net, sequences, shared, own);
    for (int i = 0; i < t->n_slots; i++)
        slot_take(&t->slots[i], &t->net, sequences, shared, own);
    scratch_take(&t->scratch, &t->net, sequences, shared, own);
    take_numbers(t, own);
}

static tp_status measure(struct trainer *t, struct tp_err *err)
{
    struct buffer_pool shared = { 0 }, own = { 0 }, numbers = { 0 };
    struct trainer_size *s = &t->size;

    take(t, &shared, &own);
    take_numbers(t, &numbers);
    if (shared.used > INT64_MAX / 4 || own.used > INT64_MAX / 4)
        return tp_fail(err, TP_E_LAYOUT, "%s: a model too large to count the bytes of",
                       t->config->model_path);
    *s = (struct trainer_size){ .shared = shared.used, .own = own.used };
    s->params = params_value_bytes(&t->params);
    s->grads = params_grad_bytes(&t->params);
    s->moments = t->params.n_owned * 8;
    s->windows = params_window_bytes(&t->params);
    s->activations =
        s->shared + s->own - s->params - s->grads - s->moments - s->windows - numbers.used;
    return TP_OK;
}

tp_status trainer_measure(struct trainer_size *size, const struct train_config *c,
                          const struct model *m, struct tp_err *err)
{
    struct trainer_size largest = { 0 };
    tp_status st = TP_OK;

    /* of a stage, the first rank is never smaller than another */
    for (int pp = 0; pp < c->spec.pp && !st; pp++) {
        struct trainer t = { .config = c, .model = m };
        struct mesh_coord at = { .pp = pp };
        int64_t shared = largest.shared;

        if (!(st = prepare(&t, mesh_rank_of(&c->spec, at), err)))
            st = measure(&t, err);
        if (t.size.shared + t.size.own > largest.shared + largest.own)
            largest = t.size;
        largest.shared = t.size.shared > shared ? t.size.shared : largest.shared;
        largest.shared = shared > largest.shared ? shared : largest.shared;
        arena_free(&t.arena);
    }
    if (!st)
        *size = largest;
    return st;
}

/* What the host exchanges with the device in a step. */
static tp_status alloc_pinned(struct trainer *t, struct tp_err *err)
{
    int64_t rows = t->config->micro_batch_size * t->net.seq;
    void *numbers, *tokens;
    tp_status st = device_alloc_pinned(t->device, &numbers, sizeof *t->numbers_read, err);

    if (st)
        return st;
    t->numbers_read = numbers;
    st = device_alloc_pinned(t->device, &tokens,
                             train_config_micros(t->config) * 2 * rows * (int64_t)sizeof *t->tokens,
                             err);
    t->tokens = st ? NULL : tokens;
    return st;
}

/* What needs no other rank. */
static tp_status open_alone(struct trainer *t, int rank, struct tp_err *err)
{
    void *memory;
    tp_status st;

    TP_TRY(prepare(t, rank, err));
    TP_TRY(measure(t, err));
    TP_TRY(device_alloc(t->device, &memory, t->size.own, err));
    t->own.base = memory;
    TP_TRY(alloc_pinned(t, err));
    TP_TRY(device_queue_open(t->device, &t->queue, DEVICE_QUEUE_COMPUTE, err));
    TP_TRY(device_queue_open(t->device, &t->comm_queue, DEVICE_QUEUE_COMM, err));
    TP_TRY(device_event_open(t->device, &t->computed, err));
    TP_TRY(device_event_open(t->device, &t->state_copied, err));
    TP_TRY(data_open(&t->data, t->config->data_path, t->config->seq_length, t->model->vocab, err));
done:
    return st;
}

/* Messages that stages send each other. */
static tp_status open_messages(struct trainer *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; t->parallel.pp_forward && i < t->n_slots && !st; i++)
        st = comm_request_open(&t->slots[i].sent, t->parallel.pp_forward, err);
    for (int i = 0; t->parallel.pp_backward && i < SCHEDULE_BUFFERS && !st; i++)
        st = comm_request_open(&t->scratch.sent[i], t->parallel.pp_backward, err);
    return st ? st : ring_open(&t->scratch.ring, &t->net.ring, err);
}

/* With memory and communicators: point everything at them. */
static tp_status bind(struct trainer *t, const struct trainer_device *d, struct tp_err *err)
{
    tp_status st;

    t->net.k = t->params.k = (struct kernel_queue){ d->ops, t->queue };
    t->params.comm_queue = t->comm_queue;
    TP_TRY(net_bind(&t->net, &t->layout, &t->params, &t->parallel, err));
    TP_TRY(bucket_transfer_open(&t->weights, &t->params, &t->parallel, BUCKET_WEIGHTS, err));
    TP_TRY(bucket_transfer_open(&t->grads, &t->params, &t->parallel, BUCKET_GRADS, err));
    TP_TRY(reduction_open(&t->reduction, &t->grads, err));
    units_open(&t->units, &t->weights, &t->grads);
    TP_TRY(open_messages(t, err));
done:
    return st;
}

/* --same-bits is built on sums along one tree. */
static tp_status check_promises(const struct trainer *t, struct tp_err *err)
{
    if (!t->config->same_bits || comm_promises(t->parallel.ranks, COMM_SUMS_ALONG_TREE))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "--same-bits needs collectives whose sums follow one tree, and this device's do "
                   "not promise it; use --device cpu");
}

tp_status trainer_open(struct trainer *t, const struct train_config *c, const struct model *m,
                       const struct trainer_device *d, struct comm_world *ranks, struct tp_err *err)
{
    struct comm_control *control = comm_control(ranks);
    struct buffer_pool shared = { 0 };
    struct trainer_size largest = { 0 };
    void *memory;
    tp_status st;

    *t = (struct trainer){ .device = d->device, .config = c, .model = m };
    TP_TRY(control_agree(control, open_alone(t, control_rank(control), err), err));
    TP_TRY(control_agree(control, trainer_measure(&largest, c, m, err), err));
    TP_TRY(parallel_make(&t->parallel, ranks, t->device, &t->layout, err));
    TP_TRY(check_promises(t, err));
    TP_TRY(comm_alloc(&memory, ranks, largest.shared, err));
    shared.base = memory;
    take(t, &shared, &t->own);
    TP_TRY(control_agree(control, bind(t, d, err), err));
done:
    return st;
}

void trainer_close(struct trainer *t)
{
    device_queue_close(t->comm_queue); /* first: it may be at work on what follows */
    device_queue_close(t->queue);
    parallel_free(&t->parallel);
    data_close(&t->data);
    bucket_transfer_close(&t->weights);
    bucket_transfer_close(&t->grads);
    reduction_close(&t->reduction);
    device_event_close(t->computed);
    device_event_close(t->state_copied);
    if (t->device) {
        device_free(t->device, t->tokens);
        device_free(t->device, t->numbers_read);
        device_free(t->device, t->own.base);
    }
    arena_free(&t->arena);
}

tp_status trainer_sync(struct trainer *t, struct tp_err *err)
{
    device_record(t->queue, t->computed);
    return device_event_sync(t->computed, err);
}
