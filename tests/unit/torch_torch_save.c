/*
 * tests/unit/torch_torch_save.c - what torch_save writes, the reader of torch files reads.
 *
 * covers: torch/crc32 torch/zip_plan torch/pickle_writer torch/torch_save
 */
#include "torch/torch_save.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"
#include "torch/crc32.h"
#include "torch/torch_tensor.h"

static int n_reads;
static int64_t n_read; /* bytes */

/* In the place of the C library's. */
ssize_t pread(int fd, void *buf, size_t n, off_t offset)
{
    n_reads++;
    n_read += (int64_t)n;
    return (ssize_t)syscall(SYS_pread64, fd, buf, n, offset);
}

TestSuite(torch_save, .init = temp_dir_make, .fini = temp_dir_remove);
TestSuite(zip_plan, .init = temp_dir_make, .fini = temp_dir_remove);

static int new_file(const char *name)
{
    int fd = open(temp_path(name), O_RDWR | O_CREAT | O_EXCL, 0600);

    cr_assert_geq(fd, 0);
    return fd;
}

/* The whole of an open file. */
static struct file_part part_of(int fd, int64_t begin)
{
    return (struct file_part){ object_of_file(fd), temp_dir, begin,
                               lseek(fd, 0, SEEK_END) - begin };
}

/* ---- CRC-32 ---- */

Test(crc32, matches_the_check_value)
{
    cr_expect_eq(crc32_of("123456789", 9), 0xcbf43926u);
    cr_expect_eq(crc32_of("", 0), 0u);
}

Test(crc32, parts_in_any_order_with_holes_of_zeros_make_the_whole)
{
    struct rng r = rng_start("crc32/parts");
    unsigned char data[3000];

    for (int round = 0; round < 300; round++) {
        const size_t n = (size_t)rng_int(&r, 1, sizeof data);
        uint32_t sum = 0;

        for (size_t at = 0; at < n;) {
            const size_t part = (size_t)rng_int(&r, 1, (int64_t)(n - at));
            const bool hole = rng_int(&r, 0, 2) == 0;

            for (size_t i = 0; i < part; i++)
                data[at + i] = hole ? 0 : (unsigned char)rng_next(&r);
            if (!hole)
                sum ^= crc32_part(data + at, part, n - at - part);
            at += part;
        }
        cr_assert_eq(crc32_whole(sum, n), crc32_of(data, n), "%zu bytes", n);
    }
}

/* ---- pickles ---- */

static const struct pickle_value *read_back(struct pickle_writer *w, struct arena *arena)
{
    const struct pickle_value *root = NULL;
    struct tp_err err;

    pickle_write_op(w, PICKLE_OP_STOP);
    cr_assert_not(w->failed);
    cr_assert_eq(pickle_read(&root, w->data, w->n, "written", arena, &err), TP_OK, "%s", err.msg);
    return root;
}

