/* ckpt/prune.c - see ckpt/prune.h. */
#include "ckpt/prune.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/store_prune.h"
#include "ckpt/temporary.h"
#include "ckpt/verify.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "storage/location.h"

enum prune_fate { LEAVE, KEEP, DELETE };

struct prune {
    const struct ckpt_prune_request *request;
    struct ckpt_pruned *out;
    struct arena *arena;
    struct ckpt_step *steps; /* ascending */
    int n;
    unsigned char *fates;           /* [n] enum prune_fate */
    char (*save_ids)[SAVE_ID_TEXT]; /* [n] of the steps that are kept */

    bool in_store;
    struct store_prune store;
    bool has_owned; /* an intact step of the job that owns the store is kept */
};

/* ---- which steps are intact ---- */

/* The first finding of a verification. */
struct prune_finding {
    char text[TP_ERR_MAX];
    int n;
};

static void note_finding(void *ctx, const char *sentence)
{
    struct prune_finding *f = ctx;

    if (f->n++ == 0)
        snprintf(f->text, sizeof f->text, "%s", sentence);
}

/* Check a step by its manifest and the lengths of its files. */
static tp_status check_lengths(struct prune_finding *f, char save_id[SAVE_ID_TEXT], const char *dir,
                               struct arena *arena, struct tp_err *err)
{
    struct manifest m;
    tp_status st = step_load(&m, dir, arena, err);

    if (!st) {
        memcpy(save_id, m.save_id, SAVE_ID_TEXT);
        return TP_OK;
    }
    if (st == TP_E_NOMEM)
        return st;
    note_finding(f, err->msg);
    return TP_OK;
}

static tp_status check_bytes(struct prune *p, struct prune_finding *f, char save_id[SAVE_ID_TEXT],
                             const char *dir, struct arena *arena, struct tp_err *err)
{
    struct verify v = { .dir = dir,
                        .jobs = p->request->verify_jobs,
                        .progress = p->request->progress,
                        .found = note_finding,
                        .ctx = f };
    tp_status st = ckpt_verify(&v, arena, err);

    if (st == TP_E_NOTFOUND) { /* in a store, another program has begun to remove it */
        note_finding(f, err->msg);
        st = TP_OK;
    }
    p->out->verified_bytes += v.bytes;
    memcpy(save_id, v.manifest.save_id, SAVE_ID_TEXT);
    return st;
}

static tp_status add_damaged(struct prune *p, const char *name, const struct prune_finding *f,
                             struct tp_err *err)
{
    struct ckpt_damaged_step *d = &p->out->damaged[p->out->n_damaged];

    *d = (struct ckpt_damaged_step){ name, arena_strdup(p->arena, f->text), f->n };
    if (!d->finding)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to prune it", p->request->root);
    p->out->n_damaged++;
    return TP_OK;
}

/* Whether step number i, which would be kept, is intact; otherwise it is listed as damaged. */
static tp_status check_step(bool *intact, struct prune *p, int i, bool read_all, struct tp_err *err)
{
    struct prune_finding f = { .n = 0 };
    struct arena arena = { 0 };
    char dir[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(dir, p->request->root, p->steps[i].name, err));
    st = read_all ? check_bytes(p, &f, p->save_ids[i], dir, &arena, err)
                  : check_lengths(&f, p->save_ids[i], dir, &arena, err);
    *intact = !st && f.n == 0;
    if (!st && f.n > 0)
        st = add_damaged(p, p->steps[i].name, &f, err);
done:
    arena_free(&arena);
    return st;
}

/* ---- what happens to each step ---- */

static void leave(struct prune *p, int i, const char *why)
{
    p->out->left[p->out->n_left++] = (struct ckpt_left_step){ p->steps[i].name, why };
}

/* In a store: whether a step must be kept because the job that owns the root has saved it, and no
 * later one that is intact. */
static tp_status is_needed(bool *needed, struct prune *p, int i, struct tp_err *err)
{
    tp_status st;

    *needed = false;
    if (!p->in_store || p->has_owned || !p->steps[i].complete)
        return TP_OK;
    st = store_prune_is_owned(needed, &p->store, p->steps[i].name, err);
    return st == TP_E_NOTFOUND ? TP_OK : st; /* another program removes it */
}

