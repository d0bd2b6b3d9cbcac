/* reshard/formats/pieces/piece_share.c - a target of pieces that several processes write; see
 * reshard/formats/pieces/piece_target.h.
 *
 * Rank 0 creates the files, with all that is around the tensors. The other processes need to know
 * only where tensors go, so they get its tables of files, places and sums, and open the same
 * files.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/engine/reduce_sums.h"
#include "reshard/formats/pieces/piece_target.h"
#include "reshard/formats/pieces/piece_target_state.h"

/* The sizes of rank 0's tables. */
struct share_sizes {
    int64_t files, places, sums;
    int64_t name_bytes; /* of all names of files, each with its zero */
};

static tp_status no_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "no memory for the tables of the files that are written");
}

/* ---- the end of a transfer ---- */

/* A reduce_sums_fn. */
static void add_parts(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        into[i] ^= from[i];
}

/* The `combine` of the endpoint. */
static tp_status combine(void *ctx, struct comm_control *control, struct tp_err *err)
{
    struct piece_target *t = ctx;
    const struct reduce_sums parts = { t->parts, t->n_sums, 1, add_parts };
    tp_status st = tensor_digests_combine(&t->digests, control, err);

    return st ? st : reduce_sums(control, &parts, err);
}

/* ---- the tables ---- */

static const char *name_of(const struct piece_target *t, int file)
{
    return file_table_path(t->files, file) + strlen(t->dir) + 1;
}

static struct share_sizes sizes_of(const struct piece_target *t)
{
    struct share_sizes s = { t->n_files, t->n_places, t->n_sums, 0 };

    for (int i = 0; i < t->n_files; i++)
        s.name_bytes += (int64_t)strlen(name_of(t, i)) + 1;
    return s;
}

/* The names of all files, or room for them; malloc'ed, NULL without memory. */
static char *names_of(const struct piece_target *t, const struct share_sizes *s, bool is_root)
{
    char *names = malloc((size_t)s->name_bytes + 1), *to = names;

    for (int i = 0; is_root && names && i < t->n_files; i++) {
        const size_t n = strlen(name_of(t, i)) + 1;

        memcpy(to, name_of(t, i), n);
        to += n;
    }
    return names;
}

/* Add the files, whose folders rank 0 has made. */
static tp_status add_files(struct piece_target *t, const struct share_sizes *s, const char *names,
                           struct tp_err *err)
{
    tp_status st = TP_OK;

    for (; t->n_files < s->files && !st; names += strlen(names) + 1) {
        char path[PATH_MAX];
        int ignored;

        st = file_join(path, t->dir, names, err);
        if (!st)
            st = file_table_add(t->files, &ignored, path, err);
        t->n_files += !st;
    }
    return st;
}

static tp_status make_room(struct piece_target *t, const struct share_sizes *s, struct tp_err *err)
{
    t->places = calloc((size_t)s->places + 1, sizeof *t->places);
    t->sums = calloc((size_t)s->sums + 1, sizeof *t->sums);
    if (!t->places || !t->sums)
        return no_memory(err);
    t->n_places = t->places_room = (int)s->places;
    t->n_sums = t->sums_room = (int)s->sums;
    return TP_OK;
}

tp_status piece_target_share(struct piece_target *t, struct comm_control *control,
                             struct tp_err *err)
{
    const bool is_root = control_rank(control) == 0;
    struct share_sizes s = { 0 };
    char *names = NULL;
    tp_status st = TP_OK;

    if (is_root)
        s = sizes_of(t);
    TP_TRY(control_broadcast(control, &s, sizeof s, 0, err));
    names = names_of(t, &s, is_root);
    if (!names)
        st = no_memory(err);
    if (!st && !is_root)
        st = make_room(t, &s, err);
    TP_TRY(control_agree(control, st, err));
    TP_TRY(control_broadcast(control, names, s.name_bytes, 0, err));
    TP_TRY(control_broadcast(control, t->places, s.places * (int64_t)sizeof *t->places, 0, err));
    TP_TRY(control_broadcast(control, t->sums, s.sums * (int64_t)sizeof *t->sums, 0, err));
    if (!is_root && names) {
        st = add_files(t, &s, names, err);
        if (!st)
            st = piece_target_plan(t, err);
    }
    t->endpoint.combine = combine;
    st = control_agree(control, st, err);
done:
    free(names);
    return st;
}

tp_status piece_target_export_share(struct export_writer *w, const struct export_contents *q,
                                    struct comm_control *control, struct tp_err *err)
{
    struct piece_target *t = w->ctx;
    tp_status st =
        control_rank(control) == 0 ? TP_OK : piece_target_new(&t, q->dir, q->tensors, q->n, err);

    st = control_agree(control, st, err);
    if (!st)
        st = piece_target_share(t, control, err);
    if (!st)
        *w = piece_target_writer(t);
    else if (control_rank(control) != 0)
        piece_target_close(t);
    return st;
}
