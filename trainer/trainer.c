/* trainer/trainer.c - see trainer/trainer.h. */
#include "trainer/trainer.h"

#include "layout/family.h"
#include "layout/model_tensors.h"
#include "layout/same_bits.h"
#include "trainer/context/ring_attention.h"

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

/* ---- memory ---- */

/* ops: those of the device; NULL: the CPU's. */
static tp_status count_memory(struct memory_rank *out, struct memory_model *mm,
                              const struct train_config *c, const struct kernel_ops *ops, int pp,
                              struct tp_err *err)
{
    struct workload w = train_config_work(c);

    w.keeps_bf16 = ops && ops->keeps_bf16;
    if (memory_rank_count(out, mm, &c->spec, &w, pp))
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT, "%s: the model is too large to count its bytes",
                   c->model_path);
}

static struct trainer_size size_of(const struct buffer_pools *p)
{
    return (struct trainer_size){
        .shared = p->shared.used,
        .own = p->own.used,
        .params = buffer_pools_bytes(p, BUFFER_WEIGHTS) + buffer_pools_bytes(p, BUFFER_MASTERS),
        .grads = buffer_pools_bytes(p, BUFFER_GRADS),
        .moments = buffer_pools_bytes(p, BUFFER_MOMENTS),
        .unsharded = buffer_pools_bytes(p, BUFFER_UNITS),
        .activations = buffer_pools_bytes(p, BUFFER_ACTIVATIONS) +
                       buffer_pools_bytes(p, BUFFER_WORKSPACE) +
                       buffer_pools_bytes(p, BUFFER_BUCKETS),
    };
}

tp_status trainer_measure(struct trainer_size *size, const struct train_config *c,
                          const struct model *m, const struct kernel_ops *ops, struct tp_err *err)
{
    struct trainer_size largest = { 0 };
    struct memory_model mm;
    struct arena arena = { 0 };
    int stages[MEMORY_STAGES], n = memory_stages(stages, c->spec.pp);
    int64_t shared = 0;
    tp_status st;

    TP_TRY(memory_model_make(&mm, m, &arena, err));
    for (int i = 0; i < n; i++) {
        struct memory_rank rank;
        struct trainer_size s;

        TP_TRY(count_memory(&rank, &mm, c, ops, stages[i], err));
        s = size_of(&rank.pools);
        shared = s.shared > shared ? s.shared : shared;
        if (s.shared + s.own > largest.shared + largest.own)
            largest = s;
    }
    largest.shared = shared;
    *size = largest;
done:
    arena_free(&arena);
    return st;
}

/* Take every buffer from the pools. */
static void take(struct trainer *t)
{
    const struct rank_dims *d = &t->memory.dims;

    params_take(&t->params, &t->memory.params, &t->pools);
    activations_take(t->slots, d->n_slots, d, &t->pools);
    activations_scratch_take(&t->scratch, d, &t->pools);
    step_buffers_take(&t->io, d, &t->pools);
}

/* Check that the buffers have exactly the size that was counted. */
static tp_status check_taken(const struct trainer *t, struct tp_err *err)
{
    const struct buffer_pools *is = &t->pools, *was = &t->memory.pools;

    int64_t taken = is->own.used + is->shared.used + is->pinned.used;
    int64_t counted = was->own.used + was->shared.used + was->pinned.used;

    if (is->own.used == was->own.used && is->shared.used == was->shared.used && taken == counted)
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL,
                   "the trainer took %lld bytes of buffers, but %lld were counted",
                   (long long)taken, (long long)counted);
}

/* ---- opening ---- */

/* A slot for each pass whose activations the schedule keeps at the same time. */
static tp_status prepare_slots(struct trainer *t, int pp, struct tp_err *err)
{
    const struct rank_dims *d = &t->memory.dims;
    const struct spec *s = &t->config->spec;
    tp_status st;

    if (d->micros > INT32_MAX)
        return tp_fail(err, TP_E_LAYOUT, "too many microbatches in a step");
    TP_TRY(schedule_make(&t->schedule, s->pp, (int)d->micros, s->vpp, &t->arena, err));
    t->n_slots = t->schedule.ranks[pp].n_slots;
    if (t->n_slots != d->n_slots)
        return tp_fail(err, TP_E_INTERNAL,
                       "the schedule keeps %d microbatches, but %lld were counted", t->n_slots,
                       (long long)d->n_slots);
    t->slots = arena_array(&t->arena, (size_t)t->n_slots, sizeof *t->slots);
    for (int i = 0; i < t->n_slots && t->slots; i++) {
        struct activations_layer *layers =
            arena_array(&t->arena, (size_t)d->stage_layers, sizeof *layers);

        t->slots[i] = (struct activations){ .layers = layers };
        if (!layers)
            t->slots = NULL;
    }
    if (!t->slots)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d slots", t->n_slots);
done:
    return st;
}