/* What cannot be read of a store: damaged, half of a step, or out of reach. */
static tp_status decide_incomplete(struct prune *p, int i, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct prune_finding f = { .n = 0 };
    enum store_prune_rest rest = STORE_REST_NONE;
    struct manifest m;
    struct tp_err why;
    char dir[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(dir, p->request->root, p->steps[i].name, err));
    st = step_load(&m, dir, &arena, err);
    if (st == TP_E_IO && step_read_manifest(&m, dir, &arena, &why) == TP_E_NOTFOUND)
        st = TP_E_NOTFOUND; /* another program removes it */
    if (st == TP_E_CORRUPT) {
        note_finding(&f, err->msg);
        st = add_damaged(p, p->steps[i].name, &f, err);
    } else if (st == TP_E_NOTFOUND) {
        st = store_prune_rest(&rest, &p->store, p->steps[i].name, err);
    }
    if (rest == STORE_REST_PRUNED && p->has_owned)
        p->fates[i] = DELETE;
    else if (rest != STORE_REST_NONE)
        leave(p, i, "it has no manifest: its writer is at work, or died");
done:
    arena_free(&arena);
    return st;
}

/* Newest first, so p->out->n_kept says how many newer ones are kept. */
static tp_status decide(struct prune *p, int i, struct tp_err *err)
{
    const struct ckpt_prune_request *q = p->request;
    bool wanted, saved, needed, intact = false;
    int64_t step = 0;
    tp_status st;

    if (step_parse_name(&step, p->steps[i].name) == STEP_TMP)
        return TP_OK; /* decided when it is known whether its writer is alive */
    if ((q->saved && step > *q->saved) || step < q->from)
        return TP_OK;
    if (p->in_store && !p->steps[i].complete)
        return decide_incomplete(p, i, err);
    TP_TRY(is_needed(&needed, p, i, err));
    wanted = p->out->n_kept < q->keep || (q->keep_every > 0 && step % q->keep_every == 0) || needed;
    if (p->steps[i].complete && !wanted) {
        if (p->in_store && !p->has_owned)
            leave(p, i,
                  "the job that owns the root has not saved a later step, so it may write "
                  "this one");
        else
            p->fates[i] = DELETE;
        return TP_OK;
    }
    saved = q->saved && step == *q->saved;
    st = check_step(&intact, p, i, p->steps[i].complete && q->verify_jobs > 0 && !saved, err);
    if (!st && intact && p->steps[i].complete) {
        p->fates[i] = KEEP;
        p->out->n_kept++;
        p->has_owned = p->has_owned || needed;
    }
done:
    return st;
}

static tp_status decide_all(struct prune *p, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = p->n - 1; i >= 0 && !st; i--)
        st = decide(p, i, err);
    if (!st && p->out->n_kept == 0 && p->out->n_damaged > 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: no step is intact, so nothing was deleted; tp-ckpt verify lists what is "
                     "wrong with a step",
                     p->request->root);
    return st;
}

/* Under ROOT/lock: verifying may have taken long, so look again at what is kept. */
static tp_status check_kept(const struct prune *p, struct tp_err *err)
{
    for (int i = 0; i < p->n; i++) {
        struct arena arena = { 0 };
        struct manifest m;
        struct tp_err why = { 0 };
        char dir[PATH_MAX];
        bool same;

        if (p->fates[i] != KEEP)
            continue;
        same = !file_join(dir, p->request->root, p->steps[i].name, &why) &&
               !step_load(&m, dir, &arena, &why) &&
               memcmp(m.save_id, p->save_ids[i], SAVE_ID_TEXT) == 0;
        arena_free(&arena);
        if (!same)
            return tp_fail(err, TP_E_STALE,
                           "%s/%s: was removed or replaced by another program while it was "
                           "verified; nothing was deleted; run this again",
                           p->request->root, p->steps[i].name);
    }
    return TP_OK;
}

/* ---- deleting ---- */

