/* trainer/restore.c - see trainer/restore.h. */
#include "trainer/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "core/text.h"
#include "layout/model_config.h"
#include "layout/model_diff.h"
#include "layout/model_tensors.h"
#include "reshard/formats/foreign_model.h"
#include "reshard/restore.h"
#include "reshard/tied_head.h"
#include "storage/location.h"
#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/model/weight_init.h"
#include "trainer/resume_diff.h"

/* Buffers for reading, of the host and of a GPU. At that time the activations' memory is not
 * resident yet on a host. */
static const int64_t READ_BYTES = INT64_C(64) << 20;

/* ---- what to read, in the engine's form ---- */

struct read_list {
    int n, n_tensors; /* extents; the engine's tensors, one for all parts of a fused tensor */
    int *ids;
    struct reshard_tensor *tensors;
    struct reshard_extent *extents;
    void **data;
    enum dtype *dtypes;
    struct transfer_device device; /* that copies, unless host code can */
};

static tp_status read_list_init(struct read_list *w, const struct trainer *t, struct arena *a,
                                struct tp_err *err)
{
    size_t most = 3 * (size_t)t->params.n; /* weights and two moments of each entry */

    *w = (struct read_list){
        .ids = arena_array(a, most, sizeof *w->ids),
        .tensors = arena_array(a, most, sizeof *w->tensors),
        .extents = arena_array(a, most, sizeof *w->extents),
        .data = arena_array(a, most, sizeof *w->data),
        .dtypes = arena_array(a, most, sizeof *w->dtypes),
        .device = { .device = t->device, .ops = t->params.k.ops, .memory_bytes = READ_BYTES }
    };
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

/* Add this rank's part of tensor t: read `box` to `to`. id is the tensor's index in the
 * manifest. */
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

static struct restore_request request_of(const struct read_list *w, const struct trainer *t)
{
    return (struct restore_request){ .device = t->device->host_memory ? NULL : &w->device,
                                     .n_tensors = w->n_tensors,
                                     .n_extents = w->n,
                                     .extents = w->extents,
                                     .data = w->data,
                                     .dtypes = w->dtypes,
                                     .memory_bytes = READ_BYTES,
                                     .threads = t->host_threads };
}

/* ---- a checkpoint ---- */

static tp_status check_model(const struct trainer *t, const struct manifest *m, const char *dir,
                             struct arena *a, struct tp_err *err)
{
    char difference[MODEL_DIFF_MAX];
    struct model was;
    tp_status st;

    if (!m->model_config)
        return TP_OK; /* the tensors' shapes are compared anyway */
    st = model_config_parse(&was, m->model_config, strlen(m->model_config), dir, a, err);
    if (st || !model_diff(difference, &was, t->model))
        return st;
    return tp_fail(err, TP_E_USAGE, "%s is a checkpoint of another model than %s: its %s", dir,
                   t->config->model_path, difference);
}

/* ---- the optimizer's state ---- */

static bool has_group(const struct manifest *m, const char *group)
{
    for (int i = 0; i < m->layout.n_tensors; i++)
        if (strcmp(m->layout.tensors[i].group, group) == 0)
            return true;
    return false;
}

/* Whether AdamW begins anew: --reset-optim, or the checkpoint has no moments at all. */
static bool is_new_optimizer(const struct train_config *c, const struct manifest *m)
{
    return c->reset_optim || (!has_group(m, GROUP_EXP_AVG) && !has_group(m, GROUP_EXP_AVG_SQ));
}

/* The moments of a new optimizer. They may hold what was read of a damaged step. */
static void clear_moments(const struct params *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);
        int64_t bytes = o.n * (int64_t)sizeof(float);

        device_fill(p->k.queue, o.exp_avg, 0, bytes);
        device_fill(p->k.queue, o.exp_avg_sq, 0, bytes);
    }
}

/* ---- what to read of a checkpoint ---- */

/* The number of the tensor to read for `name`; -1: there is none. */
static int find_saved(const struct manifest *m, const char *group, const char *name, bool anew)
{
    int id = anew ? -1 : layout_find(&m->layout, group, name);

    return id < 0 && strcmp(group, GROUP_MASTER) == 0 ? layout_find(&m->layout, GROUP_PARAM, name)
                                                      : id;
}

