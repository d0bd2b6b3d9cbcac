/* trainer/restore.c - see trainer/restore.h. */
#include "trainer/restore.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "layout/family.h"
#include "layout/model_config.h"
#include "reshard/restore.h"
#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/model/weight_init.h"
#include "trainer/resume_diff.h"

/* Buffers for reading. At that time the activations' memory is not resident yet. */
static const int64_t READ_BYTES = INT64_C(64) << 20, STAGING_BYTES = INT64_C(4) << 20;

/* ---- what to read, in the engine's form ---- */

struct read_list {
    int n, n_tensors; /* extents; the engine's tensors, one for all parts of a fused tensor */
    int *ids;
    struct reshard_tensor *tensors;
    struct reshard_extent *extents;
    void **data;
    enum dtype *dtypes;
};

static tp_status read_list_init(struct read_list *w, const struct params *p, struct arena *a,
                                struct tp_err *err)
{
    size_t most = 3 * (size_t)p->n; /* weights and two moments of each entry */

    *w = (struct read_list){ .ids = arena_array(a, most, sizeof *w->ids),
                             .tensors = arena_array(a, most, sizeof *w->tensors),
                             .extents = arena_array(a, most, sizeof *w->extents),
                             .data = arena_array(a, most, sizeof *w->data),
                             .dtypes = arena_array(a, most, sizeof *w->dtypes) };
    if (!w->ids || !w->tensors || !w->extents || !w->data || !w->dtypes)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %zu tensors", most);
    return TP_OK;
}

/* Index of a tensor that is already in the list, or -1. The entries of a tensor's shards are close
 * to each other, so only the last few tensors are compared. */
static int read_list_find(const struct read_list *w, const struct tensor *t, int id)
{
    enum { GROUP = 3 }; /* between k of one shard and k of the next there are v and q */

    for (int i = w->n_tensors - 1; i >= 0 && i >= w->n_tensors - GROUP; i--)
        if (w->ids[i] == id && strcmp(w->tensors[i].name, t->name) == 0)
            return i;
    return -1;
}

/* Add this rank's part of tensor t: read `box` to `to`. id is the tensor's index in the manifest.
 */
static void read_list_add(struct read_list *w, const struct tensor *t, const struct box *box,
                          float *to, int id)
{
    int known = read_list_find(w, t, id);

    if (known < 0) {
        struct reshard_tensor *m = &w->tensors[known = w->n_tensors];

        *m = (struct reshard_tensor){ .name = t->name, .ndim = t->ndim };
        for (int d = 0; d < t->ndim; d++)
            m->shape[d] = t->shape[d];
        w->ids[w->n_tensors] = id;
        w->dtypes[w->n_tensors] = DTYPE_F32;
        w->n_tensors++;
    }
    w->extents[w->n] = (struct reshard_extent){ .tensor = known, .box = *box };
    w->data[w->n] = to;
    w->n++;
}

static struct restore_request request_of(const struct read_list *w, struct staging *staging)
{
    return (struct restore_request){ .staging = staging,
                                     .n_tensors = w->n_tensors,
                                     .n_extents = w->n,
                                     .extents = w->extents,
                                     .data = w->data,
                                     .dtypes = w->dtypes,
                                     .memory_bytes = READ_BYTES,
                                     .threads = 1 };
}

/* ---- a checkpoint ---- */

static tp_status other_model(const char *what, int64_t saved, int64_t now, const char *dir,
                             const char *path, struct tp_err *err)
{
    return tp_fail(err, TP_E_USAGE,
                   "%s is a checkpoint of another model than %s: its %s is %" PRId64
                   ", not %" PRId64,
                   dir, path, what, saved, now);
}

static tp_status check_model(const struct trainer *t, const struct manifest *m, const char *dir,
                             struct arena *a, struct tp_err *err)
{
    const struct model *now = t->model;
    struct model was;
    tp_status st;

    if (!m->model_config)
        return TP_OK; /* the tensors' shapes are compared anyway */
    st = model_config_parse(&was, m->model_config, strlen(m->model_config), dir, a, err);
    if (st)
        return st;
    if (was.family != now->family)
        return tp_fail(err, TP_E_USAGE, "%s is a checkpoint of a %s, but %s is a %s", dir,
                       family_of(&was)->architecture, t->config->model_path,
                       family_of(now)->architecture);
    const struct {
        const char *name;
        int64_t was, now;
    } fields[] = { { "hidden_size", was.hidden, now->hidden },
                   { "num_hidden_layers", was.layers, now->layers },
                   { "num_attention_heads", was.heads, now->heads },
                   { "num_key_value_heads", was.kv_heads, now->kv_heads },
                   { "head_dim", was.head_dim, now->head_dim },
                   { "intermediate_size", was.ffn, now->ffn },
                   { "vocab_size", was.vocab, now->vocab },
                   { "tie_word_embeddings", was.tied, now->tied } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].was != fields[i].now)
            return other_model(fields[i].name, fields[i].was, fields[i].now, dir,
                               t->config->model_path, err);
    return TP_OK;
}

