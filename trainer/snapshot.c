/* trainer/snapshot.c - see trainer/snapshot.h. */
#include "trainer/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/prune.h"
#include "ckpt/save.h"
#include "ckpt/shard.h"
#include "trainer/snapshot_copy.h"
#include "trainer/snapshot_memory.h"

enum phase { IDLE, COPYING, WRITING, APPEARING, COMMITTING };

struct snapshot {
    struct comm_control *control; /* borrowed */
    const struct train_config *config;
    int64_t data_tokens; /* for the options of the manifest */
    const struct model *model;
    bool force;
    struct root_lock_wait wait;
    int64_t epoch;               /* rank 0 */
    struct snapshot_shard shard; /* what this rank saves */
    struct arena arena;
    struct device *device; /* borrowed, as its kernels */
    const struct kernel_ops *ops;
    struct device_queue *queue;   /* for the copies */
    struct device_event *updated; /* the trainer's work before the copies is done */
    struct device_event *copied;  /* the copies are done; the trainer's event */
    struct snapshot_memory memory;

    enum phase phase;
    struct ckpt_save save;
    struct shard_writer *writer;      /* of this rank's shard, until it has appeared in a store */
    struct trainer_position position; /* of the state that is copied */
    struct shard_info info;           /* of this rank's shard */
    struct shard_info *infos;         /* rank 0: of all; malloc'ed */
    int n_infos;
    _Atomic int64_t newest_step; /* that was committed; -1: none yet */
    _Atomic int64_t prune_from;  /* rank 0: --keep leaves steps before it */
    bool warned;                 /* rank 0: the last save could not remove all old steps */

    pthread_t thread;
    bool has_thread;
    atomic_bool busy;
    tp_status st; /* of the thread, read after joining it; before the first one, of the plan */
    struct tp_err err;
};

/* ---- opening ---- */

static tp_status claim(struct snapshot *s, struct tp_err *err)
{
    int64_t newest = 0;
    tp_status st;

    if (s->shard.rank != 0)
        return TP_OK;
    s->epoch = s->config->epoch;
    if (!s->epoch)
        return ckpt_claim(&s->epoch, s->config->ckpt, &s->wait, err);
    if ((st = ckpt_epoch(&newest, s->config->ckpt, err)))
        return st;
    return newest == s->epoch
               ? TP_OK
               : tp_fail(err, TP_E_STALE,
                         "%s: this launch has epoch %lld, the newest is %lld: a newer job owns it",
                         s->config->ckpt, (long long)s->epoch, (long long)newest);
}

/* Find what this rank saves, and begin to allocate memory for the copies. With several ranks no
 * thread does it: it may wait for kernels, and these for other ranks. */
static void begin_room(struct snapshot *s)
{
    s->st = snapshot_shard_plan(&s->shard, &s->memory.n_bytes, &s->arena, &s->err);
    if (!s->st && control_size(s->control) == 1)
        snapshot_memory_begin(&s->memory);
}

static tp_status make_room(struct snapshot *s, struct tp_err *err)
{
    tp_status st = s->st;

    if (st) {
        *err = s->err;
        return st;
    }
    TP_TRY(snapshot_memory_finish(&s->memory, err));
    TP_TRY(device_queue_open(s->device, &s->queue, DEVICE_QUEUE_COPY, err));
    TP_TRY(device_event_open(s->device, &s->updated, err));
done:
    return st;
}

struct snapshot *snapshot_prepare(const struct trainer *t)
{
    struct snapshot *s = calloc(1, sizeof *s);
    struct comm_control *control = t->parallel.control;

    if (!s)
        return NULL;
    s->control = control;
    s->newest_step = -1;
    s->config = t->config;
    s->data_tokens = t->data.tokens.n;
    s->model = t->model;
    s->shard = (struct snapshot_shard){ .layout = &t->layout,
                                        .rank = control_rank(control),
                                        .zstd = t->config->ckpt_zstd,
                                        .threads = t->host_threads };
    s->device = s->memory.device = t->device;
    s->ops = t->net.k.ops;
    s->copied = t->state_copied;
    begin_room(s);
    return s;
}

