/* trainer/logits.c - see trainer/logits.h. */
#include "trainer/logits.h"

#include <stdlib.h>
#include <string.h>

#include "reshard/formats/safetensors.h"
#include "trainer/step.h"

/* One microbatch's logits, whose columns may be several shards', as [rows][net.logit.all]. */
static void collect(float *out, const struct trainer *t)
{
    const struct net *n = &t->net;
    int64_t rows = t->config->micro_batch_size * n->seq, first;

    for (int s = 0; s < n->shards; s++) {
        const float *from = t->scratch.wide + s * rows * n->logit.each;
        int64_t cols = vocab_rows_of(&n->logit, s, &first);

        for (int64_t r = 0; r < rows && cols; r++)
            memcpy(out + r * n->logit.all + s * n->logit.each, from + r * cols,
                   (size_t)cols * sizeof *out);
    }
}

/* This rank's columns for its share of the batch: *out is malloc'ed, [rows][net.logit.all]. */
static tp_status run_share(struct trainer *t, float **out, int64_t *n, struct tp_err *err)
{
    int64_t micros = train_config_micros(t->config);
    int64_t each = t->net.is_last ? t->config->micro_batch_size * t->net.seq * t->net.logit.all : 0;
    float *all = malloc((size_t)(micros * each) * sizeof *all + 1);
    tp_status st = all ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for --logits");

    st = control_agree(t->parallel.control, st, err);
    for (int64_t i = 0; all && !st && i < micros; i++) {
        st = step_forward(t, i, err);
        if (!st && each)
            collect(all + i * each, t);
    }
    if (st) {
        free(all);
        return st;
    }
    *out = all;
    *n = micros * each;
    return TP_OK;
}

/* The tensor whose cut is that of the logits. */
static const struct tensor *find_head(const struct trainer *t)
{
    enum tensor_role role = t->model->tied ? ROLE_EMBEDDING : ROLE_HEAD;
    const struct tensor *tensor = t->layout.tensors;

    while (tensor->role != role)
        tensor++;
    return tensor;
}

/* The columns `b` of the rows of one rank, to the rows of its sequences; returns what follows them
 * in `parts`. */
static const float *assemble_rank(float *whole, const struct box *b, struct zigzag z,
                                  int64_t sequences, int64_t vocab, const float *parts)
{
    int64_t each = zigzag_tokens(&z), run;

    for (int64_t r = 0; r < sequences * each; r++, parts += b->len[0]) {
        int64_t row = r / each * z.seq + zigzag_position(&z, r % each, &run);

        memcpy(whole + row * vocab + b->lo[0], parts, (size_t)b->len[0] * sizeof *parts);
    }
    return parts;
}

/* Put every rank's columns of its rows in their place: whole[batch * seq][vocab]. */
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
    int32_t *pair = malloc(2 * (size_t)rows * sizeof *pair); /* inputs, targets */
    const void *data[] = { ids, whole };
    tp_status st = TP_OK;

    if (!whole || !ids || !pair) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for --logits");
        goto done;
    }
    TP_TRY(data_fetch(&t->data, t->position.next_sample, c->global_batch_size, NULL, pair,
                      pair + rows, err));
    for (int64_t i = 0; i < rows; i++)
        ids[i] = pair[i];
    assemble(t, whole, parts);
    st = safetensors_write_file(path, tensors, data, 2, err);
    if (st)
        tp_fail_in(err, "--logits");
done:
    free(whole);
    free(ids);
    free(pair);
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
    sizes = calloc((size_t)control_size(control), sizeof *sizes);
    TP_TRY(control_agree(control,
                         sizes ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for --logits"), err));
    TP_TRY(control_gather(control, share, n * (int64_t)sizeof *share, &parts, sizes, err));
    st = control_agree(control, parts ? write_file(t, path, parts, err) : TP_OK, err);
done:
    free(share);
    free(sizes);
    free(parts);
    return st;
}
