/*
 * tests/unit/ckpt_shard_read_back.c - every byte that was written to a shard is compared with its
 * checksum, also of chunks that are written in part.
 *
 * covers: ckpt/shard_create ckpt/shard_write
 */
#include "ckpt/shard_read_back.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "layout/stored_box.h"
#include "tests/unit/fixture.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

enum { ROWS = 900, COLUMNS = 200, RUN_ROWS = 7, SEED = 3 };

TestSuite(shard_read_back, .init = temp_dir_make, .fini = temp_dir_remove);

static struct tensor tensor = {
    .name = "w", .group = "param", .ndim = 2, .shape = { ROWS, COLUMNS }
};
static struct stored_box box = { .box = { 2, { 0, 0 }, { ROWS, COLUMNS } } };
static float data[RUN_ROWS * COLUMNS];

static struct box run_of(int i)
{
    struct box run;

    box_run(&run, &box.box, RUN_ROWS * COLUMNS, i);
    return run;
}

static void write_run(struct shard_writer *w, int i)
{
    const struct box run = run_of(i);
    struct tp_err err = { 0 };

    fixture_fill(data, &tensor, &run, SEED);
    cr_assert_eq(shard_write(w, 0, &run, data, &err), TP_OK, "%s", err.msg);
}

/* A shard of which the first `runs` runs are written. */
static struct shard_writer *write_part(const struct layout *l, int runs)
{
    const struct shard_plan plan = { temp_dir, 0, l, &box, 1, NULL, 0, NULL };
    struct shard_writer *w = NULL;
    struct tp_err err = { 0 };

    cr_assert_eq(shard_create(&w, &plan, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < runs; i++)
        write_run(w, i);
    return w;
}

/* Read all suspect runs of those that are written, and compare. */
static int64_t compare(struct shard_read_back *b, int runs)
{
    struct tp_err err = { 0 };

    for (int i = 0; i < runs; i++) {
        const struct box run = run_of(i);

        if (shard_read_back_wants(b, 0, &run))
            cr_assert_eq(shard_read_back_run(b, 0, &run, data, &err), TP_OK, "%s", err.msg);
    }
    return shard_read_back_compare(b);
}

/* Flip a bit of run number i in the file. */
static void flip(int i, struct rng *r)
{
    const struct box run = run_of(i);
    int fd = open(temp_path("rank-00000.h5"), O_RDWR);
    static char file[2 * ROWS * COLUMNS * sizeof(float)];
    const char *at;
    ssize_t n;
    char byte;

    fixture_fill(data, &tensor, &run, SEED);
    n = pread(fd, file, sizeof file, 0);
    cr_assert(n > 0 && n < (ssize_t)sizeof file);
    at = memmem(file, (size_t)n, data, COLUMNS * sizeof(float)); /* the run's first row */
    cr_assert_not_null(at);
    at += rng_int(r, 0, COLUMNS * (int64_t)sizeof(float) - 1);
    byte = (char)(*at ^ 1 << rng_int(r, 0, 7));
    cr_assert_eq(pwrite(fd, &byte, 1, at - file), 1);
    close(fd);
}

Test(shard_read_back, a_flipped_bit_in_any_run_is_found_and_a_repaired_one_is_accepted)
{
    struct rng r = rng_start("shard_read_back/flip");
    const struct layout l = { .spec = spec_default(), .n_tensors = 1, .tensors = &tensor };
    const int all = (int)box_run_count(&box.box, RUN_ROWS * COLUMNS);

    for (int n = 0; n < 40; n++) {
        int runs = (int)rng_int(&r, 1, all), damaged = (int)rng_int(&r, 0, runs - 1);
        struct shard_writer *w = write_part(&l, runs);
        uint64_t sums[3 * 64];
        int64_t n_words = 0;
        uint64_t *now = shard_sums(w, &n_words);
        struct shard_read_back *b = NULL;
        struct tp_err err = { 0 };

        cr_assert_leq(n_words, (int64_t)(sizeof sums / sizeof *sums));
        memcpy(sums, now, (size_t)n_words * sizeof *sums);
        cr_assert_eq(shard_read_back_begin(&b, w, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(compare(b, runs), 0, "an intact shard of %d runs", runs);
        cr_assert_eq(compare(b, runs), 0, "nothing is left to read");
        shard_read_back_end(b);

        flip(damaged, &r);
        cr_assert_eq(shard_read_back_begin(&b, w, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(compare(b, runs), 1, "run %d of %d", damaged, runs);
        cr_assert_eq(compare(b, runs), 1, "it is still damaged");
        write_run(w, damaged);
        memcpy(now, sums, (size_t)n_words * sizeof *sums);
        cr_assert_eq(compare(b, runs), 0, "after it was written again");
        shard_read_back_end(b);
        shard_close(w);
        unlink(temp_path("rank-00000.h5"));
    }
}

Test(shard_read_back, runs_that_were_not_written_are_not_wanted)
{
    const struct layout l = { .spec = spec_default(), .n_tensors = 1, .tensors = &tensor };
    struct shard_writer *w = write_part(&l, 1);
    const int all = (int)box_run_count(&box.box, RUN_ROWS * COLUMNS);
    struct box first = run_of(0), last = run_of(all - 1);
    struct shard_read_back *b = NULL;
    struct tp_err err = { 0 };

    cr_assert_eq(shard_read_back_begin(&b, w, &err), TP_OK, "%s", err.msg);
    cr_expect(shard_read_back_wants(b, 0, &first));
    cr_expect_not(shard_read_back_wants(b, 0, &last));
    shard_read_back_end(b);
    shard_close(w);
}