static int find_saved(const struct manifest *m, const char *group, const char *name)
{
    return layout_find(&m->layout, group, name);
}

/* List the masters if they were saved, else the weights; and both moments. */
static tp_status read_list_add_ckpt(struct read_list *w, const struct trainer *t,
                                    const struct manifest *m, const char *dir, struct tp_err *err)
{
    const struct params *p = &t->params;
    static const char *const groups[] = { GROUP_MASTER, GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };

    for (int g = 0; g < 3; g++)
        for (int i = 0; i < p->n; i++) {
            const struct param *q = &p->list[i];
            const struct param_owned o = params_owned(p, q);
            float *const to[] = { o.value, o.exp_avg, o.exp_avg_sq };
            const struct tensor *tensor = &t->layout.tensors[q->tensor];
            int id = find_saved(m, groups[g], tensor->name);

            if (id < 0 && g == 0)
                id = find_saved(m, GROUP_PARAM, tensor->name);
            if (id < 0 && find_saved(m, GROUP_PARAM, tensor->name) < 0)
                return tp_fail(err, TP_E_USAGE,
                               "%s has no tensor %s; give the --plan of the run that saved it "
                               "(tp-ckpt show lists its names)",
                               dir, tensor->name);
            if (id < 0)
                return tp_fail(
                    err, TP_E_USAGE,
                    "%s has no %s of %s: it was saved without optimizer state; export it "
                    "and start from --model instead",
                    dir, groups[g], tensor->name);
            if (m->layout.tensors[id].ndim != tensor->ndim ||
                memcmp(m->layout.tensors[id].shape, tensor->shape,
                       (size_t)tensor->ndim * sizeof *tensor->shape) != 0)
                return tp_fail(err, TP_E_USAGE, "%s: %s has another shape than in %s", dir,
                               tensor->name, t->config->model_path);
            if (o.n && params_first_holder(p, i) == i)
                read_list_add(w, tensor, &q->own.box, to[g], id);
        }
    return TP_OK;
}

static tp_status read_ckpt(struct trainer *t, struct restore_report *r, int64_t step,
                           struct staging *staging, struct arena *a, struct tp_err *err)
{
    struct transfer_stats stats = { 0 };
    struct restore_request q;
    struct ckpt_found found;
    const struct manifest *m = &found.manifest;
    struct read_list w;
    tp_status st;

    TP_TRY(ckpt_open(&found, t->config->ckpt, step, a, err));
    snprintf(r->from, sizeof r->from, "%s", found.dir);
    TP_TRY(check_model(t, m, r->from, a, err));
    TP_TRY(read_list_init(&w, &t->params, a, err));
    TP_TRY(read_list_add_ckpt(&w, t, m, r->from, err));
    q = request_of(&w, staging);
    TP_TRY(restore_checkpoint(&q, &found, w.ids, &stats, err));
    t->position = (struct trainer_position){ .step = m->state.step,
                                             .next_sample = m->state.next_sample,
                                             .tokens = m->state.tokens };
    r->kind = RESTORE_CKPT;
    r->bytes_read = stats.bytes_read;
    r->bytes_needed = stats.bytes_wanted;
    spec_format(r->layout, &m->layout.spec);
    resume_diff_describe(r->warning, m, t->config, t->model, a);
done:
    return st;
}

/* Refuse a root whose steps cannot be read, with the reason. A new start in this root would lose
 * them silently, and a step that cannot be read may be intact and of a later version. */
static tp_status refuse_unreadable(const struct train_config *c, struct tp_err *err)
{
    bool resumes = c->resume != RESUME_NO;
    struct tp_err why = { 0 };
    struct arena a = { 0 };
    struct ckpt_found found;

    ckpt_open(&found, c->ckpt, -1, &a, &why);
    arena_free(&a);
    return tp_fail(err, resumes ? TP_E_CORRUPT : TP_E_EXISTS,
                   "%s: has no checkpoint that can be read: %.600s; to start from the beginning "
                   "move it away, or name another --ckpt",
                   c->ckpt, why.msg);
}

