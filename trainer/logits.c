/* trainer/logits.c - see trainer/logits.h. */
#include "trainer/logits.h"

#include <stdlib.h>

#include "kernels/cast.h"
#include "kernels/copy.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "trainer/sizing/memory.h"
#include "trainer/sizing/rank_dims.h"
#include "trainer/step.h"

/* Queue the copy of one microbatch's logits to the pinned memory out[rows][net.logit.total], of
 * net.inner. Each shard of this rank has some of the columns. */
static void collect(char *out, const struct trainer *t)
{
    const struct network *n = &t->net;
    int64_t rows = t->config->micro_batch_size * n->seq, bytes = dtype_bytes(n->inner), first;

    for (int s = 0; s < n->shards; s++) {
        int64_t at = s * n->logit.per_shard * bytes;
        int64_t cols = network_vocab_rows_of(&n->logit, s, &first);

        device_copy_2d(n->k.queue,
                       &(struct device_copy){ .dst = out + at,
                                              .src = (char *)t->scratch.ffn_scratch + rows * at,
                                              .rows = rows,
                                              .row_bytes = cols * bytes,
                                              .dst_pitch = n->logit.total * bytes,
                                              .src_pitch = cols * bytes });
    }
}

/* Compute this rank's columns for its share of the batch. *out gets pinned memory of *n_bytes,
 * [rows][net.logit.total] of net.inner; the caller frees it, also after a failure. */
static tp_status run_share(struct trainer *t, void **out, int64_t *n_bytes, struct tp_err *err)
{
    int64_t micros = train_config_micros(t->config), rows = t->config->micro_batch_size;
    int64_t each =
        t->net.is_last ? rows * t->net.seq * t->net.logit.total * dtype_bytes(t->net.inner) : 0;
    tp_status st = device_alloc_pinned(t->device, out, micros * each, err);

    *n_bytes = micros * each;
    st = control_agree(t->parallel.control, st, err);
    for (int64_t i = 0; !st && i < micros; i++) {
        st = step_forward(t, i, err);
        if (!st && each)
            collect((char *)*out + i * each, t);
    }
    return st;
}

/* *parts, which is malloc'ed, becomes f32. */
static tp_status widen(void **parts, enum dtype type, int64_t n_bytes, struct tp_err *err)
{
    int64_t n = n_bytes / dtype_bytes(type);
    float *wide;

    if (type == DTYPE_F32 || n == 0)
        return TP_OK;
    wide = malloc((size_t)n * sizeof *wide);
    if (!wide)
        return tp_fail(err, TP_E_NOMEM, "no memory for --logits");
    cast(wide, DTYPE_F32, *parts, type, n);
    free(*parts);
    *parts = wide;
    return TP_OK;
}

/* The tensor that is cut as the logits are. */
static const struct tensor *find_head(const struct trainer *t)
{
    enum tensor_role role = t->model->tied ? ROLE_EMBEDDING : ROLE_HEAD;
    const struct tensor *tensor = t->layout.tensors;

    while (tensor->role != role)
        tensor++;
    return tensor;
}

/* Copy one rank's rows, which have the columns `b`, to the rows of its sequences. Returns what
 * follows them in `parts`. Both are ordinary host memory. */
static const float *assemble_rank(float *whole, const struct box *b, struct zigzag z,
                                  int64_t sequences, int64_t vocab, const float *parts)
{
    const struct box all = { .ndim = 2, .len = { sequences * z.seq, vocab } };
    int64_t each = zigzag_tokens(&z), run;

    for (int64_t r = 0; r < sequences * each; r += run) {
        int64_t row = r / each * z.seq + zigzag_position(&z, r % each, &run);
        const struct box part = { .ndim = 2, .lo = { row, b->lo[0] }, .len = { run, b->len[0] } };

        copy_box(whole, &all, parts, &part, &part, sizeof *parts);
        parts += run * b->len[0];
    }
    return parts;
}

