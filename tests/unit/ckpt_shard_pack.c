/*
 * tests/unit/ckpt_shard_pack.c - shards of compressed chunks hold what was written, in the same
 * bytes each time, and damage and hostile frames are never read.
 *
 * covers: ckpt/shard_pack ckpt/shard_unpack ckpt/shard_pack_resume
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zstd.h>

#include "ckpt/crc.h"
#include "ckpt/shard_pack.h"
#include "ckpt/shard_pack_resume.h"
#include "core/file.h"
#include "core/thread_pool.h"
#include "layout/model_tensors.h"
#include "tests/unit/fixture.h"
#include "tests/unit/temp_dir.h"

TestSuite(shard_pack, .init = temp_dir_make, .fini = temp_dir_remove);

/* ---- what is written is read ---- */

struct example {
    struct arena arena;
    struct layout layout;
    struct stored_box *boxes;
    int n;
};

static struct example make_example(struct rng *r, enum dtype dtype)
{
    struct example x = { .n = 0 };
    struct model m = random_model(r);
    struct spec s = random_spec(r, &m);
    struct tp_err err = { 0 };
    struct tensor *tensors;
    int n;

    cr_assert_eq(model_state(&tensors, &n, &m, dtype, &x.arena, &err), TP_OK);
    cr_assert_eq(layout_make(&x.layout, &s, m.layers, tensors, n, &x.arena, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(stored_box_list(&x.boxes, &x.n, &x.layout, &x.arena, &err), TP_OK);
    return x;
}

static struct shard_plan plan_of(const struct example *x, int rank, int level)
{
    return (struct shard_plan){ temp_dir, rank, &x->layout, x->boxes, x->n, NULL, level, NULL };
}

/* Every chunk of a shard has the values of fixture_fill. Returns the number of elements, and adds
 * the number of chunks that are compressed. */
static int64_t check_chunks(const struct example *x, const struct shard_info *info, uint64_t seed,
                            int64_t *compressed)
{
    struct shard_reader *r = NULL;
    struct codec_decoder *decoder = NULL;
    struct tp_err err = { 0 };
    const struct chunk_entry *chunks;
    int64_t n, elements = 0;

    cr_assert_eq(shard_open(&r, temp_dir, info, &x->layout, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(shard_check_meta(r, &err), TP_OK, "%s", err.msg);
    chunks = shard_chunks(r, &n);
    for (int64_t i = 0; i < n; i++) {
        const struct tensor *t = &x->layout.tensors[chunks[i].tensor];
        const size_t bytes = (size_t)chunks[i].raw_bytes;
        unsigned char *found = malloc(bytes), *expected = malloc(bytes);

        fixture_fill(expected, t, &chunks[i].box, seed);
        cr_assert_eq(shard_unpack_chunk(r, i, &decoder, found, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(memcmp(found, expected, bytes), 0);
        *compressed += chunks[i].codec != CODEC_RAW;
        elements += box_elements(&chunks[i].box);
        free(found);
        free(expected);
    }
    codec_decoder_free(decoder);
    shard_reader_close(r);
    return elements;
}

Test(shard_pack, holds_what_was_written_for_random_layouts, .timeout = 120)
{
    struct rng r = rng_start("shard_pack/round trip");
    int64_t compressed = 0;

    for (int round = 0; round < 12; round++) {
        const uint64_t seed = round % 4 ? 99 | FIXTURE_SMOOTH : 99;
        struct example x = make_example(&r, round % 2 ? DTYPE_BF16 : DTYPE_F32);
        int64_t stored = 0, expected = 0;

        for (int i = 0; i < x.n; i++) {
            const struct shard_plan plan = plan_of(&x, x.boxes[i].rank, 1 + round % 3);
            struct tp_err err = { 0 };
            struct shard_info info;

            expected += box_elements(&x.boxes[i].box);
            if (i > 0 && x.boxes[i].rank == x.boxes[i - 1].rank)
                continue;
            cr_assert_eq(fixture_shard(&info, &plan, seed, &err), TP_OK, "%s", err.msg);
            cr_assert(info.chunked);
            stored += check_chunks(&x, &info, seed, &compressed);
        }
        cr_assert_eq(stored, expected);
        temp_dir_remove();
        temp_dir_make();
        arena_free(&x.arena);
    }
    cr_assert_gt(compressed, 0); /* some models have only small tensors */
}

/* ---- the same bytes ---- */

/* A tensor that is cut by columns, one by rows with an odd number of rows, and a scalar. */
enum { TENSORS = 3, BOXES = 5 };

static struct tensor tensors[TENSORS] = {
    { .name = "a", .group = "param", .dtype = DTYPE_F32, .ndim = 2, .shape = { 311, 4096 } },
    { .name = "b", .group = "exp_avg", .dtype = DTYPE_BF16, .ndim = 2, .shape = { 1031, 77 } },
    { .name = "c", .group = "param", .dtype = DTYPE_F32, .ndim = 0 },
};
static struct stored_box boxes[BOXES] = {
    { .tensor = 0, .part = 0, .box = { 2, { 0, 0 }, { 311, 1024 } } },
    { .tensor = 0, .part = 1, .box = { 2, { 0, 1024 }, { 311, 3072 } } },
    { .tensor = 1, .part = 0, .box = { 2, { 0, 0 }, { 515, 77 } } },
    { .tensor = 1, .part = 1, .box = { 2, { 515, 0 }, { 516, 77 } } },
    { .tensor = 2, .part = 0, .box = { 0, { 0 }, { 0 } } },
};

static struct example fixed_example(void)
{
    struct example x = { .boxes = boxes, .n = BOXES };

    x.layout = (struct layout){ .spec = spec_default(), .n_tensors = TENSORS, .tensors = tensors };
    return x;
}

/* Write all boxes in runs of `most` elements, in random order, on some threads. */
struct scramble {
    const struct example *x;
    struct shard_writer *w;
    struct scramble_run {
        int box;
        struct box run;
    } runs[4096];
    int64_t n;
};

static tp_status write_run(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct scramble *s = ctx;
    const struct scramble_run *r = &s->runs[item];
    const struct tensor *t = &tensors[boxes[r->box].tensor];
    void *data = malloc((size_t)(box_elements(&r->run) * dtype_bytes(t->dtype)));
    tp_status st;

    (void)worker;
    fixture_fill(data, t, &r->run, 5 | FIXTURE_SMOOTH);
    st = shard_write(s->w, r->box, &r->run, data, err);
    free(data);
    return st;
}

static void write_scrambled(struct shard_info *info, struct rng *r, int flushes)
{
    struct scramble *s = calloc(1, sizeof *s);
    struct example x = fixed_example();
    const struct shard_plan plan = plan_of(&x, 0, 1);
    struct shard_packer packer;
    struct tp_err err = { 0 };
    int64_t done = 0;

    s->x = &x;
    for (int b = 0; b < BOXES; b++) {
        int64_t most = rng_int(r, 1000, 30000);

        for (int64_t k = 0; k < box_run_count(&boxes[b].box, most); k++) {
            s->runs[s->n].box = b;
            box_run(&s->runs[s->n++].run, &boxes[b].box, most, k);
        }
    }
    for (int64_t i = s->n - 1; i > 0; i--) {
        int64_t j = rng_int(r, 0, i);
        struct scramble_run swap = s->runs[i];

        s->runs[i] = s->runs[j];
        s->runs[j] = swap;
    }
    cr_assert_eq(shard_create(&s->w, &plan, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(shard_packer_open(&packer, 1, 1 + flushes, &err), TP_OK);
    for (int f = 0; f <= flushes; f++) {
        int64_t end = f == flushes ? s->n : rng_int(r, done, s->n);
        struct scramble part = *s;

        memmove(part.runs, s->runs + done, (size_t)(end - done) * sizeof *s->runs);
        cr_assert_eq(thread_pool_run(write_run, &part, end - done, 3, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(shard_pack_flush(&packer, &s->w, 1, &err), TP_OK, "%s", err.msg);
        done = end;
    }
    cr_assert_eq(shard_finish(s->w, info, &err), TP_OK, "%s", err.msg);
    cr_assert_gt(shard_pack_stored_bytes(s->w), 0);
    shard_packer_close(&packer);
    shard_close(s->w);
    free(s);
}

static unsigned char *read_file(const char *name, size_t *size)
{
    FILE *f = fopen(temp_path(name), "rb");
    unsigned char *data = malloc(16 << 20);

    cr_assert_not_null(f);
    *size = fread(data, 1, 16 << 20, f);
    fclose(f);
    return data;
}

Test(shard_pack, the_bytes_do_not_depend_on_the_order_of_writes_or_on_threads)
{
    struct rng r = rng_start("shard_pack/order");
    unsigned char *first = NULL;
    size_t n_first = 0;

    for (int round = 0; round < 4; round++) {
        struct example x = fixed_example();
        struct shard_info info;
        int64_t compressed = 0;
        unsigned char *data;
        size_t n;

        write_scrambled(&info, &r, round);
        cr_assert_eq(check_chunks(&x, &info, 5 | FIXTURE_SMOOTH, &compressed),
                     311 * 4096 + 1031 * 77 + 1);
        cr_assert_eq(compressed, 6);
        data = read_file(info.file, &n);
        if (round == 0) {
            first = data;
            n_first = n;
        } else {
            cr_assert(n == n_first && memcmp(data, first, n) == 0, "round %d", round);
            free(data);
        }
        unlink(temp_path(info.file));
    }
    free(first);
}

Test(shard_pack, chunks_that_are_not_complete_or_not_flushed_are_an_error)
{
    struct example x = fixed_example();
    const struct shard_plan plan = plan_of(&x, 0, 1);

    for (int way = 0; way < 3; way++) {
        struct shard_writer *w = NULL;
        struct shard_info info;
        struct tp_err err = { 0 };
        void *data = calloc(1, 311 * 4096 * 4);

        cr_assert_eq(shard_create(&w, &plan, &err), TP_OK, "%s", err.msg);
        for (int b = way == 0; b < BOXES; b++)
            cr_assert_eq(shard_write(w, b, &boxes[b].box, data, &err), TP_OK);
        if (way < 2)
            cr_assert_eq(fixture_flush(w, 1, &err), TP_OK);
        if (way == 1)
            cr_expect_eq(shard_write(w, 0, &boxes[0].box, data, &err), TP_E_INTERNAL);
        if (way != 1)
            cr_expect_eq(shard_finish(w, &info, &err), TP_E_INTERNAL);
        shard_close(w);
        unlink(temp_path("rank-00000.h5"));
        free(data);
    }
}

/* ---- damage ---- */

/* Two small tensors, of which one is compressed. */
static struct example tiny_example(void)
{
    static struct tensor tiny[2] = {
        { .name = "a", .group = "param", .dtype = DTYPE_F32, .ndim = 2, .shape = { 6, 40 } },
        { .name = "b", .group = "exp_avg", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 5 } },
    };
    static struct stored_box tiny_boxes[2] = {
        { .tensor = 0, .box = { 2, { 0, 20 }, { 6, 20 } } },
        { .tensor = 1, .box = { 1, { 0 }, { 5 } } },
    };
    struct example x = { .boxes = tiny_boxes, .n = 2 };

    x.layout = (struct layout){ .spec = spec_default(), .n_tensors = 2, .tensors = tiny };
    return x;
}

static bool finds_damage(const struct example *x, const struct shard_info *info, struct tp_err *err)
{
    struct shard_reader *r = NULL;
    unsigned char buf[1024];
    bool found = shard_open(&r, temp_dir, info, &x->layout, err) != TP_OK;
    int64_t n = 0;

    if (!found) {
        found = shard_check_meta(r, err) != TP_OK;
        shard_chunks(r, &n);
    }
    for (int64_t i = 0; i < n && !found; i++)
        found = shard_read_chunk(r, i, buf, err) != TP_OK;
    shard_reader_close(r);
    return found && err->status == TP_E_CORRUPT && err->msg[0];
}

static void write_at(const char *path, int64_t at, const void *data, size_t n)
{
    int fd = open(path, O_RDWR);

    cr_assert_eq(pwrite(fd, data, n, at), (ssize_t)n);
    close(fd);
}

Test(shard_pack, every_flipped_bit_and_every_truncation_is_found, .timeout = 120)
{
    struct example x = tiny_example();
    const struct shard_plan plan = plan_of(&x, 0, 1);
    const char *path = temp_path("rank-00000.h5");
    struct tp_err err = { 0 };
    struct shard_info info;
    int64_t compressed = 0;
    unsigned char *data;
    size_t n;

    cr_assert_eq(fixture_shard(&info, &plan, 5 | FIXTURE_SMOOTH, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(check_chunks(&x, &info, 5 | FIXTURE_SMOOTH, &compressed), 6 * 20 + 5);
    cr_assert_gt(compressed, 0);
    data = read_file(info.file, &n);
    cr_assert_eq((int64_t)n, info.size_bytes);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = data[i] ^ (unsigned char)(1 << i % 8);

        if (i > 64 && i + 64 < 4096 && i % 64) /* nothing is there */
            continue;
        write_at(path, (int64_t)i, &byte, 1);
        cr_assert(finds_damage(&x, &info, &err), "byte %zu", i);
        write_at(path, (int64_t)i, data + i, 1);
    }
    for (size_t cut = n - 1; cut > 4000; cut -= 97) {
        cr_assert_eq(truncate(path, (off_t)cut), 0);
        cr_assert(finds_damage(&x, &info, &err), "%zu bytes", cut);
    }
    free(data);
}

/* ---- hostile files, whose checksums are all right ---- */

/* Replace the frame of the first chunk by other bytes, or its row by another, and sign both. */
static void forge(struct shard_info *info, const struct chunk_entry *chunk, const void *frame)
{
    const char *path = temp_path(info->file);
    unsigned char row[CHUNK_ENTRY_BYTES], *index;
    struct chunk_entry c = *chunk;
    struct tp_err err = { 0 };
    unsigned char *data;
    size_t n;

    if (frame) {
        write_at(path, c.offset, frame, (size_t)c.stored_bytes);
        c.crc32c = crc32c(frame, (size_t)c.stored_bytes);
    }
    chunk_entry_encode(row, &c);
    write_at(path, info->index_offset, row, sizeof row);
    data = read_file(info->file, &n);
    index = data + info->index_offset;
    cr_assert_eq(sha256_of(info->index_sha256, index, (size_t)info->index_rows * sizeof row, &err),
                 TP_OK);
    free(data);
}

/* The first chunk must be refused, with this in the message, and a name. */
static void refuse(const struct example *x, const struct shard_info *info, const char *text,
                   bool named)
{
    struct shard_reader *r = NULL;
    unsigned char buf[1024];
    struct tp_err err = { 0 };
    tp_status st = shard_open(&r, temp_dir, info, &x->layout, &err);

    if (!st)
        st = shard_read_chunk(r, 0, buf, &err);
    cr_expect_eq(st, TP_E_CORRUPT, "%s was accepted", text);
    cr_expect(strstr(err.msg, text) != NULL, "'%s' does not contain '%s'", err.msg, text);
    cr_expect(!named || strstr(err.msg, "tensor param/a, box [") != NULL, "%s", err.msg);
    shard_reader_close(r);
}

Test(shard_pack, hostile_frames_and_rows_are_refused_by_name)
{
    struct example x = tiny_example();
    const struct shard_plan plan = plan_of(&x, 0, 1);
    struct shard_reader *r = NULL;
    struct tp_err err = { 0 };
    struct chunk_entry good, c;
    struct shard_info info;
    unsigned char *data, *frame = calloc(1, 4096), zeros[480] = { 0 };
    size_t n;
    int64_t rows;

    cr_assert_eq(fixture_shard(&info, &plan, 5 | FIXTURE_SMOOTH, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(shard_open(&r, temp_dir, &info, &x.layout, &err), TP_OK);
    good = shard_chunks(r, &rows)[0];
    cr_assert_neq(good.codec, CODEC_RAW);
    shard_reader_close(r);
    data = read_file(info.file, &n);
    memcpy(frame, data + good.offset, (size_t)good.stored_bytes);

    frame[0] = 0x50; /* the number of a skippable frame */
    forge(&info, &good, frame);
    refuse(&x, &info, "is not a zstd frame", true);
    c = good;
    c.stored_bytes = (int64_t)ZSTD_compress(frame, 4096, zeros, sizeof zeros, 1);
    cr_assert(c.stored_bytes <= good.stored_bytes); /* good data, but others than the digest's */
    c.codec = CODEC_ZSTD;
    forge(&info, &c, frame);
    refuse(&x, &info, "has the digest", true);
    c.stored_bytes = (int64_t)ZSTD_compress(frame, 4096, zeros, sizeof zeros - 1, 1);
    forge(&info, &c, frame);
    refuse(&x, &info, "does not state the length", true);
    write_at(temp_path(info.file), good.offset, data + good.offset, (size_t)good.stored_bytes);
    c = good;
    c.stored_bytes--;
    c.crc32c = crc32c(data + good.offset, (size_t)c.stored_bytes);
    forge(&info, &c, NULL);
    refuse(&x, &info, "is not one whole zstd frame", true);
    c.stored_bytes = 0;
    forge(&info, &c, NULL);
    refuse(&x, &info, "row 0 of /index has more stored bytes", false);
    c.stored_bytes = (int64_t)CODEC_STORED_MAX + 1;
    forge(&info, &c, NULL);
    refuse(&x, &info, "row 0 of /index has more stored bytes", false);
    c = good;
    c.codec = CODECS;
    forge(&info, &c, NULL);
    refuse(&x, &info, "codec that this version does not support", false);
    forge(&info, &good, NULL);
    info.chunked = false;
    refuse(&x, &info, "codec that this version does not support", false);
    free(data);
    free(frame);
}

/* ---- an interrupted run ---- */

static int synced_folders;

/* Instead of the C library's: counts those of folders. */
int fsync(int fd)
{
    struct stat sb;

    synced_folders += fstat(fd, &sb) == 0 && S_ISDIR(sb.st_mode);
    return (int)syscall(SYS_fsync, fd);
}

Test(shard_pack, the_name_of_a_file_of_incomplete_chunks_is_synced_whenever_it_is_new)
{
    struct example x = fixed_example();
    const struct shard_plan plan = plan_of(&x, 0, 1);
    uint64_t saved[SHARD_PACK_SAVED_WORDS] = { 0 };
    struct shard_writer *w = NULL;
    struct tp_err err = { 0 };
    const float element = 1;
    struct box run;

    cr_assert_eq(shard_create(&w, &plan, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) /* nothing is incomplete, so no file is written */
        cr_assert_eq(shard_pack_save(&w, 1, temp_dir, saved, &err), TP_OK, "%s", err.msg);
    box_run(&run, &x.boxes[0].box, 1, 0);
    cr_assert_eq(shard_write(w, 0, &run, &element, &err), TP_OK, "%s", err.msg);
    synced_folders = 0;
    cr_assert_eq(shard_pack_save(&w, 1, temp_dir, saved, &err), TP_OK, "%s", err.msg);
    cr_expect_gt(synced_folders, 0, "a power cut may remove the file that the journal needs");
    shard_close(w);
}