/* Find the step to resume from; -1: there is none. r->damaged names a newer one that is damaged.
 * Damaged steps without a complete one are an error, because a new start would lose them silently.
 */
static tp_status newest(int64_t *step, struct restore_report *r, const struct train_config *c,
                        struct tp_err *err)
{
    struct arena a = { 0 };
    struct ckpt_step *steps = NULL;
    const char *damaged = "";
    int n = 0;
    tp_status st;

    *step = -1;
    st = ckpt_check_root(c->ckpt, err);
    if (!st && file_exists(c->ckpt))
        st = ckpt_list(&steps, &n, c->ckpt, &a, err);
    for (int i = 0; !st && i < n; i++) {
        if (steps[i].complete) {
            *step = steps[i].step;
            damaged = "";
        } else if (!strstr(steps[i].name, ".tmp")) {
            damaged = steps[i].name;
        }
    }
    if (!st && c->resume == RESUME_NO && *step >= 0)
        st = tp_fail(err, TP_E_EXISTS,
                     "%s already has checkpoints (step %" PRId64
                     "): continue with --resume, or name another --ckpt",
                     c->ckpt, *step);
    else if (!st && *step < 0 && *damaged)
        st = refuse_unreadable(c, err);
    else if (!st && c->resume == RESUME_MUST && *step < 0)
        st = tp_fail(err, TP_E_NOTFOUND, "%s has no checkpoint to resume (--resume=must)", c->ckpt);
    snprintf(r->damaged, sizeof r->damaged, "%s", damaged);
    arena_free(&a);
    return st;
}

/* ---- safetensors, random ---- */

static tp_status read_safetensors(struct trainer *t, struct restore_report *r,
                                  struct staging *staging, struct arena *a, struct tp_err *err)
{
    const struct params *p = &t->params;
    struct transfer_stats stats = { 0 };
    struct restore_request q;
    struct read_list w;
    tp_status st = read_list_init(&w, p, a, err);

    if (st)
        return st;
    for (int i = 0; i < p->n; i++)
        if (p->list[i].own.n && params_first_holder(p, i) == i)
            read_list_add(&w, &t->layout.tensors[p->list[i].tensor], &p->list[i].own.box,
                          params_owned(p, &p->list[i]).value, 0);
    q = request_of(&w, staging);
    st = restore_safetensors(&q, t->config->model_path, w.tensors, &stats, err);
    snprintf(r->from, sizeof r->from, "%s", t->config->model_path);
    r->kind = RESTORE_SAFETENSORS;
    r->bytes_read = stats.bytes_read;
    r->bytes_needed = stats.bytes_wanted;
    return st;
}

static tp_status read_start(struct trainer *t, struct restore_report *r, int64_t step,
                            struct tp_err *err)
{
    struct arena a = { 0 };
    struct staging staging;
    tp_status st;

    if (step < 0 && !file_is_dir(t->config->model_path))
        return weight_init(&t->params, &t->layout, t->model, (uint64_t)t->config->seed, err);
    TP_TRY(staging_open(&staging, t->queue, STAGING_BYTES, err));
    if (step >= 0)
        TP_TRY(read_ckpt(t, r, step, &staging, &a, err));
    else
        TP_TRY(read_safetensors(t, r, &staging, &a, err));
    st = staging_finish(&staging, err);
done:
    staging_close(&staging);
    arena_free(&a);
    return st;
}

static tp_status sum_bytes(struct restore_report *r, struct comm_control *control,
                           struct tp_err *err)
{
    int64_t sums[2] = { r->bytes_read, r->bytes_needed };
    tp_status st = control_sum_i64(control, sums, 2, err);

    r->all_bytes_read = sums[0];
    r->all_bytes_needed = sums[1];
    return st;
}

tp_status restore_start(struct trainer *t, struct restore_report *r, struct tp_err *err)
{
    struct comm_control *control = t->parallel.control;
    int64_t step = -1;
    tp_status st = TP_OK;

    *r = (struct restore_report){ .kind = RESTORE_RANDOM };
    if (t->config->ckpt && control_rank(control) == 0)
        st = newest(&step, r, t->config, err);
    TP_TRY(control_agree(control, st, err));
    TP_TRY(control_broadcast(control, &step, sizeof step, 0, err));
    r->root_was_empty = t->config->resume == RESUME_AUTO && step < 0;
    TP_TRY(control_agree(control, read_start(t, r, step, err), err));
    params_copy_to_holders(&t->params);
    TP_TRY(sum_bytes(r, control, err));
    bucket_transfer_start_weights(&t->weights);
done:
    return st;
}
