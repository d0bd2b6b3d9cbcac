/*
 * tests/unit/ckpt_shard.c - what is written to a shard is read from it, and damage is never read.
 *
 * covers: ckpt/shard_hdf5 ckpt/hdf5_session ckpt/hdf5_type ckpt/hdf5_attribute
 * covers: ckpt/shard_create ckpt/shard_read ckpt/shard_index ckpt/shard_write
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/chunk_sums.h"
#include "ckpt/sha256.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "core/thread_pool.h"
#include "layout/model_tensors.h"
#include "layout/stored_box.h"
#include "tests/unit/fixture.h"
#include "tests/unit/temp_dir.h"

TestSuite(shard, .init = temp_dir_make, .fini = temp_dir_remove);

/* A random layout of a random model's training state, with its stored boxes. */
struct example {
    struct arena arena;
    struct layout layout;
    struct stored_box *boxes;
    int n;
};

/* The shard of a rank of the example. */
static struct shard_plan plan_of(const struct example *x, int rank)
{
    return (struct shard_plan){ temp_dir, rank, &x->layout, x->boxes, x->n, NULL, 0, NULL };
}

/* Write the shard of a rank. */
static void must_write(struct shard_info *info, const struct example *x, int rank, uint64_t seed)
{
    const struct shard_plan plan = plan_of(x, rank);
    struct tp_err err = { 0 };

    cr_assert_eq(fixture_shard(info, &plan, seed, &err), TP_OK, "%s", err.msg);
}

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

static tp_status open_shard(struct shard_reader **r, const struct example *x,
                            const struct shard_info *info, struct tp_err *err)
{
    *r = NULL;
    return shard_open(r, temp_dir, info, &x->layout, err);
}

