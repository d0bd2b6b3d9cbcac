/* trainer/logits.c - see trainer/logits.h. */
#include "trainer/logits.h"

#include <stdlib.h>

#include "kernels/copy.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "trainer/step.h"

/* Queue the copy of one microbatch's logits to the pinned memory out[rows][net.logit.total]. Each
 * shard of this rank has some of the columns. */
static void collect(float *out, const struct trainer *t)
{
    const struct network *n = &t->net;
    int64_t rows = t->config->micro_batch_size * n->seq, first;

    for (int s = 0; s < n->shards; s++) {
        const float *from = (const float *)t->scratch.ffn_scratch + s * rows * n->logit.per_shard;
        int64_t cols = network_vocab_rows_of(&n->logit, s, &first);

        device_copy_2d(n->k.queue,
                       &(struct device_copy){ .dst = out + s * n->logit.per_shard,
                                              .src = from,
                                              .rows = rows,
                                              .row_bytes = cols * (int64_t)sizeof *out,
                                              .dst_pitch = n->logit.total * (int64_t)sizeof *out,
                                              .src_pitch = cols * (int64_t)sizeof *out });
    }
}

/* Compute this rank's columns for its share of the batch. *out gets pinned memory,
 * [rows][net.logit.total]; the caller frees it, also after a failure. */
static tp_status run_share(struct trainer *t, float **out, int64_t *n, struct tp_err *err)
{
    int64_t micros = train_config_micros(t->config);
    int64_t each =
        t->net.is_last ? t->config->micro_batch_size * t->net.seq * t->net.logit.total : 0;
    void *memory = NULL;
    tp_status st =
        device_alloc_pinned(t->device, &memory, micros * each * (int64_t)sizeof **out, err);

    *out = memory;
    *n = micros * each;
    st = control_agree(t->parallel.control, st, err);
    for (int64_t i = 0; !st && i < micros; i++) {
        st = step_forward(t, i, err);
        if (!st && each)
            collect(*out + i * each, t);
    }
    return st;
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
    data_fetch_ids(&t->data, t->position.next_sample, c->global_batch_size, ids);
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
    int64_t n = 0, *sizes = NULL;
    float *share = NULL;
    void *parts = NULL;
    tp_status st;

    TP_TRY(run_share(t, &share, &n, err));
    TP_TRY(trainer_sync(t, err));
    sizes = calloc((size_t)control_size(control), sizeof *sizes);
    TP_TRY(control_agree(control,
                         sizes ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for --logits"), err));
    TP_TRY(control_gather(control, share, n * (int64_t)sizeof *share, &parts, sizes, err));
    st = control_agree(control, parts ? write_file(t, path, parts, err) : TP_OK, err);
done:
    if (st && share)
        trainer_sync(t, &(struct tp_err){ 0 }); /* copies to it may be queued */
    device_free(t->device, share);
    free(sizes);
    free(parts);
    return st;
}
