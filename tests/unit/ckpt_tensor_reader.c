/* tests/unit/ckpt_tensor_reader.c - reads any box of any tensor from a checkpoint of any layout. */
#include "ckpt/tensor_reader.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

enum { SEED = 21 };

TestSuite(tensor_reader, .init = temp_dir_make, .fini = temp_dir_remove);

static struct box random_box(struct rng *r, const struct tensor *t)
{
    struct box b = { .ndim = t->ndim };

    for (int d = 0; d < t->ndim; d++) {
        b.lo[d] = rng_int(r, 0, t->shape[d] - 1);
        b.len[d] = rng_int(r, 1, t->shape[d] - b.lo[d]);
    }
    return b;
}

Test(tensor_reader, reads_random_boxes_of_every_layout)
{
    static const char *const specs[] = { "tp1", "tp8", "tp2pp2", "tp2dp3zero3" };
    struct rng r = rng_start("tensor_reader/boxes");

    for (int i = 0; i < 4; i++) {
        struct tensor_reader *reader = NULL;
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct ckpt_found found;
        const struct layout *l = &found.manifest.layout;

        tiny_ckpt(temp_dir, specs[i], i, SEED, i % 2 ? DTYPE_BF16 : DTYPE_F32);
        cr_assert_eq(ckpt_open(&found, temp_dir, i, &arena, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(tensor_reader_open(&reader, found.dir, &found.manifest, &err), TP_OK, "%s",
                     err.msg);
        for (int round = 0; round < 200; round++) {
            int id = (int)rng_int(&r, 0, l->n_tensors - 1);
            const struct tensor *t = &l->tensors[id];
            struct box b = random_box(&r, t);
            size_t bytes = (size_t)(box_elements(&b) * dtype_bytes(t->dtype));
            void *data = malloc(bytes), *expected = malloc(bytes);

            fixture_fill(expected, t, &b, SEED);
            cr_assert_eq(tensor_reader_read(reader, id, &b, data, &err), TP_OK, "%s", err.msg);
            cr_assert_eq(memcmp(data, expected, bytes), 0, "%s/%s", t->group, t->name);
            free(data);
            free(expected);
        }
        tensor_reader_close(reader);
        arena_free(&arena);
    }
}

/* Whether the shard with this number in the manifest has an element of a tensor. */
static bool has_element(const struct ckpt_found *found, int shard, int id, const int64_t *at)
{
    const struct manifest *m = &found->manifest;
    struct box element = { .ndim = m->layout.tensors[id].ndim };
    struct shard_reader *reader = NULL;
    struct tp_err err = { 0 };
    const struct chunk_entry *chunks;
    bool has = false;
    int64_t n;

    for (int d = 0; d < element.ndim; d++) {
        element.lo[d] = at[d];
        element.len[d] = 1;
    }
    cr_assert_eq(shard_open(&reader, found->dir, &m->shards[shard], &m->layout, &err), TP_OK, "%s",
                 err.msg);
    chunks = shard_chunks(reader, &n);
    for (int64_t i = 0; i < n; i++)
        has |= chunks[i].tensor == id && box_contains(&chunks[i].box, &element);
    shard_reader_close(reader);
    return has;
}

Test(tensor_reader, knows_which_shard_has_an_element)
{
    struct rng r = rng_start("tensor_reader/shards");
    struct tensor_reader *reader = NULL;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_found found;
    const struct layout *l = &found.manifest.layout;

    tiny_ckpt(temp_dir, "tp2pp2dp2zero3", 1, SEED, DTYPE_BF16);
    cr_assert_eq(ckpt_open(&found, temp_dir, 1, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(tensor_reader_open(&reader, found.dir, &found.manifest, &err), TP_OK, "%s",
                 err.msg);
    for (int round = 0; round < 100; round++) {
        int id = (int)rng_int(&r, 0, l->n_tensors - 1), shard;
        struct box b = random_box(&r, &l->tensors[id]);

        shard = tensor_reader_shard(reader, id, b.lo);
        cr_assert(shard >= 0 && shard < found.manifest.n_shards, "%s: %d", l->tensors[id].name,
                  shard);
        cr_assert(has_element(&found, shard, id, b.lo), "%s: %d", l->tensors[id].name, shard);
        b.lo[0] = l->tensors[id].shape[0];
        cr_assert_eq(tensor_reader_shard(reader, id, b.lo), -1, "beyond the tensor's end");
    }
    tensor_reader_close(reader);
    arena_free(&arena);
}

Test(tensor_reader, a_damaged_chunk_is_an_error_only_where_it_is_read)
{
    const struct box row = { 2, { 0, 0 }, { 1, 64 } }, last = { 2, { 249, 0 }, { 1, 64 } };
    struct tensor_reader *reader = NULL;
    struct shard_reader *shard = NULL;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_found found;
    int64_t n, at = -1;
    float data[64];
    int id, fd;

    tiny_ckpt(temp_dir, "tp2", 1, SEED, DTYPE_F32);
    cr_assert_eq(ckpt_open(&found, temp_dir, -1, &arena, &err), TP_OK, "%s", err.msg);
    id = layout_find(&found.manifest.layout, GROUP_PARAM, "lm_head.weight");
    cr_assert_geq(id, 0);
    cr_assert_eq(
        shard_open(&shard, found.dir, &found.manifest.shards[0], &found.manifest.layout, &err),
        TP_OK);
    for (int64_t i = (shard_chunks(shard, &n), 0); i < n; i++)
        if (shard_chunks(shard, &n)[i].tensor == id)
            at = shard_chunks(shard, &n)[i].offset;
    shard_reader_close(shard);
    cr_assert_gt(at, 0);
    fd = open(temp_path("step-00000001/rank-00000.h5"), O_WRONLY);
    cr_assert_eq(pwrite(fd, "damage", 6, at), 6);
    close(fd);
    cr_assert_eq(tensor_reader_open(&reader, found.dir, &found.manifest, &err), TP_OK, "%s",
                 err.msg);
    cr_expect_eq(tensor_reader_read(reader, id, &row, data, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "lm_head.weight"), "%s", err.msg);
    cr_expect_eq(tensor_reader_read(reader, id, &last, data, &err), TP_OK, "%s", err.msg);
    tensor_reader_close(reader);
    arena_free(&arena);
}

Test(tensor_reader, boxes_of_one_chunk_in_turn_read_it_once)
{
    const struct box boxes[] = { { 2, { 0, 0 }, { 1, 64 } }, { 2, { 1, 0 }, { 1, 64 } } };
    const struct box last = { 2, { 249, 0 }, { 1, 64 } };
    struct tensor_reader *reader = NULL;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_found found;
    uint32_t data[2][64], again[64];
    int id;

    tiny_ckpt(temp_dir, "tp2", 1, SEED, DTYPE_F32);
    cr_assert_eq(ckpt_open(&found, temp_dir, -1, &arena, &err), TP_OK, "%s", err.msg);
    id = layout_find(&found.manifest.layout, GROUP_PARAM, "lm_head.weight");
    cr_assert_eq(tensor_reader_open(&reader, found.dir, &found.manifest, &err), TP_OK, "%s",
                 err.msg);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(tensor_reader_read(reader, id, &boxes[i], data[i], &err), TP_OK);
    cr_assert_eq(truncate(temp_path("step-00000001/rank-00000.h5"), 0), 0);
    cr_expect_eq(tensor_reader_read(reader, id, &boxes[0], again, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(memcmp(again, data[0], sizeof again), 0);
    cr_expect_eq(tensor_reader_read(reader, id, &last, again, &err), TP_OK, "%s", err.msg);
    cr_expect_neq(tensor_reader_read(reader, id, &boxes[1], again, &err), TP_OK, "it was replaced");
    cr_expect_neq(tensor_reader_read(reader, id, &boxes[1], again, &err), TP_OK, "it has not come");
    tensor_reader_close(reader);
    arena_free(&arena);
}