/* Copy every rank's rows and columns to their places in whole[batch * seq][vocab]. */
static void assemble(const struct trainer *t, float *whole, const float *parts)
{
    const struct train_config *c = t->config;
    const struct tensor *head = find_head(t);
    int64_t vocab = t->model->vocab;

    for (int rank = 0; rank < spec_world(&c->spec); rank++) {
        struct mesh_coord at = mesh_coord_of(&c->spec, rank);
        struct box b[TENSOR_BOXES_MAX];

        if (at.pp < c->spec.pp - 1 || layout_tp_boxes(head, &c->spec, at.tp, b) == 0)
            continue;
        for (int64_t i = 0; i < train_config_micros(c); i++)
            parts = assemble_rank(
                whole + train_config_sequence(c, at.dp, i) * c->seq_length * vocab, &b[0],
                zigzag_of(&c->spec, at.cp, c->seq_length), c->micro_batch_size, vocab, parts);
    }
}

static tp_status write_file(const struct trainer *t, const char *path, const float *parts,
                            struct tp_err *err)
{
    const struct train_config *c = t->config;
    int64_t rows = c->global_batch_size * c->seq_length, vocab = t->model->vocab;
    const struct safetensors_tensor tensors[] = {
        { "input_ids", DTYPE_I64, 2, { c->global_batch_size, c->seq_length } },
        { "logits", DTYPE_F32, 3, { c->global_batch_size, c->seq_length, vocab } },
    };
    float *whole = malloc((size_t)(rows * vocab) * sizeof *whole);
    int64_t *ids = malloc((size_t)rows * sizeof *ids);
    const void *data[] = { ids, whole };
    tp_status st = TP_OK;

    if (!whole || !ids) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for --logits");
        goto done;
    }
    TP_TRY(dataset_fetch_ids(&t->data, t->position.next_sample, c->global_batch_size, ids, err));
    assemble(t, whole, parts);
    st = safetensors_write_file(path, tensors, data, 2, err);
    if (st)
        tp_fail_in(err, "--logits");
done:
    free(whole);
    free(ids);
    return st;
}

tp_status logits_write(struct trainer *t, const char *path, struct tp_err *err)
{
    struct comm_control *control = t->parallel.control;
    int64_t n_bytes = 0, *sizes = NULL, gathered = 0;
    void *share = NULL, *parts = NULL;
    tp_status st;

    TP_TRY(run_share(t, &share, &n_bytes, err));
    TP_TRY(trainer_sync(t, err));
    sizes = calloc((size_t)control_size(control), sizeof *sizes);
    TP_TRY(control_agree(control,
                         sizes ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for --logits"), err));
    TP_TRY(control_gather(control, share, n_bytes, &parts, sizes, err));
    for (int i = 0; parts && i < control_size(control); i++)
        gathered += sizes[i];
    st = parts ? widen(&parts, t->net.inner, gathered, err) : TP_OK;
    if (!st && parts)
        st = write_file(t, path, parts, err);
    st = control_agree(control, st, err);
done:
    if (st && share)
        trainer_sync(t, &(struct tp_err){ 0 }); /* copies to it may be queued */
    device_free(t->device, share);
    free(sizes);
    free(parts);
    return st;
}

/* Its own share, the shares of all ranks, the tensor, and the bytes of the file. Where the plan
 * does not cut the head, each tp rank sends all columns. */
int64_t logits_bytes(const struct train_config *c, const struct model *m)
{
    bool is_cut = model_cuts_of(m).head;
    int64_t columns = is_cut ? (m->vocab + c->spec.tp - 1) / c->spec.tp : m->vocab;
    int64_t rows = c->global_batch_size * c->seq_length, row = m->vocab * (int64_t)sizeof(float);
    int64_t all = (is_cut ? 1 : c->spec.tp) * row, bytes;
    int64_t own = c->spec.pp > 1 ? 0 : columns * (int64_t)sizeof(float) / c->spec.dp / c->spec.cp;

    if (__builtin_mul_overflow(rows, own + all + 2 * (row + (int64_t)sizeof(int64_t)), &bytes))
        return MEMORY_MOST;
    return bytes < MEMORY_MOST ? bytes : MEMORY_MOST;
}