/* The order in which a step uses FSDP units. */
static tp_status prepare_units(struct trainer *t, int pp, struct tp_err *err)
{
    const struct network *n = &t->net;
    int *layers = arena_array(&t->arena, (size_t)n->n_layers, sizeof *layers);
    struct fsdp_units_stage *stages = arena_array(&t->arena, (size_t)n->n_vstages, sizeof *stages);

    if (!layers || !stages)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d layers", n->n_layers);
    for (int i = 0; i < n->n_layers; i++)
        layers[i] = n->layers[i].unit;
    for (int i = 0; i < n->n_vstages; i++) {
        bool is_first = n->is_first && i == 0, is_last = n->is_last && i == n->n_vstages - 1;

        stages[i] = (struct fsdp_units_stage){ .layers = layers + n->vstages[i].first,
                                               .n = n->vstages[i].n,
                                               .before = is_first ? n->first_unit : -1,
                                               .after = is_last ? n->last_unit : -1 };
    }
    return fsdp_units_init(&t->units, &t->params, stages, &t->schedule.ranks[pp], &t->arena, err);
}

/* Lists and counts: everything that needs no memory for tensors. */
static tp_status prepare(struct trainer *t, const struct kernel_ops *ops, int rank,
                         struct tp_err *err)
{
    int pp = mesh_coord_of(&t->config->spec, rank).pp;
    struct memory_model mm;
    tp_status st;

    TP_TRY(trainer_layout(&t->layout, t->config, t->model, &t->arena, err));
    TP_TRY(memory_model_make(&mm, t->model, &t->arena, err));
    TP_TRY(count_memory(&t->memory, &mm, t->config, ops, pp, err));
    t->size = size_of(&t->memory.pools);
    TP_TRY(params_init(&t->params, &t->layout, rank, &t->memory.params, &t->arena, err));
    TP_TRY(network_init(&t->net, t->model, &t->layout, &t->params, &t->memory.dims, rank, &t->arena,
                        err));
    TP_TRY(prepare_slots(t, pp, err));
    TP_TRY(prepare_units(t, pp, err));
done:
    return st;
}

/* Room for the tokens of the next step. */
static tp_status open_ahead(struct trainer *t, struct tp_err *err)
{
    const struct rank_dims *d = &t->memory.dims;
    const int64_t n = d->micros * 2 * d->sequences * d->seq; /* as step_buffers_take */

    if (t->device->host_memory || !(t->net.is_first || t->net.is_last))
        return TP_OK;
    t->ahead =
        (struct tokens_ahead){ .tokens = arena_array(&t->arena, (size_t)n, sizeof *t->ahead.tokens),
                               .n = n };
    return t->ahead.tokens ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a step's tokens");
}

/* Everything that needs no other rank. */
static tp_status open_alone(struct trainer *t, const struct kernel_ops *ops, int rank,
                            struct tp_err *err)
{
    void *memory, *pinned;
    tp_status st;

    TP_TRY(prepare(t, ops, rank, err));
    TP_TRY(open_ahead(t, err));
    TP_TRY(device_alloc(t->device, &memory, t->size.own, err));
    t->pools.own.base = memory;
    TP_TRY(device_alloc_pinned(t->device, &pinned, t->memory.pools.pinned.used, err));
    t->pools.pinned.base = pinned;
    TP_TRY(device_queue_open(t->device, &t->queue, DEVICE_QUEUE_COMPUTE, err));
    TP_TRY(device_queue_open(t->device, &t->comm_queue, DEVICE_QUEUE_COMM, err));
    TP_TRY(device_event_open(t->device, &t->computed, err));
    if (t->model->experts)
        TP_TRY(device_event_open(t->device, &t->net.counted, err));
    TP_TRY(device_event_open(t->device, &t->state_copied, err));
    TP_TRY(
        dataset_open(&t->data, t->config->data_path, t->config->seq_length, t->model->vocab, err));
done:
    return st;
}

/* Ranks on several hosts may have copies of the data, and one that is not whole lets its rank train
 * on other tokens, which nothing would report. Collective; all ranks fail alike. */
static tp_status check_data(const struct trainer *t, struct comm_control *control,
                            struct tp_err *err)
{
    int64_t n[2] = { t->data.tokens.n, -t->data.tokens.n };
    tp_status st = control_max_i64(control, n, 2, err);

    if (!st && n[0] != -n[1])
        st = tp_fail(err, TP_E_USAGE,
                     "--data %s: has %lld tokens for one rank and %lld for another one; all ranks "
                     "need the same file",
                     t->config->data_path, (long long)-n[1], (long long)n[0]);
    return control_agree(control, st, err);
}

/* Open the requests for messages between ranks, which connects them. A rank that fails here fails
 * alone: the others cannot be asked, because they may wait for it to connect. */
