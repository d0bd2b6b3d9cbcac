/*
 * tests/unit/reshard_piece_sums.c - the checksums of files whose pieces are read in any order: each
 * flipped bit is found, also in padding, and nothing else is.
 *
 * covers: reshard/formats/pieces/piece_sums reshard/formats/pieces/piece_source
 */
#include "reshard/formats/pieces/piece.h"

#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"
#include "torch/crc32.h"

TestSuite(piece_sums, .init = temp_dir_make, .fini = temp_dir_remove);

/* A range of bytes 16 .. 143 with a sum, of f32: 4 x 6 elements from byte 16, padding, then 4
 * elements at byte 120, and padding. */
enum { BEGIN = 16, SIZE = 128, BYTES = 160, VECTOR = 120 };

enum shape { ROWS, TRANSPOSED, TWICE, OVERLAPPING, APART, SHAPES };

struct sums_file {
    struct piece_source *source;
    struct tensor tensors[2];
};

static struct piece piece_of(const struct tensor *t, int file, int sum, int64_t begin)
{
    struct piece p = { .group = t->group,
                       .name = t->name,
                       .dtype = DTYPE_F32,
                       .ndim = t->ndim,
                       .box = box_whole(t->ndim, t->shape),
                       .file = file,
                       .begin = begin,
                       .sum = sum };

    memcpy(p.shape, t->shape, sizeof p.shape);
    p.stride[t->ndim - 1] = 1;
    if (t->ndim == 2)
        p.stride[0] = t->shape[1];
    return p;
}

/* The pieces of the matrix: 2 + 2 rows, or as `shape` says. */
static void add_matrix(struct sums_file *x, enum shape shape, int file, int sum)
{
    struct piece p = piece_of(&x->tensors[0], file, sum, BEGIN);
    struct tp_err err = { 0 };

    if (shape == TRANSPOSED) {
        p.stride[0] = 1;
        p.stride[1] = 4;
    } else if (shape == APART) { /* 3 + 3 columns, each of which has holes */
        p.box.len[1] = 3;
    } else {
        p.box.len[0] = 2;
    }
    cr_assert_eq(piece_source_add(x->source, &p, &err), TP_OK, "%s", err.msg);
    if (shape == TRANSPOSED)
        return;
    p.begin += (shape == APART ? 3 : 12) * 4;
    p.box.lo[shape == APART ? 1 : 0] = shape == APART ? 3 : 2;
    if (shape == OVERLAPPING)
        p.begin -= 8;
    cr_assert_eq(piece_source_add(x->source, &p, &err), TP_OK, "%s", err.msg);
}