static tp_status check_saved(const struct manifest *m, int id, const struct tensor *tensor,
                             const char *group, const char *dir, struct tp_err *err)
{
    if (id < 0 && layout_find(&m->layout, GROUP_PARAM, tensor->name) < 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s has no tensor %s; give the --plan of the run that saved it "
                       "(tp-ckpt show lists its names)",
                       dir, tensor->name);
    if (id < 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s has no %s of %s, but of other tensors; --reset-optim resumes with zero "
                       "moments",
                       dir, group, tensor->name);
    if (!tensor_same_shape(&m->layout.tensors[id], tensor))
        return tp_fail(err, TP_E_USAGE, "%s: the shape of %s is not that of this model", dir,
                       tensor->name);
    return TP_OK;
}

/* List the masters if they were saved, else the weights; and both moments. A new optimizer has no
 * moments to read, and its masters are the weights. */
static tp_status read_list_add_ckpt(struct read_list *w, const struct trainer *t,
                                    const struct manifest *m, const char *dir, struct tp_err *err)
{
    const struct params *p = &t->params;
    static const char *const groups[] = { GROUP_MASTER, GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };
    bool anew = is_new_optimizer(t->config, m);

    for (int g = 0; g < (anew ? 1 : 3); g++)
        for (int i = 0; i < p->n; i++) {
            const struct param *q = &p->list[i];
            const struct param_owned o = params_owned(p, q);
            float *const to[] = { o.value, o.exp_avg, o.exp_avg_sq };
            const struct tensor *tensor = &t->layout.tensors[q->tensor];
            int id = find_saved(m, groups[g], tensor->name, t->config->reset_optim);
            tp_status st = check_saved(m, id, tensor, groups[g], dir, err);

            if (st)
                return st;
            if (o.n && params_first_holder(p, i) == i)
                read_list_add(w, tensor, &q->own.box, to[g], id);
        }
    return TP_OK;
}

static tp_status read_ckpt(struct trainer *t, struct restore_report *r, int64_t step,
                           struct arena *a, struct tp_err *err)
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
    TP_TRY(read_list_init(&w, t, a, err));
    TP_TRY(read_list_add_ckpt(&w, t, m, r->from, err));
    q = request_of(&w, t);
    TP_TRY(restore_checkpoint(&q, &found, w.ids, &stats, err));
    r->new_optimizer = is_new_optimizer(t->config, m);
    if (r->new_optimizer)
        clear_moments(&t->params);
    t->position =
        (struct trainer_position){ .step = m->state.step,
                                   .optimizer_start =
                                       r->new_optimizer ? m->state.step : m->state.optimizer_start,
                                   .next_sample = m->state.next_sample,
                                   .tokens = m->state.tokens };
    r->kind = RESTORE_CKPT;
    r->bytes_read = stats.bytes_read;
    r->bytes_needed = stats.bytes_wanted;
    spec_format(r->layout, &m->layout.spec);
    resume_diff_describe(r->warning, m, t->config, t->model, t->data.tokens.n, a);
done:
    return st;
}

/* ---- safetensors, random ---- */

/* Say what else --model takes, if its folder has no safetensors. */
static tp_status advise_model(const char *path, struct tp_err *err)
{
    const struct tp_err why = *err;
    char word[TEXT_WORD_MAX];

    if (why.status != TP_E_NOTFOUND)
        return why.status;
    return tp_fail(err, why.status,
                   "%.500s; name its config.json to start with random weights, or import another "
                   "format: tp-ckpt import %s -o ROOT",
                   why.msg, text_shell_word(word, path));
}

/* Refuse a folder with tensors that the model does not have. One rank is enough. */
static tp_status check_unknown(const struct trainer *t, struct restore_report *r, struct arena *a,
                               struct tp_err *err)
{
    const struct unknown_tensors_ignore nothing = { 0 };
    struct safetensors_source *source = NULL;
    struct tensor *params;
    int n;
    tp_status st;

    TP_TRY(tied_head_check(t->config->model_path, NULL, t->model, &nothing, 0, err));
    TP_TRY(model_params(&params, &n, t->model, DTYPE_F32, a, err));
    TP_TRY(safetensors_open(&source, t->config->model_path, err));
    TP_TRY(safetensors_dequantize(source, &r->dequantized, err));
    TP_TRY(unknown_tensors_check(&r->left_out, source, t->model, params, n, &nothing, err));
done:
    safetensors_source_close(source);
    return st ? advise_model(t->config->model_path, err) : TP_OK;
}