tp_status snapshot_open(struct snapshot *s, const struct trainer *t, bool force,
                        const struct root_lock_wait *wait, struct tp_err *err)
{
    struct comm_control *control = t->parallel.control;
    tp_status st;

    TP_TRY(control_agree(control, s ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory to save"), err));
    s->force = force;
    s->wait = *wait;
    TP_TRY(control_agree(control, make_room(s, err), err));
    TP_TRY(control_agree(control, claim(s, err), err));
done:
    return st;
}

/* ---- the threads ---- */

static tp_status write_shard(struct snapshot *s, struct tp_err *err)
{
    struct shard_writer *w;
    tp_status st = snapshot_shard_write(&w, &s->info, &s->shard, s->memory.pinned,
                                        ckpt_save_dir(&s->save), err);

    if (st)
        return st;
    if (s->save.in_store) /* it appears when the shards of all ranks are finished */
        s->writer = w;
    else
        shard_close(w);
    return TP_OK;
}

static char *options_text(const struct snapshot *s, struct arena *a)
{
    const struct train_config *c = s->config;
    const struct train_optimizer *o = &c->opt;

    return arena_printf(
        a,
        "{\"steps\": %lld, \"batch\": %lld, \"seq\": %lld, \"micro\": %lld, \"lr\": %.17g, "
        "\"min_lr\": %.17g, \"warmup\": %lld, \"beta1\": %.17g, \"beta2\": %.17g, \"eps\": %.17g, "
        "\"weight_decay\": %.17g, \"clip\": %.17g, \"seed\": %lld, \"data_tokens\": %lld}",
        (long long)c->steps, (long long)c->global_batch_size, (long long)c->seq_length,
        (long long)c->micro_batch_size, o->lr, o->min_lr, (long long)o->warmup, o->beta1, o->beta2,
        o->eps, o->weight_decay, o->clip, (long long)c->seed, (long long)s->data_tokens);
}

/* Remove old steps. One that the system does not let go, as on NFS what another process reads, is
 * tried again after the next save: the state is saved, so it must not end the run. */
static tp_status prune(struct snapshot *s, struct arena *a, struct tp_err *err)
{
    const struct ckpt_prune_request keep = { .root = s->config->ckpt,
                                             .keep = s->config->keep,
                                             .saved = &s->position.step,
                                             .from = atomic_load(&s->prune_from),
                                             .wait = s->wait };
    struct ckpt_pruned pruned;
    struct tp_err why = { 0 };
    char text[TP_ERR_MAX];
    tp_status st = ckpt_prune(&pruned, &keep, a, &why);

    if (st && st != TP_E_IO) {
        *err = why;
        return st;
    }
    if (st && !s->warned && s->wait.notify) {
        snprintf(text, sizeof text,
                 "warning: --keep: %.800s; training goes on, and the next saves try it again",
                 why.msg);
        s->wait.notify(s->wait.ctx, text);
    }
    s->warned = st != TP_OK;
    return TP_OK;
}

/* Rank 0, when every rank's shard is complete: commit the step, then remove old ones. The step that
 * was just committed counts as intact without being read again: its checksums are of the memory
 * that was written, and every fsync has succeeded. So it always stays, and a later step that this
 * run did not use, for example because it is damaged, never takes its place. */
static tp_status commit(struct snapshot *s, struct tp_err *err)
{
    struct arena a = { 0 };
    struct manifest m = {
        .step = s->position.step,
        .layout = *s->shard.layout,
        .model_config = s->model->config,
        .state = { .step = s->position.step,
                   .optimizer_start = s->position.optimizer_start,
                   .next_sample = s->position.next_sample,
                   .tokens = s->position.tokens,
                   .seed = (uint64_t)s->config->seed,
                   .dtype = s->config->dtype == DTYPE_BF16 ? "bf16" : "fp32",
                   .options = options_text(s, &a) },
        .n_shards = s->n_infos,
        .shards = s->infos,
    };
    tp_status st = m.state.options ? ckpt_save_commit(&s->save, &m, err)
                                   : tp_fail(err, TP_E_NOMEM, "no memory for the manifest");

    if (!st)
        s->newest_step = s->position.step;
    if (!st && s->config->keep > 0)
        st = prune(s, &a, err);
    arena_free(&a);
    return st;
}

static void *work(void *arg)
{
    struct snapshot *s = arg;

    if (s->phase == WRITING)
        s->st = write_shard(s, &s->err);
    else if (s->phase == APPEARING)
        s->st = s->writer ? shard_appear(s->writer, &s->err) : TP_OK;
    else
        s->st = commit(s, &s->err);
    atomic_store(&s->busy, false);
    return NULL;
}

/* If no thread can be started, do the work here. */
static void start_work(struct snapshot *s)
{
    s->st = TP_OK;
    s->err = (struct tp_err){ 0 };
    atomic_store(&s->busy, true);
    s->has_thread = pthread_create(&s->thread, NULL, work, s) == 0;
    if (!s->has_thread)
        work(s);
}

static tp_status join_work(struct snapshot *s, struct tp_err *err)
{
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
    if (s->st)
        *err = s->err;
    return s->st;
}

/* ---- phases ---- */

/* Queue the copies after everything that the trainer has queued. */
static void copy_state(struct snapshot *s, const struct trainer *t)
{
    device_record(t->queue, s->updated);
    device_wait(s->queue, s->updated);
    snapshot_copy(s->queue, s->ops, &s->shard, &t->params, s->memory.pinned);
    device_record(s->queue, s->copied);
    s->position = t->position;
}

/* After a failure of the device all events count as passed, and what was to be copied is not
 * there: then nothing is written, and join_work returns the failure. */
bool snapshot_poll(struct snapshot *s)
{
    if (s->phase == COPYING && device_event_done(s->copied)) {
        s->phase = WRITING;
        s->st = device_event_sync(s->copied, &s->err);
        if (!s->st)
            start_work(s);
    }
    return s->phase == COPYING || atomic_load(&s->busy);
}

/* Wait for the copies, and start to write. */
static tp_status finish_copies(struct snapshot *s, struct tp_err *err)
{
    tp_status st = s->phase == COPYING ? device_event_sync(s->copied, err) : TP_OK;

    if (!st)
        snapshot_poll(s);
    return st;
}

/* A run that may not replace steps began with an empty root. */
static tp_status fail_exists(const struct snapshot *s, int64_t step, struct tp_err *err)
{
    return tp_fail(err, TP_E_EXISTS,
                   "%s: another job has saved step %lld since this one began, so it was not "
                   "saved again; continue with --resume, or name another --ckpt",
                   s->config->ckpt, (long long)step);
}

tp_status snapshot_begin(struct snapshot *s, const struct trainer *t, struct tp_err *err)
{
    const struct ckpt_begin_request request = { .root = s->config->ckpt,
                                                .step = t->position.step,
                                                .epoch = s->epoch,
                                                .force = s->force,
                                                .wait = s->wait };
    tp_status st = TP_OK;

    TP_TRY(snapshot_wait(s, err));
    if (s->shard.rank == 0)
        st = ckpt_save_begin(&s->save, &request, err);
    if (st == TP_E_EXISTS)
        st = fail_exists(s, request.step, err);
    TP_TRY(control_agree(s->control, st, err));
    s->phase = COPYING; /* from here on a failure has files to remove */
    TP_TRY(control_broadcast(s->control, &s->save, sizeof s->save, 0, err));
    copy_state(s, t);
    snapshot_poll(s);
done:
    return st;
}

/* Rank 0 gets the infos of all shards; not every rank has a shard. */
static tp_status gather_infos(struct snapshot *s, struct tp_err *err)
{
    int64_t *sizes = calloc((size_t)control_size(s->control), sizeof *sizes), total = 0;
    void *all = NULL;
    tp_status st;

    TP_TRY(control_agree(s->control, sizes ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory to save"),
                         err));
    TP_TRY(control_gather(s->control, &s->info, s->shard.n_own ? (int64_t)sizeof s->info : 0, &all,
                          sizes, err));
    for (int r = 0; all && r < control_size(s->control); r++)
        total += sizes[r];
    free(s->infos);
    s->infos = all;
    s->n_infos = (int)(total / (int64_t)sizeof *s->infos);
done:
    free(sizes);
    return st;
}

static void close_writer(struct snapshot *s)
{
    shard_close(s->writer);
    s->writer = NULL;
}

static void give_up(struct snapshot *s)
{
    if (s->writer && s->phase > WRITING && ckpt_save_owns(&s->save))
        shard_remove(s->writer);
    close_writer(s);
    if (s->phase != IDLE && s->shard.rank == 0)
        ckpt_save_abort(&s->save);
    s->phase = IDLE;
}

/* Begin the phase after one that all ranks have completed. False: there is none. */
static bool next_phase(struct snapshot *s, tp_status *st, struct tp_err *err)
{
    if (s->phase == COMMITTING)
        return false;
    if (s->phase == WRITING) {
        *st = gather_infos(s, err);
        if (!*st && s->save.in_store)
            *st = control_agree(s->control,
                                s->shard.rank == 0 ? ckpt_save_clear(&s->save, err) : TP_OK, err);
        if (*st)
            return false;
    }
    s->phase = s->phase == WRITING && s->save.in_store ? APPEARING : COMMITTING;
    if (s->phase == APPEARING || s->shard.rank == 0)
        start_work(s);
    return true;
}

tp_status snapshot_advance(struct snapshot *s, struct tp_err *err)
{
    tp_status copied = finish_copies(s, err), st;

    st = control_agree(s->control, copied ? copied : join_work(s, err), err);
    if (!st && next_phase(s, &st, err))
        return TP_OK;
    if (st)
        give_up(s);
    close_writer(s);
    s->phase = IDLE;
    return st;
}

tp_status snapshot_wait(struct snapshot *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    while (!st && s->phase != IDLE)
        st = snapshot_advance(s, err);
    return st;
}

bool snapshot_is_pending(const struct snapshot *s)
{
    return s->phase != IDLE;
}

void snapshot_spare_before(struct snapshot *s, int64_t step)
{
    int64_t none = 0;

    atomic_compare_exchange_strong(&s->prune_from, &none, step);
}

int64_t snapshot_newest_step(const struct snapshot *s)
{
    return s->newest_step;
}

void snapshot_close(struct snapshot *s)
{
    struct tp_err ignored;

    if (!s)
        return;
    join_work(s, &ignored);
    give_up(s);
    free(s->infos);
    device_queue_close(s->queue);
    snapshot_memory_close(&s->memory);
    device_event_close(s->updated);
    arena_free(&s->arena);
    free(s);
}