/* Every chunk of a shard must hold the values of fixture_fill. Returns the number of elements. */
static int64_t check_chunks(const struct example *x, const struct shard_reader *r, uint64_t seed)
{
    int64_t n, elements = 0;
    const struct chunk_entry *chunks = shard_chunks(r, &n);
    struct tp_err err = { 0 };

    for (int64_t i = 0; i < n; i++) {
        const struct tensor *t = &x->layout.tensors[chunks[i].tensor];
        unsigned char *found = malloc((size_t)chunks[i].raw_bytes);
        unsigned char *expected = malloc((size_t)chunks[i].raw_bytes);
        struct digest d;

        fixture_fill(expected, t, &chunks[i].box, seed);
        cr_assert_eq(shard_read_chunk(r, i, found, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(memcmp(found, expected, (size_t)chunks[i].raw_bytes), 0);
        d = digest_box(found, &chunks[i].box, t->ndim, t->shape, dtype_bytes(t->dtype));
        cr_assert_eq(memcmp(&d, &chunks[i].digest, sizeof d), 0);
        elements += box_elements(&chunks[i].box);
        free(found);
        free(expected);
    }
    return elements;
}

Test(shard, holds_what_was_written_for_random_layouts)
{
    struct rng r = rng_start("shard/round trip");

    for (int round = 0; round < 25; round++) {
        struct example x = make_example(&r, round % 2 ? DTYPE_BF16 : DTYPE_F32);
        int64_t stored = 0, expected = 0;
        struct tp_err err = { 0 };

        for (int i = 0; i < x.n; i++) {
            struct shard_reader *reader;
            struct shard_info info;

            expected += box_elements(&x.boxes[i].box);
            if (i > 0 && x.boxes[i].rank == x.boxes[i - 1].rank)
                continue;
            must_write(&info, &x, x.boxes[i].rank, 99);
            cr_assert_eq(open_shard(&reader, &x, &info, &err), TP_OK, "%s", err.msg);
            cr_assert_eq(shard_check_meta(reader, &err), TP_OK, "%s", err.msg);
            stored += check_chunks(&x, reader, 99);
            shard_reader_close(reader);
        }
        cr_assert_eq(stored, expected);
        file_tree_remove(temp_dir, &err);
        mkdir(temp_dir, 0777);
        arena_free(&x.arena);
    }
}

static void read_file(const char *path, unsigned char **data, int64_t *size)
{
    struct tp_err err = { 0 };
    int fd;

    cr_assert_eq(file_open_read(&fd, size, path, &err), TP_OK, "%s", err.msg);
    *data = malloc((size_t)*size + 1);
    cr_assert_eq(file_read_at(fd, path, 0, *data, (size_t)*size, &err), TP_OK);
    close(fd);
}

Test(shard, same_input_gives_the_same_bytes)
{
    struct rng r = rng_start("shard/deterministic");
    struct example x = make_example(&r, DTYPE_BF16);
    unsigned char *a, *b;
    int64_t n_a, n_b;
    struct shard_info info;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/rank-%05d.h5", temp_dir, x.boxes[0].rank);
    for (int i = 0; i < 2; i++) {
        unlink(path);
        must_write(&info, &x, x.boxes[0].rank, 7);
        if (i == 0) {
            read_file(path, &a, &n_a);
            sleep(1); /* so that stored times would differ */
        }
    }
    read_file(path, &b, &n_b);
    cr_assert_eq(n_a, n_b);
    cr_assert_eq(memcmp(a, b, (size_t)n_a), 0);
    free(a);
    free(b);
    arena_free(&x.arena);
}

/* A shard of two small tensors, one of them cut by columns; tests damage it. */
static struct example tiny_example(void)
{
    static struct tensor tensors[2] = {
        { .name = "a", .group = "param", .dtype = DTYPE_F32, .ndim = 2, .shape = { 3, 8 } },
        { .name = "b", .group = "exp_avg", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 5 } },
    };
    static struct stored_box boxes[2] = {
        { .tensor = 0, .box = { 2, { 0, 4 }, { 3, 4 } } },
        { .tensor = 1, .box = { 1, { 0 }, { 5 } } },
    };
    struct example x = { .boxes = boxes, .n = 2 };

    x.layout = (struct layout){ .spec = spec_default(), .n_tensors = 2, .tensors = tensors };
    return x;
}

/* Whether reading the whole shard finds the damage. */
static bool finds_damage(const struct example *x, const struct shard_info *info)
{
    struct shard_reader *r;
    struct tp_err err = { 0 };
    unsigned char buf[4096];
    bool found = open_shard(&r, x, info, &err) != TP_OK;
    int64_t n = 0;

    if (!found) {
        found = shard_check_meta(r, &err) != TP_OK;
        shard_chunks(r, &n);
    }
    for (int64_t i = 0; i < n; i++)
        found |= shard_read_chunk(r, i, buf, &err) != TP_OK;
    shard_reader_close(r);
    return found && err.status == TP_E_CORRUPT && err.msg[0];
}

Test(shard, every_flipped_bit_and_every_truncation_is_found, .timeout = 120)
{
    struct example x = tiny_example();
    struct shard_info info;
    unsigned char *data;
    char path[PATH_MAX];
    int64_t size;
    int fd;

    must_write(&info, &x, 0, 1);
    snprintf(path, sizeof path, "%s/%s", temp_dir, info.file);
    read_file(path, &data, &size);
    cr_assert_not(finds_damage(&x, &info));
    fd = open(path, O_WRONLY);
    for (int64_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            unsigned char flipped = data[i] ^ (unsigned char)(1 << bit);

            cr_assert_eq(pwrite(fd, &flipped, 1, i), 1);
            cr_assert(finds_damage(&x, &info), "bit %d of byte %lld", bit, (long long)i);
            cr_assert_eq(pwrite(fd, &data[i], 1, i), 1);
        }
    cr_assert_not(finds_damage(&x, &info));
    for (int64_t n = size - 1; n >= 0; n--) {
        cr_assert_eq(ftruncate(fd, n), 0);
        cr_assert(finds_damage(&x, &info), "cut to %lld bytes", (long long)n);
    }
    close(fd);
    free(data);
}

/* The index of the tiny shard is changed, and the manifest gets the checksum of the changed
 * index. */
Test(shard, false_indexes_are_refused_or_read_safely, .timeout = 120)
{
    struct rng r = rng_start("shard/crafted");
    struct example x = tiny_example();
    struct shard_info info, crafted;
    struct tp_err err = { 0 };
    unsigned char *data;
    char path[PATH_MAX];
    int64_t size, accepted = 0;
    int fd;

    must_write(&info, &x, 0, 1);
    snprintf(path, sizeof path, "%s/%s", temp_dir, info.file);
    read_file(path, &data, &size);
    fd = open(path, O_WRONLY);
    for (int round = 0; round < 20000; round++) {
        const int64_t words[] = { 0,
                                  1,
                                  2,
                                  3,
                                  4,
                                  5,
                                  8,
                                  -1,
                                  INT64_MIN,
                                  INT64_MAX,
                                  size,
                                  size - 1,
                                  (int64_t)1 << 32,
                                  (int64_t)1 << 62,
                                  160,
                                  4096 };
        unsigned char index[2 * CHUNK_ENTRY_BYTES];
        struct shard_reader *reader;

        memcpy(index, data + info.index_offset, sizeof index);
        for (int k = 0; k <= round % 3; k++) {
            int64_t word = words[rng_int(&r, 0, 15)];
            int at = 4 * (int)rng_int(&r, 0, 2 * CHUNK_ENTRY_BYTES / 4 - 2);

            memcpy(index + at, &word, round % 2 ? 4 : 8);
        }
        crafted = info;
        sha256_of(crafted.index_sha256, index, sizeof index, &err);
        cr_assert_eq(pwrite(fd, index, sizeof index, info.index_offset), (ssize_t)sizeof index);
        err = (struct tp_err){ 0 };
        if (open_shard(&reader, &x, &crafted, &err) == TP_OK) {
            unsigned char buf[4096];
            int64_t n;

            accepted++; /* another CRC, digest or offset can be valid; then reading must be safe */
            shard_chunks(reader, &n);
            for (int64_t i = 0; i < n; i++)
                shard_read_chunk(reader, i, buf, &err);
        }
        shard_reader_close(reader);
    }
    cr_assert_lt(accepted, 12000);
    close(fd);
    free(data);
}

Test(shard, false_shard_infos_are_refused)
{
    struct example x = tiny_example();
    struct shard_info info, bad;
    struct shard_reader *r;
    struct tp_err err = { 0 };

    must_write(&info, &x, 0, 1);
    for (int i = 0; i < 7; i++) {
        bad = info;
        switch (i) {
        case 0:
            bad.index_offset = INT64_MAX;
            break;
        case 1:
            bad.index_offset = -1;
            break;
        case 2:
            bad.index_rows = INT64_MAX;
            break;
        case 3:
            bad.index_rows = 0;
            break;
        case 4:
            bad.size_bytes++;
            break;
        case 5:
            snprintf(bad.file, sizeof bad.file, "../rank-00000.h5");
            break;
        case 6:
            snprintf(bad.file, sizeof bad.file, "rank-00001.h5");
            break;
        }
        cr_expect_eq(open_shard(&r, &x, &bad, &err), TP_E_CORRUPT, "case %d", i);
    }
}

Test(shard, fifos_and_links_are_refused_without_blocking, .timeout = 60)
{
    struct example x = tiny_example();
    struct shard_info info;
    struct shard_reader *r;
    struct tp_err err = { 0 };
    char path[PATH_MAX], moved[PATH_MAX];

    must_write(&info, &x, 0, 1);
    snprintf(path, sizeof path, "%s/%s", temp_dir, info.file);
    snprintf(moved, sizeof moved, "%s/elsewhere", temp_dir);
    cr_assert_eq(rename(path, moved), 0);
    cr_assert_eq(symlink(moved, path), 0);
    cr_expect_eq(open_shard(&r, &x, &info, &err), TP_E_CORRUPT);
    unlink(path);
    cr_assert_eq(mkfifo(path, 0666), 0);
    cr_expect_eq(open_shard(&r, &x, &info, &err), TP_E_CORRUPT);
}

Test(shard, a_byte_written_twice_or_never_is_reported)
{
    struct example x = tiny_example();
    float data[12] = { 1 };
    struct box half = { 2, { 0, 4 }, { 1, 4 } };
    struct shard_info info;
    struct tp_err err = { 0 };

    for (int times = 0; times < 4; times += 2) {
        const struct shard_plan plan = plan_of(&x, 0);
        struct shard_writer *w = NULL;
        char path[PATH_MAX];

        cr_assert_eq(shard_create(&w, &plan, &err), TP_OK);
        cr_assert_eq(shard_write(w, 1, &x.boxes[1].box, data, &err), TP_OK);
        if (times)
            cr_assert_eq(shard_write(w, 0, &x.boxes[0].box, data, &err), TP_OK);
        cr_assert_eq(shard_write(w, 0, &half, data, &err), TP_OK);
        cr_expect_eq(shard_finish(w, &info, &err), TP_E_INTERNAL);
        shard_close(w);
        snprintf(path, sizeof path, "%s/rank-00000.h5", temp_dir);
        unlink(path);
    }
}

/* A file that is a hard link belongs to another step, too. */
Test(shard, a_linked_file_is_never_written)
{
    struct example x = tiny_example();
    const struct shard_plan plan = plan_of(&x, 0);
    struct shard_writer *w = NULL;
    struct tp_err err = { 0 };
    char path[PATH_MAX], other[PATH_MAX];
    char *before, *after;
    size_t size;

    snprintf(path, sizeof path, "%s/rank-00000.h5", temp_dir);
    snprintf(other, sizeof other, "%s/other", temp_dir);
    cr_assert_eq(shard_create(&w, &plan, &err), TP_OK);
    shard_close(w);
    w = NULL;
    cr_assert_eq(file_read_all(&before, &size, path, 1 << 20, &x.arena, &err), TP_OK);
    cr_assert_eq(link(path, other), 0);
    cr_expect_eq(shard_recreate(&w, &plan, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "has 2 names"), "%s", err.msg);
    cr_expect_eq(shard_join(&w, &plan, &err), TP_E_CORRUPT);
    cr_expect_eq(shard_create(&w, &plan, &err), TP_E_IO);
    cr_assert_eq(file_read_all(&after, &size, other, 1 << 20, &x.arena, &err), TP_OK);
    cr_expect_arr_eq(before, after, size);
    cr_assert_eq(unlink(other), 0);
    cr_expect_eq(shard_recreate(&w, &plan, &err), TP_OK, "%s", err.msg);
    shard_close(w);
}

/* The chunks of a large box, written from back to front in many runs by two writers. */
Test(shard, a_joined_writer_adds_its_part)
{
    static struct tensor t = { .name = "w", .group = "param", .ndim = 2, .shape = { 3000, 1000 } };
    static struct stored_box e = { .box = { 2, { 0, 0 }, { 3000, 1000 } } };
    struct layout l = { .spec = spec_default(), .n_tensors = 1, .tensors = &t };
    struct example x = { .layout = l, .boxes = &e, .n = 1 };
    const struct shard_plan plan = plan_of(&x, 0);
    struct shard_writer *w[2] = { NULL, NULL };
    struct shard_reader *reader;
    struct shard_info info;
    struct tp_err err = { 0 };
    uint64_t *sums[2];
    int64_t n = 0, runs = box_run_count(&e.box, 7000 * 1000 / 64);

    cr_assert_eq(shard_create(&w[0], &plan, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(shard_join(&w[1], &plan, &err), TP_OK, "%s", err.msg);
    for (int64_t i = runs - 1; i >= 0; i--) {
        struct box run;
        float *data;

        box_run(&run, &e.box, 7000 * 1000 / 64, i);
        data = malloc((size_t)box_elements(&run) * sizeof *data);
        fixture_fill(data, &t, &run, 5);
        cr_assert_eq(shard_write(w[i % 3 == 0], 0, &run, data, &err), TP_OK);
        free(data);
    }
    for (int k = 0; k < 2; k++)
        sums[k] = shard_sums(w[k], &n);
    chunk_sums_add(sums[0], sums[1], n);
    cr_assert_eq(shard_finish(w[0], &info, &err), TP_OK, "%s", err.msg);
    cr_assert_gt(info.index_rows, 1);
    cr_assert_eq(open_shard(&reader, &x, &info, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(check_chunks(&x, reader, 5), 3000 * 1000);
    shard_reader_close(reader);
    shard_close(w[0]);
    shard_close(w[1]);
}

Test(shard, a_folder_that_cannot_be_written_is_named)
{
    struct example x = tiny_example();
    struct shard_plan plan = plan_of(&x, 0);
    struct shard_writer *w = NULL;
    struct tp_err err = { 0 };

    plan.dir = "/proc/self";
    cr_assert_eq(shard_create(&w, &plan, &err), TP_E_IO);
    cr_assert_null(w);
    cr_assert(strstr(err.msg, "rank-00000.h5"));
}