static tp_status open_messages(struct trainer *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; t->parallel.pp_forward && i < t->n_slots && !st; i++)
        st = comm_request_open(&t->slots[i].sent, t->parallel.pp_forward, COMM_NEXT, err);
    for (int i = 0; t->parallel.pp_backward && i < SCRATCH_DX_BUFFERS && !st; i++)
        st = comm_request_open(&t->scratch.sent[i], t->parallel.pp_backward, COMM_PREVIOUS, err);
    return st ? st : ring_attention_open(&t->net.ring, t->device, err);
}

/* Some models need operations that not every device has. */
static tp_status check_operations(const struct trainer *t, const struct kernel_ops *ops,
                                  struct tp_err *err)
{
    if (t->model->experts && !ops->grouped_gemm)
        return tp_fail(err, TP_E_USAGE,
                       "the device does not compute the mixtures of experts of a %s; use --device "
                       "cpu",
                       family_of(t->model)->architecture);
    if (ops->head_dim_max && t->model->head_dim > ops->head_dim_max)
        return tp_fail(err, TP_E_USAGE,
                       "heads have %lld columns, and on a GPU at most %lld are supported; use "
                       "--device cpu",
                       (long long)t->model->head_dim, (long long)ops->head_dim_max);
    return TP_OK;
}

/* Point everything to the memory and the communicators. */
static tp_status bind(struct trainer *t, const struct trainer_device *d, struct tp_err *err)
{
    tp_status st;

    TP_TRY(check_operations(t, d->ops, err));
    t->net.k = t->params.k = (struct kernel_queue){ d->ops, t->queue };
    t->params.comm_queue = t->comm_queue;
    TP_TRY(network_bind(&t->net, &t->layout, &t->params, &t->scratch, &t->parallel, err));
    TP_TRY(bucket_transfer_open(&t->weights, &t->params, &t->parallel, BUCKET_WEIGHTS, err));
    TP_TRY(bucket_transfer_open(&t->grads, &t->params, &t->parallel, BUCKET_GRADS, err));
    TP_TRY(grad_reduction_open(&t->reduction, &t->grads, err));
    fsdp_units_open(&t->units, &t->weights, &t->grads);
done:
    return st;
}

/* --same-bits needs sums along one tree. */
static tp_status check_promises(const struct trainer *t, struct tp_err *err)
{
    if (!t->config->same_bits || comm_promises(t->parallel.ranks, COMM_SUMS_ALONG_TREE))
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "--same-bits needs collectives that always sum along the same tree; those of this "
        "device may not; use --device cpu");
}

tp_status trainer_open(struct trainer *t, const struct train_config *c, const struct model *m,
                       const struct trainer_device *d, struct comm_world *ranks, struct tp_err *err)
{
    struct comm_control *control = comm_control(ranks);
    struct trainer_size largest = { 0 };
    void *memory;
    tp_status st;

    *t = (struct trainer){ .device = d->device,
                           .host_threads = d->threads > 1 ? d->threads : 1,
                           .config = c,
                           .model = m };
    step_graph_init(&t->graph,
                    &(struct step_graph_request){ d->device, c->cuda_graphs, m->experts > 0 });
    TP_TRY(control_agree(control, open_alone(t, d->ops, control_rank(control), err), err));
    TP_TRY(check_data(t, control, err));
    TP_TRY(control_agree(control, trainer_measure(&largest, c, m, d->ops, err), err));
    TP_TRY(process_groups_make(&t->parallel, ranks, t->device, d->transport, &t->layout, err));
    TP_TRY(control_agree(control, check_promises(t, err), err));
    TP_TRY(comm_alloc(&memory, ranks, largest.shared, err));
    t->pools.shared.base = memory;
    take(t);
    TP_TRY(control_agree(control, check_taken(t, err), err));
    TP_TRY(control_agree(control, bind(t, d, err), err));
    TP_TRY(open_messages(t, err));
done:
    return st;
}

void trainer_close(struct trainer *t)
{
    step_graph_close(&t->graph, t->device); /* before what its operations use */
    device_queue_close(t->comm_queue);      /* first, because it may still use the rest */
    ring_attention_close(&t->net.ring);
    device_queue_close(t->queue);
    process_groups_free(&t->parallel);
    dataset_close(&t->data);
    bucket_transfer_close(&t->weights);
    bucket_transfer_close(&t->grads);
    grad_reduction_close(&t->reduction);
    device_event_close(t->computed);
    device_event_close(t->net.counted);
    device_event_close(t->state_copied);
    if (t->device) {
        device_free(t->device, t->pools.pinned.base);
        device_free(t->device, t->pools.own.base);
    }
    arena_free(&t->arena);
}

tp_status trainer_sync(struct trainer *t, struct tp_err *err)
{
    device_record(t->queue, t->computed);
    return device_event_sync(t->computed, err);
}
