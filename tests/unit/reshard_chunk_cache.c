/*
 * tests/unit/reshard_chunk_cache.c - parts of compressed chunks are read by several threads, also
 * when the cache is too small for them.
 */
#include "reshard/formats/checkpoint/chunk_cache.h"

#include <string.h>

#include "core/thread_pool.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

enum { PARTS = 5 };
#define SEED (3 | FIXTURE_SMOOTH)

TestSuite(chunk_cache, .init = temp_dir_make, .fini = temp_dir_remove);

struct example {
    struct arena arena;
    struct layout layout;
    struct shard_reader *reader;
    const struct chunk_entry *chunks;
    int64_t n;
    struct chunk_cache *cache;
};

static void open_example(struct example *x, int64_t cache_bytes)
{
    struct tp_err err = { 0 };
    struct stored_box *boxes;
    struct shard_info info;
    int n;

    *x = (struct example){ .n = 0 };
    x->layout = tiny_layout("tp1", DTYPE_F32, &x->arena);
    cr_assert_eq(stored_box_list(&boxes, &n, &x->layout, &x->arena, &err), TP_OK);
    {
        const struct shard_plan plan = { temp_dir, 0, &x->layout, boxes, n, NULL, 1, NULL };

        cr_assert_eq(fixture_shard(&info, &plan, SEED, &err), TP_OK, "%s", err.msg);
    }
    cr_assert_eq(shard_open(&x->reader, temp_dir, &info, &x->layout, &err), TP_OK, "%s", err.msg);
    x->chunks = shard_chunks(x->reader, &x->n);
    cr_assert_eq(chunk_cache_new(&x->cache, cache_bytes, &err), TP_OK);
}

static void close_example(struct example *x)
{
    chunk_cache_free(x->cache);
    shard_reader_close(x->reader);
    arena_free(&x->arena);
}

/* A thread_pool_fn: read part number `item` of all, in an order in which chunks alternate. */
static tp_status read_part(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct example *x = ctx;
    const int64_t k = item % x->n, part = item / x->n;
    const struct chunk_entry *c = &x->chunks[k];
    const int64_t from = c->raw_bytes * part / PARTS, end = c->raw_bytes * (part + 1) / PARTS;
    unsigned char *all = malloc((size_t)c->raw_bytes), *found = malloc((size_t)(end - from + 1));
    tp_status st = TP_OK;

    (void)worker;
    if (c->codec != CODEC_RAW) {
        fixture_fill(all, &x->layout.tensors[c->tensor], &c->box, SEED);
        st = chunk_cache_read(x->cache, x->reader, k, from, found, end - from, err);
        if (!st && memcmp(found, all + from, (size_t)(end - from)) != 0)
            st = tp_fail(err, TP_E_INTERNAL, "chunk %lld, part %lld differs", (long long)k,
                         (long long)part);
    }
    free(all);
    free(found);
    return st;
}

Test(chunk_cache, threads_read_parts_whatever_fits_into_the_cache)
{
    const int64_t sizes[] = { 0, 20000, 64 << 20 };

    for (int i = 0; i < 3; i++) {
        struct example x;
        struct tp_err err = { 0 };

        open_example(&x, sizes[i]);
        cr_assert_gt(x.n, 20);
        cr_assert_eq(thread_pool_run(read_part, &x, x.n * PARTS, 4, &err), TP_OK, "%s", err.msg);
        close_example(&x);
        temp_dir_remove();
        temp_dir_make();
    }
}

/* Damage one byte of a chunk. */
static void damage(const struct chunk_entry *c)
{
    FILE *f = fopen(temp_path("rank-00000.h5"), "r+b");
    int byte;

    fseek(f, (long)c->offset + (long)c->stored_bytes / 2, SEEK_SET);
    byte = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(byte ^ 4, f);
    fclose(f);
}

Test(chunk_cache, damage_is_reported_to_every_reader)
{
    struct example x;
    struct tp_err err = { 0 };
    unsigned char byte;
    int64_t k = 0;

    open_example(&x, 1 << 20);
    while (k < x.n && x.chunks[k].codec == CODEC_RAW)
        k++;
    cr_assert_lt(k, x.n, "nothing is compressed");
    damage(&x.chunks[k]);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(chunk_cache_read(x.cache, x.reader, k, 1, &byte, 1, &err), TP_E_CORRUPT,
                     "chunk %ld: %s", (long)k, err.msg);
        cr_assert(strstr(err.msg, "the bytes are damaged") != NULL, "%s", err.msg);
    }
    cr_assert_eq(thread_pool_run(read_part, &x, x.n * PARTS, 4, &err), TP_E_CORRUPT);
    close_example(&x);
}