/* *deleted is false when another program was faster. */
static tp_status remove_step(bool *deleted, const char *root, const char *name, struct tp_err *err)
{
    char from[PATH_MAX], to[PATH_MAX], tmp_name[NAME_MAX + 1], id[SAVE_ID_TEXT];
    tp_status st;

    *deleted = false;
    TP_TRY(temporary_save_id(id, err));
    snprintf(tmp_name, sizeof tmp_name, "%.100s.tmp-%s", name, id);
    TP_TRY(file_join(from, root, name, err));
    TP_TRY(file_join(to, root, tmp_name, err));
    if (rename(from, to) != 0) {
        if (errno != ENOENT)
            st = tp_fail_errno(err, "%s: cannot rename it to %s", from, to);
        goto done;
    }
    *deleted = true;
    TP_TRY(file_sync_dir(root, err));
    TP_TRY(file_tree_remove(to, err));
done:
    return st;
}

/* What should be deleted, be it a step or a temporary directory; *deleted: whether it is gone. */
static tp_status delete_one(bool *deleted, struct prune *p, int i, struct tp_err *err)
{
    const struct ckpt_prune_request *q = p->request;
    const char *name = p->steps[i].name;
    int64_t step = 0;

    *deleted = p->fates[i] == DELETE;
    if (step_parse_name(&step, name) == STEP_TMP && !p->in_store)
        return temporary_remove_dead(q->root, name, q->dry_run, deleted, err);
    if (!*deleted || q->dry_run)
        return TP_OK;
    return p->in_store ? store_prune_remove(deleted, &p->store, name, err)
                       : remove_step(deleted, q->root, name, err);
}

/* A local one that the system does not let go is left, so that others do not wait for it. */
static tp_status delete_all(struct prune *p, struct tp_err *err)
{
    tp_status st = TP_OK, first = TP_OK;

    for (int i = p->n - 1; i >= 0 && !st; i--) {
        struct tp_err why = { 0 };
        bool deleted;

        st = delete_one(&deleted, p, i, &why);
        if (deleted)
            p->out->names[p->out->n++] = p->steps[i].name;
        if (st && !first) {
            *err = why;
            first = st;
        }
        if (st == TP_E_IO && !p->in_store)
            st = TP_OK;
    }
    return first;
}

static tp_status allocate(struct prune *p, struct tp_err *err)
{
    const size_t n = (size_t)p->n;

    p->fates = arena_array(p->arena, n, sizeof *p->fates);
    p->save_ids = arena_array(p->arena, n, sizeof *p->save_ids);
    p->out->names = arena_array(p->arena, n, sizeof *p->out->names);
    p->out->damaged = arena_array(p->arena, n, sizeof *p->out->damaged);
    p->out->left = arena_array(p->arena, n, sizeof *p->out->left);
    if (p->fates && p->save_ids && p->out->names && p->out->damaged && p->out->left)
        return TP_OK;
    return tp_fail(err, TP_E_NOMEM, "%s: no memory to prune it", p->request->root);
}

tp_status ckpt_prune(struct ckpt_pruned *out, const struct ckpt_prune_request *q,
                     struct arena *arena, struct tp_err *err)
{
    struct prune p = {
        .request = q, .out = out, .arena = arena, .in_store = location_kind(q->root) == LOCATION_S3
    };
    int lock = -1;
    tp_status st;

    *out = (struct ckpt_pruned){ .n = 0 };
    if (q->keep < 1)
        return tp_fail(err, TP_E_USAGE, "at least one step must be kept");
    TP_TRY(p.in_store ? store_prune_begin(&p.store, q->root, err)
                      : location_check_local(q->root, err));
    TP_TRY(ckpt_list(&p.steps, &p.n, q->root, arena, err));
    if (p.n == 0) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no step-NNNNNNNN directories", q->root);
        goto done;
    }
    TP_TRY(allocate(&p, err));
    TP_TRY(decide_all(&p, err));
    if (!q->dry_run && !p.in_store)
        TP_TRY(root_lock(&lock, q->root, &q->wait, err));
    if (q->verify_jobs > 0)
        TP_TRY(check_kept(&p, err));
    TP_TRY(delete_all(&p, err));
done:
    if (lock >= 0)
        close(lock);
    return st;
}