Test(pickle_writer, numbers_of_every_size_and_texts_come_back)
{
    static const int64_t numbers[] = { 0,         1,         255,       256,       -1,
                                       INT32_MAX, INT32_MIN, 1LL << 31, INT64_MAX, INT64_MIN };
    const int n = (int)(sizeof numbers / sizeof *numbers);
    struct pickle_writer w = { 0 };
    struct arena arena = { 0 };
    const struct pickle_value *root, *list;
    int64_t found;
    int memo;

    pickle_write_begin(&w);
    pickle_write_op(&w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(&w, PICKLE_OP_MARK);
    pickle_write_text(&w, "numbers");
    pickle_write_ints(&w, numbers, n);
    memo = pickle_write_remember(&w);
    pickle_write_text(&w, "again");
    pickle_write_again(&w, memo);
    pickle_write_text(&w, "real");
    pickle_write_float(&w, -1.5e-3);
    pickle_write_op(&w, PICKLE_OP_SETITEMS);
    root = read_back(&w, &arena);
    for (int k = 0; k < 2; k++) {
        list = pickle_get(root, k ? "again" : "numbers");
        cr_assert_eq(pickle_count(list), n);
        for (int i = 0; i < n; i++)
            cr_expect(pickle_int(&found, pickle_item(list, i)) && found == numbers[i]);
    }
    cr_expect(pickle_is(pickle_get(root, "real"), PICKLE_FLOAT) &&
              pickle_get(root, "real")->real == -1.5e-3);
    pickle_writer_free(&w);
    arena_free(&arena);
}

Test(pickle_writer, more_than_256_values_can_be_remembered)
{
    struct pickle_writer w = { 0 };
    struct arena arena = { 0 };
    const struct pickle_value *root;
    int64_t found;

    pickle_write_begin(&w);
    pickle_write_op(&w, PICKLE_OP_MARK);
    for (int i = 0; i < 300; i++) {
        pickle_write_int(&w, i);
        cr_assert_eq(pickle_write_remember(&w), i);
    }
    pickle_write_again(&w, 7);
    pickle_write_again(&w, 299);
    pickle_write_op(&w, PICKLE_OP_TUPLE);
    root = read_back(&w, &arena);
    cr_expect(pickle_int(&found, pickle_item(root, 300)) && found == 7);
    cr_expect(pickle_int(&found, pickle_item(root, 301)) && found == 299);
    pickle_writer_free(&w);
    arena_free(&arena);
}

/* ---- files ---- */

Test(torch_save, tensors_come_back_wherever_the_file_begins)
{
    static const int64_t shape[] = { 3, 5 };
    struct torch_save s;
    struct torch_file f;
    struct torch_tensor t;
    struct arena arena = { 0 };
    struct file_part part;
    struct tp_err err;
    const struct zip_plan_member *m;
    int storage, fd = new_file("x");
    float step = 0;

    torch_save_begin(&s);
    pickle_write_op(&s.pickle, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(&s.pickle, PICKLE_OP_MARK);
    pickle_write_text(&s.pickle, "w");
    storage = torch_save_tensor(&s, DTYPE_BF16, 2, shape);
    pickle_write_text(&s.pickle, "step");
    torch_save_number(&s, 7);
    pickle_write_op(&s.pickle, PICKLE_OP_SETITEMS);
    cr_assert_eq(torch_save_place(&s, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(torch_save_write(&s, fd, "x", 1000, &err), TP_OK, "%s", err.msg);
    m = torch_save_member(&s, storage);
    cr_expect_eq(m->begin % ZIP_PLAN_ALIGN, 0);
    cr_expect_eq(m->size, 30);
    part = part_of(fd, 1000);
    cr_expect_eq(part.size, torch_save_bytes(&s));
    cr_assert_eq(torch_file_read(&f, &part, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(torch_tensor_read(&t, &f, pickle_get(f.root, "w"), "w", &err), TP_OK);
    cr_expect(t.dtype == DTYPE_BF16 && t.ndim == 2 && t.shape[1] == 5 && t.stride[0] == 5);
    cr_expect_eq(t.begin, 1000 + m->begin);
    cr_assert_eq(torch_tensor_read(&t, &f, pickle_get(f.root, "step"), "step", &err), TP_OK);
    cr_assert_eq(file_read_at(fd, "x", t.begin, &step, sizeof step, &err), TP_OK);
    cr_expect_eq(step, 7);
    cr_expect_eq(zip_check(&f.zip, t.storage, &err), TP_OK, "%s", err.msg);
    torch_save_free(&s);
    arena_free(&arena);
    close(fd);
}

/* The file is sparse, so it needs no space. */
Test(zip_plan, members_and_archives_beyond_4_gib_come_back)
{
    static const int64_t sizes[] = { 3, 5LL << 30, 1, 0xffffffff, 0xfffffffe, 0 };
    static const char *const names[] = { "a/0", "a/1", "a/2", "a/3", "a/4", "a/5" };
    struct zip_plan p = { 0 };
    struct zip z;
    struct arena arena = { 0 };
    struct file_part part;
    struct tp_err err;
    int fd = new_file("large");

    for (int i = 0; i < 6; i++)
        cr_assert_eq(zip_plan_add(&p, names[i], i == 0 ? "abc" : NULL, sizes[i], &err), TP_OK);
    zip_plan_place(&p);
    cr_assert_eq(zip_plan_write(&p, fd, "large", 0, &err), TP_OK, "%s", err.msg);
    part = part_of(fd, 0);
    cr_assert_eq(part.size, p.size);
    cr_assert_eq(zip_read(&z, &part, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(z.n, 6);
    for (int i = 0; i < 6; i++) {
        const struct zip_member *m = zip_find(&z, names[i]);

        cr_assert_not_null(m);
        cr_expect_eq(m->size, sizes[i]);
        cr_expect_eq(m->begin, p.members[i].begin);
    }
    cr_expect_eq(zip_find(&z, "a/0")->crc, crc32_of("abc", 3));
    zip_plan_free(&p);
    arena_free(&arena);
    close(fd);
}

/* A checkpoint of a thousand ranks has a million archives with one tensor each. */
Test(zip_plan, little_of_an_archive_is_read_to_find_its_members)
{
    static const char *const names[] = { "a/data.pkl", "a/byteorder", "a/data/0", "a/version" };
    enum { N = 4, MEMBER_BYTES = 1 << 20 };
    struct zip_plan p = { 0 };
    struct zip z;
    struct arena arena = { 0 };
    struct file_part part;
    struct tp_err err;
    int fd = new_file("one");

    for (int i = 0; i < N; i++)
        cr_assert_eq(zip_plan_add(&p, names[i], NULL, MEMBER_BYTES, &err), TP_OK);
    zip_plan_place(&p);
    cr_assert_eq(zip_plan_write(&p, fd, "one", 0, &err), TP_OK, "%s", err.msg);
    part = part_of(fd, 0);
    n_reads = 0;
    n_read = 0;
    cr_assert_eq(zip_read(&z, &part, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect_leq(n_reads, N + 2, "%d reads", n_reads);
    cr_expect_leq(n_read, 5000, "%lld bytes", (long long)n_read);
    zip_plan_free(&p);
    arena_free(&arena);
    close(fd);
}
