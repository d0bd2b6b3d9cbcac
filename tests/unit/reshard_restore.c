/*
 * tests/unit/reshard_restore.c - each rank reads its boxes from a checkpoint of any layout.
 *
 * covers: reshard/formats/checkpoint/checkpoint_source reshard/formats/checkpoint/shard_parts
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/file.h"
#include "layout/model_tensors.h"
#include "reshard/restore.h"
#include "tests/unit/fixture.h"

enum { SEED = 3, STEP = 4 };

struct saved {
    char root[64];
    struct arena arena;
    struct model model;
    struct ckpt_found step;
};

/* Write a checkpoint of a random model at a random layout, and open it. */
static void save(struct saved *s, struct rng *r)
{
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    struct spec spec;
    int n;

    *s = (struct saved){ .root = "/tmp/tp-restore-XXXXXX", .model = random_model(r) };
    cr_assert_not_null(mkdtemp(s->root));
    spec = random_spec(r, &s->model);
    cr_assert_eq(model_state(&tensors, &n, &s->model, DTYPE_BF16, &s->arena, &err), TP_OK);
    cr_assert_eq(layout_make(&l, &spec, s->model.layers, tensors, n, &s->arena, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(fixture_checkpoint(s->root, STEP, &l, NULL, SEED, false, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(ckpt_open(&s->step, s->root, -1, &s->arena, &err), TP_OK, "%s", err.msg);
}

static void discard(struct saved *s)
{
    struct tp_err err = { 0 };

    cr_assert_eq(file_remove_tree(s->root, &err), TP_OK, "%s", err.msg);
    arena_free(&s->arena);
}

/* The boxes of all tensors that one rank of a layout needs. */
struct wanted {
    int n;
    int *ids;
    enum dtype *dtypes;
    struct reshard_extent *extents;
    void **data;
};

static void want(struct wanted *w, const struct layout *l, int rank, struct arena *arena)
{
    size_t room = (size_t)l->n_tensors * TENSOR_BOXES_MAX;

    *w = (struct wanted){ .ids = arena_array(arena, (size_t)l->n_tensors, sizeof *w->ids),
                          .dtypes = arena_array(arena, (size_t)l->n_tensors, sizeof *w->dtypes),
                          .extents = arena_array(arena, room, sizeof *w->extents),
                          .data = arena_array(arena, room, sizeof *w->data) };
    for (int t = 0; t < l->n_tensors; t++) {
        struct box boxes[TENSOR_BOXES_MAX];
        int n = layout_boxes(l, t, rank, boxes);

        w->ids[t] = t;
        w->dtypes[t] = l->tensors[t].dtype;
        for (int i = 0; i < n; i++) {
            w->extents[w->n] = (struct reshard_extent){ t, boxes[i] };
            w->data[w->n++] =
                arena_alloc(arena, (size_t)(box_elements(&boxes[i]) * dtype_bytes(w->dtypes[t])));
        }
    }
}

static tp_status restore(const struct saved *s, const struct wanted *w, struct rng *r,
                         struct transfer_stats *stats, struct tp_err *err)
{
    const struct restore_request q = { .n_tensors = s->step.manifest.layout.n_tensors,
                                       .n_extents = w->n,
                                       .extents = w->extents,
                                       .data = w->data,
                                       .dtypes = w->dtypes,
                                       .memory_bytes = rng_int(r, 16, 100000),
                                       .threads = (int)rng_int(r, 1, 3) };

    return restore_checkpoint(&q, &s->step, w->ids, stats, err);
}

static void check_values(const struct saved *s, const struct wanted *w)
{
    for (int i = 0; i < w->n; i++) {
        const struct tensor *t = &s->step.manifest.layout.tensors[w->extents[i].tensor];
        size_t bytes = (size_t)(box_elements(&w->extents[i].box) * dtype_bytes(t->dtype));
        void *right = malloc(bytes);

        fixture_fill(right, t, &w->extents[i].box, SEED);
        cr_assert_eq(memcmp(right, w->data[i], bytes), 0, "%s/%s", t->group, t->name);
        free(right);
    }
}

Test(restore, every_rank_of_any_layout_gets_its_boxes)
{
    struct rng r = rng_start("restore/boxes");

    for (int i = 0; i < 12; i++) {
        struct saved s;
        struct spec spec;
        struct layout to;
        struct tp_err err = { 0 };

        save(&s, &r);
        spec = random_spec(&r, &s.model);
        cr_assert_eq(layout_make(&to, &spec, s.model.layers, s.step.manifest.layout.tensors,
                                 s.step.manifest.layout.n_tensors, &s.arena, &err),
                     TP_OK);
        for (int rank = 0; rank < spec_world(&spec); rank++) {
            struct arena arena = { 0 };
            struct transfer_stats stats;
            struct wanted w;

            want(&w, &to, rank, &arena);
            cr_assert_eq(restore(&s, &w, &r, &stats, &err), TP_OK, "%s", err.msg);
            check_values(&s, &w);
            arena_free(&arena);
        }
        discard(&s);
    }
}

/* Flip a bit of a random chunk's payload. *tensor and *box receive its tensor and box. */
static void flip(const struct saved *s, struct rng *r, int *tensor, struct box *box)
{
    const struct shard_info *info =
        &s->step.manifest.shards[rng_int(r, 0, s->step.manifest.n_shards - 1)];
    const struct chunk_entry *chunk;
    struct shard_reader *reader;
    struct tp_err err = { 0 };
    char path[PATH_MAX + 64];
    unsigned char byte;
    int64_t n, at;
    int fd;

    cr_assert_eq(shard_open(&reader, s->step.dir, info, &s->step.manifest.layout, &err), TP_OK);
    chunk = shard_chunks(reader, &n);
    chunk += rng_int(r, 0, n - 1);
    *tensor = chunk->tensor;
    *box = chunk->box;
    at = chunk->offset + rng_int(r, 0, chunk->stored_bytes - 1);
    shard_reader_close(reader);
    snprintf(path, sizeof path, "%s/%s", s->step.dir, info->file);
    fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1 << rng_int(r, 0, 7));
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static bool touches(const struct wanted *w, int tensor, const struct box *box)
{
    struct box meet;

    for (int i = 0; i < w->n; i++)
        if (w->extents[i].tensor == tensor && box_meet(&meet, &w->extents[i].box, box))
            return true;
    return false;
}

Test(restore, a_flipped_bit_is_found_when_any_part_of_its_chunk_is_read)
{
    struct rng r = rng_start("restore/damage");
    int found = 0;

    for (int i = 0; i < 30; i++) {
        struct saved s;
        struct spec spec;
        struct layout to;
        struct tp_err err = { 0 };
        struct box box;
        int tensor;

        save(&s, &r);
        flip(&s, &r, &tensor, &box);
        spec = random_spec(&r, &s.model);
        cr_assert_eq(layout_make(&to, &spec, s.model.layers, s.step.manifest.layout.tensors,
                                 s.step.manifest.layout.n_tensors, &s.arena, &err),
                     TP_OK);
        for (int rank = 0; rank < spec_world(&spec); rank++) {
            struct transfer_stats stats;
            struct wanted w;
            tp_status st;

            want(&w, &to, rank, &s.arena);
            st = restore(&s, &w, &r, &stats, &err);
            if (touches(&w, tensor, &box)) {
                cr_assert_eq(st, TP_E_CORRUPT, "rank %d read damaged bytes and reported no error",
                             rank);
                cr_assert(strstr(err.msg, "rank-") &&
                              strstr(err.msg, s.step.manifest.layout.tensors[tensor].name),
                          "%s", err.msg);
                found++;
            } else {
                check_values(&s, &w);
            }
        }
        discard(&s);
    }
    cr_assert_gt(found, 0);
}