/* TWICE: both tensors come from the vector. */
static void open_file(struct sums_file *x, enum shape shape, uint32_t crc)
{
    const struct piece_sum sum = { 0, BEGIN, SIZE, crc, "data/0" };
    const char *const from[] = { GROUP_PARAM, GROUP_PARAM };
    struct piece p;
    struct tp_err err = { 0 };
    int file, number;

    x->tensors[0] = (struct tensor){ .group = GROUP_PARAM, .name = "a", .ndim = 2 };
    x->tensors[0].shape[0] = 4;
    x->tensors[0].shape[1] = 6;
    x->tensors[1] = (struct tensor){ .group = GROUP_PARAM, .name = "b", .ndim = 1 };
    x->tensors[1].shape[0] = 4;
    if (shape == TWICE)
        x->tensors[0] = x->tensors[1];
    cr_assert_eq(piece_source_new(&x->source, "source", &err), TP_OK);
    cr_assert_eq(file_table_add(piece_source_files(x->source), &file, temp_path("file"), &err),
                 TP_OK);
    cr_assert_eq(piece_source_add_sum(x->source, &number, &sum, &err), TP_OK);
    if (shape != TWICE)
        add_matrix(x, shape, file, number);
    p = piece_of(&x->tensors[1], file, number, VECTOR);
    cr_assert_eq(piece_source_add(x->source, &p, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(piece_source_finish(x->source, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(piece_source_select(x->source, x->tensors, from, 2, &err), TP_OK, "%s", err.msg);
}

/* Read all extents, or all but the last one, and compare. */
static tp_status read_and_check(const struct sums_file *x, bool all, struct tp_err *err)
{
    const struct reshard_endpoint *e = piece_source_endpoint(x->source);
    float buf[24];

    for (int i = e->n_extents - 1; i >= (all ? 0 : 1); i--)
        cr_assert_eq(e->read(e->ctx, i, &e->extents[i].box, buf, err), TP_OK, "%s", err->msg);
    return e->check(e->ctx, err);
}

Test(piece_sums, a_flipped_bit_is_found_wherever_it_is_and_however_pieces_lie)
{
    struct rng r = rng_start("piece_sums");
    unsigned char bytes[BYTES];
    uint32_t crc;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)rng_next(&r);
    crc = crc32_of(bytes + BEGIN, SIZE);
    for (int shape = ROWS; shape < SHAPES; shape++)
        for (int at = BEGIN - 1; at <= BEGIN + SIZE; at++) {
            const bool counts = at >= BEGIN && at < BEGIN + SIZE;
            struct sums_file x;
            struct tp_err err = { 0 };

            bytes[at] ^= 16;
            cr_assert_eq(file_replace(temp_path("file"), bytes, sizeof bytes, &err), TP_OK);
            open_file(&x, shape, crc);
            cr_expect_eq(read_and_check(&x, at % 5 > 0, &err), counts ? TP_E_CORRUPT : TP_OK,
                         "shape %d, byte %d: %s", shape, at, err.msg);
            cr_expect(!counts || strstr(err.msg, "data/0"), "%s", err.msg);
            piece_source_close(x.source);
            bytes[at] ^= 16;
        }
}

Test(piece_sums, a_piece_that_names_no_sum_has_none)
{
    const struct tensor tensor = { .group = GROUP_PARAM, .name = "a", .ndim = 1, .shape = { 4 } };
    const struct piece_sum wrong = { 0, 0, SIZE, 1, "data/0" };
    const char *const from[] = { GROUP_PARAM };
    struct piece p = { .group = GROUP_PARAM, .name = "a", .ndim = 1, .shape = { 4 } };
    struct sums_file x;
    struct tp_err err = { 0 };
    int number;

    p.box = box_whole(p.ndim, p.shape);
    p.stride[0] = 1;
    cr_assert_eq(file_replace(temp_path("file"), "0123456789abcdef", 16, &err), TP_OK);
    cr_assert_eq(piece_source_new(&x.source, "source", &err), TP_OK);
    cr_assert_eq(file_table_add(piece_source_files(x.source), &p.file, temp_path("file"), &err),
                 TP_OK);
    cr_assert_eq(piece_source_add_sum(x.source, &number, &wrong, &err), TP_OK);
    cr_assert_eq(piece_source_add(x.source, &p, &err), TP_OK);
    cr_assert_eq(piece_source_finish(x.source, &err), TP_OK);
    cr_assert_eq(piece_source_select(x.source, &tensor, from, 1, &err), TP_OK, "%s", err.msg);
    cr_expect(!piece_source_has_sums(x.source));
    cr_expect_eq(read_and_check(&x, true, &err), TP_OK, "%s", err.msg);
    piece_source_close(x.source);
}

/* What verify says of a piece of 4 f32 at byte 8 of a file of `bytes` bytes; negative: none. */
static tp_status verified(int bytes, struct tp_err *err)
{
    struct piece p = { .group = GROUP_PARAM, .name = "a", .ndim = 2, .begin = 8 };
    struct piece_source *s = NULL;
    int64_t checked, unchecked;
    char zeros[BYTES] = { 0 };
    tp_status st;

    p.shape[0] = p.shape[1] = 2;
    p.box = box_whole(2, p.shape);
    p.stride[0] = 2;
    p.stride[1] = 1;
    unlink(temp_path("file"));
    if (bytes >= 0)
        cr_assert_eq(file_replace(temp_path("file"), zeros, (size_t)bytes, err), TP_OK);
    cr_assert_eq(piece_source_new(&s, "source", err), TP_OK);
    cr_assert_eq(file_table_add(piece_source_files(s), &p.file, temp_path("file"), err), TP_OK);
    cr_assert_eq(piece_source_add(s, &p, err), TP_OK);
    cr_assert_eq(piece_source_finish(s, err), TP_OK);
    st = piece_source_verify(s, &checked, &unchecked, err);
    cr_expect(st || (checked == 0 && unchecked == 16));
    piece_source_close(s);
    return st;
}

Test(piece_sums, verify_finds_a_file_that_is_missing_or_cut_off_also_without_sums)
{
    struct tp_err err = { 0 };

    cr_expect_eq(verified(24, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(verified(23, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "cut off") && strstr(err.msg, "param/a"), "%s", err.msg);
    cr_expect_eq(verified(-1, &err), TP_E_CORRUPT);
}