/* The model of the run no longer says that its weights are quantized. */
static tp_status explain_quantized(tp_status st, const struct trainer *t,
                                   const struct restore_report *r, struct arena *a,
                                   struct tp_err *err)
{
    struct tp_err ignored = { 0 };
    struct model m;

    if ((st != TP_E_CORRUPT && st != TP_E_USAGE) || r->dequantized ||
        control_rank(t->parallel.control) != 0 ||
        foreign_model_config(&m, t->config->model_path, false, a, &ignored))
        return st;
    return foreign_model_explain_quantized(st, &m, err);
}

static tp_status read_safetensors(struct trainer *t, struct restore_report *r, struct arena *a,
                                  struct tp_err *err)
{
    const struct params *p = &t->params;
    struct transfer_stats stats = { 0 };
    struct restore_request q;
    struct read_list w;
    tp_status st;

    if (control_rank(t->parallel.control) == 0)
        TP_TRY(check_unknown(t, r, a, err));
    TP_TRY(read_list_init(&w, t, a, err));
    for (int i = 0; i < p->n; i++)
        if (p->list[i].own.n && params_first_holder(p, i) == i)
            read_list_add(&w, &t->layout.tensors[p->list[i].tensor], &p->list[i].own.box,
                          params_owned(p, &p->list[i]).value, 0);
    q = request_of(&w, t);
    st = restore_safetensors(&q, t->config->model_path, w.tensors, &stats, err);
    snprintf(r->from, sizeof r->from, "%s", t->config->model_path);
    r->kind = RESTORE_SAFETENSORS;
    r->bytes_read = stats.bytes_read;
    r->bytes_needed = stats.bytes_wanted;
done:
    return explain_quantized(st, t, r, a, err);
}

/* Whether a model is a folder with weights, and not a config.json alone. A folder on a web server
 * or in a store is told from a file by its name. */
static bool has_weights(const char *model_path)
{
    return location_is_remote(model_path) ? !text_ends_with(model_path, ".json")
                                          : file_is_dir(model_path);
}

static tp_status read_start(struct trainer *t, struct restore_report *r, int64_t step,
                            struct tp_err *err)
{
    struct arena a = { 0 };
    tp_status st;

    if (step < 0 && !has_weights(t->config->model_path))
        return weight_init(&t->params, &t->layout, t->model, (uint64_t)t->config->seed,
                           t->host_threads, err);
    st = step >= 0 ? read_ckpt(t, r, step, &a, err) : read_safetensors(t, r, &a, err);
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

/* Begin with the chosen step. While its bytes are damaged, go back to the next older one; all ranks
 * decide alike. A step that was asked for is not replaced by another. */
static tp_status read_chosen(struct trainer *t, struct restore_report *r, struct tp_err *err)
{
    struct comm_control *control = t->parallel.control;
    bool again;
    tp_status st;

    do {
        st = TP_OK;
        if (t->config->ckpt && control_rank(control) == 0)
            st = resume_step_choose(&r->chosen, t->config, err);
        TP_TRY(control_agree(control, st, err));
        TP_TRY(control_broadcast(control, &r->chosen, sizeof r->chosen, 0, err));
        st = control_agree(control, read_start(t, r, r->chosen.step, err), err);
        again = st == TP_E_CORRUPT && r->chosen.step >= 0 && t->config->step < 0;
        if (again) {
            resume_step_reject(&r->chosen, err->msg);
            control_recover(control, err);
        }
    } while (again);
done:
    return resume_step_advise(st, t->config, err);
}

tp_status restore_start(struct trainer *t, struct restore_report *r, struct tp_err *err)
{
    tp_status st;

    *r = (struct restore_report){ .kind = RESTORE_RANDOM, .chosen = resume_step_init() };
    TP_TRY(read_chosen(t, r, err));
    r->root_was_empty = t->config->resume == RESUME_AUTO && r->chosen.step < 0;
    params_copy_to_holders(&t->params);
    TP_TRY(sum_bytes(r, t->parallel.control, err));
    bucket_transfer_start_weights(&t->weights);
done:
    return st;
}
