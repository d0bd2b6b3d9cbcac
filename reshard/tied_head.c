/* reshard/tied_head.c - see reshard/tied_head.h. */
#include "reshard/tied_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "layout/parallel_plan.h"

enum { RUN_BYTES = 1 << 20 };

/* Whether both are the same elements of the same files. */
static bool same_places(const struct piece_tensor *a, const struct piece_tensor *b)
{
    bool same = a->n == b->n;

    for (int i = 0; i < a->n && same; i++) {
        const struct piece *x = &a->pieces[i], *y = &b->pieces[i];

        same = x->file == y->file && x->begin == y->begin && x->dtype == y->dtype &&
               box_equal(&x->box, &y->box) &&
               memcmp(x->stride, y->stride, (size_t)x->ndim * sizeof *x->stride) == 0;
    }
    return same;
}

static bool same_type(const struct piece *a, const struct piece *b)
{
    const struct box x = box_whole(a->ndim, a->shape), y = box_whole(b->ndim, b->shape);

    return a->dtype != DTYPE_COUNT && a->dtype == b->dtype && box_equal(&x, &y);
}

/* Read all of it, for its digests. */
static tp_status read_all(const struct reshard_endpoint *from, struct tp_err *err)
{
    void *buf = malloc(RUN_BYTES);
    tp_status st = TP_OK;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "no memory to read tensors");
    for (int i = 0; i < from->n_extents; i++) {
        const struct reshard_extent *e = &from->extents[i];
        const int64_t most = RUN_BYTES / dtype_bytes(from->dtypes[e->tensor]);

        for (int64_t k = 0; k < box_run_count(&e->box, most); k++) {
            struct box run;

            box_run(&run, &e->box, most, k);
            TP_TRY(from->read(from->ctx, i, &run, buf, err));
        }
    }
    st = from->check(from->ctx, err);
done:
    free(buf);
    return st;
}

/* Whether the two, of one type and shape, have equal values. */
static tp_status compare(bool *equal, struct piece_source *s, const char *group,
                         const struct piece_tensor pair[2], struct tp_err *err)
{
    const struct reshard_endpoint *from;
    const char *groups[2] = { group, group };
    struct tensor wanted[2];
    struct digest d[2];
    tp_status st;

    for (int i = 0; i < 2; i++) {
        const struct piece *p = pair[i].pieces;

        wanted[i] = (struct tensor){ .name = p->name, .group = group, .dtype = p->dtype };
        wanted[i].ndim = p->ndim;
        memcpy(wanted[i].shape, p->shape, sizeof wanted[i].shape);
    }
    TP_TRY(piece_source_select(s, wanted, groups, 2, err));
    from = piece_source_endpoint(s);
    TP_TRY(read_all(from, err));
    for (int i = 0; i < 2; i++)
        d[i] = from->digest(from->ctx, i);
    *equal = memcmp(&d[0], &d[1], sizeof d[0]) == 0;
done:
    return st;
}

static tp_status check_group(struct piece_source *s, const char *group, const struct model *m,
                             struct tp_err *err)
{
    const char *names[2] = { parallel_plan_end_name(m, ROLE_EMBEDDING),
                             parallel_plan_end_name(m, ROLE_HEAD) };
    struct piece_tensor pair[2];
    char word[TEXT_WORD_MAX];
    bool equal = false;

    for (int i = 0; i < 2; i++) {
        const int found = foreign_find(s, group, names[i]);

        if (found < 0)
            return TP_OK;
        pair[i] = piece_source_tensor(s, found);
    }
    if (same_places(&pair[0], &pair[1]))
        return TP_OK;
    if (same_type(pair[0].pieces, pair[1].pieces)) {
        tp_status st = compare(&equal, s, group, pair, err);

        if (st)
            return st;
    }
    if (equal)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: %s differs from %s, but config.json says \"tie_word_embeddings\" true (or "
                   "leaves it out); with false there, the model has its own head; tp-ckpt import "
                   "--ignore %s leaves it out on purpose",
                   piece_source_path(s), pair[1].pieces->name, pair[0].pieces->name,
                   text_shell_word(word, pair[1].pieces->name));
}

tp_status tied_head_check(const char *path, const struct foreign_format *format,
                          const struct model *m, const struct unknown_tensors_ignore *ignore,
                          int64_t memory_bytes, struct tp_err *err)
{
    static const char *const groups[] = { GROUP_PARAM, GROUP_MASTER };
    struct piece_source *s = NULL;
    struct tp_err unread;
    tp_status st = TP_OK;

    if (!m->tied || unknown_tensors_ignores(ignore, parallel_plan_end_name(m, ROLE_HEAD)))
        return TP_OK;
    if (!format)
        format = foreign_format_safetensors();
    if (foreign_open(&s, format, path, m, memory_bytes, &unread))
        return TP_OK;
    for (int i = 0; i < 2 && !st; i++)
        st = check_group(s, groups[i], m, err);
    piece_source_close(s);
    return st;
}
