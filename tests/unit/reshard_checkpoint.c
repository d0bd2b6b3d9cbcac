/*
 * tests/unit/reshard_checkpoint.c - a checkpoint's shards as source and as target of a transfer by
 * one process or several.
 *
 * covers: reshard/formats/checkpoint/checkpoint_source reshard/formats/checkpoint/checkpoint_target
 *     reshard/formats/checkpoint/target_resume reshard/formats/checkpoint/target_shards
 *     reshard/formats/checkpoint/chunk_extents reshard/formats/checkpoint/shard_parts
 *     reshard/engine/reduce_sums
 */
#include "reshard/formats/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/transaction.h"
#include "core/stop.h"
#include "reshard/engine/reduce_sums.h"
#include "tests/unit/ranks.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

enum { STEP = 2, SEED = 13, RANKS = 3 };

TestSuite(checkpoint, .init = temp_dir_make, .fini = temp_dir_remove);

/* An open source with all tensors of a checkpoint. */
struct example {
    struct arena arena;
    struct ckpt_found found;
    int *ids;
    struct checkpoint_source *source;
};

static tp_status open_example(struct example *x, struct comm_control *control, struct tp_err *err)
{
    int n;
    tp_status st;

    *x = (struct example){ .source = NULL };
    TP_TRY(ckpt_open(&x->found, temp_dir, STEP, &x->arena, err));
    n = x->found.manifest.layout.n_tensors;
    x->ids = arena_array(&x->arena, (size_t)n, sizeof *x->ids);
    for (int i = 0; i < n; i++)
        x->ids[i] = i;
    TP_TRY(checkpoint_source_open(&x->source, &x->found, x->ids, n, control, err));
done:
    return st;
}

static void close_example(struct example *x)
{
    checkpoint_source_close(x->source);
    arena_free(&x->arena);
}

/* Cut an extent into `runs` runs and read the runs begin, begin + every, ... Returns whether all
 * hold the fixture's values. */
static bool read_runs(const struct example *x, int extent, int runs, int begin, int every)
{
    const struct reshard_endpoint *e = checkpoint_source_endpoint(x->source);
    const struct tensor *t = &x->found.manifest.layout.tensors[e->extents[extent].tensor];
    const struct box *box = &e->extents[extent].box;
    int64_t most = box_elements(box) / runs + 1;
    struct tp_err err = { 0 };
    bool good = true;

    for (int64_t k = begin; k < box_run_count(box, most); k += every) {
        struct box run;
        size_t bytes;
        void *data, *expected;

        box_run(&run, box, most, k);
        bytes = (size_t)(box_elements(&run) * dtype_bytes(t->dtype));
        data = malloc(bytes);
        expected = malloc(bytes);
        fixture_fill(expected, t, &run, SEED);
        good &= e->read(e->ctx, extent, &run, data, &err) == TP_OK &&
                memcmp(data, expected, bytes) == 0;
        free(data);
        free(expected);
    }
    return good;
}

/* Damage the last byte of the payload of the middle chunk of a shard. */
static void damage(const char *file)
{
    struct shard_reader *reader = NULL;
    struct tp_err err = { 0 };
    const struct chunk_entry *c;
    struct example x;
    char path[PATH_MAX];
    unsigned char byte;
    int64_t n, at;
    int fd;

    cr_assert_eq(open_example(&x, NULL, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < x.found.manifest.n_shards; i++)
        if (strcmp(x.found.manifest.shards[i].file, file) == 0)
            cr_assert_eq(shard_open(&reader, x.found.dir, &x.found.manifest.shards[i],
                                    &x.found.manifest.layout, &err),
                         TP_OK);
    c = shard_chunks(reader, &n);
    c += n / 2;
    at = c->offset + c->stored_bytes - 1;
    shard_reader_close(reader);
    cr_assert_eq(file_join(path, x.found.dir, file, &err), TP_OK);
    fd = open(path, O_RDWR);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    close_example(&x);
}

Test(checkpoint, parts_of_boxes_are_read_and_the_rest_of_their_chunks_is_checked)
{
    struct tp_err err = { 0 };
    struct example x;

    tiny_ckpt(temp_dir, "tp2pp2", STEP, SEED, DTYPE_BF16);
    for (int every = 1; every <= 3; every++) {
        const struct reshard_endpoint *e;
        int64_t before, rows = 0;

        cr_assert_eq(open_example(&x, NULL, &err), TP_OK, "%s", err.msg);
        e = checkpoint_source_endpoint(x.source);
        before = checkpoint_source_other_bytes(x.source);
        for (int i = 0; i < x.found.manifest.n_shards; i++)
            rows += x.found.manifest.shards[i].index_rows;
        cr_assert_eq(before, rows * CHUNK_ENTRY_BYTES);
        for (int i = 0; i < e->n_extents; i++)
            cr_assert(read_runs(&x, i, 6, 0, every), "extent %d", i);
        cr_assert_eq(e->check(e->ctx, &err), TP_OK, "%s", err.msg);
        if (every == 1)
            cr_assert_eq(checkpoint_source_other_bytes(x.source), before);
        else
            cr_assert_gt(checkpoint_source_other_bytes(x.source), before);
        close_example(&x);
    }
}

Test(checkpoint, every_reader_of_a_part_of_a_chunk_finds_its_damage)
{
    struct tp_err err = { 0 };
    struct example x;

    tiny_ckpt(temp_dir, "tp2", STEP, SEED, DTYPE_F32);
    damage("rank-00001.h5");
    for (int every = 1; every <= 5; every += 2) {
        const struct reshard_endpoint *e;

        cr_assert_eq(open_example(&x, NULL, &err), TP_OK, "%s", err.msg);
        e = checkpoint_source_endpoint(x.source);
        cr_expect_eq(e->check(e->ctx, &err), TP_OK, "before any read: %s", err.msg);
        for (int i = 0; i < e->n_extents; i++)
            read_runs(&x, i, 6, 0, every); /* the first run of each extent at least */
        cr_expect_eq(e->check(e->ctx, &err), TP_E_CORRUPT, "every %d", every);
        cr_expect(strstr(err.msg, "rank-00001.h5") && strstr(err.msg, "CRC32C"), "%s", err.msg);
        close_example(&x);
    }
}

/* Each of n processes reads every n-th run. Their sums together cover whole chunks. */
static int read_together(struct comm_world *ranks, void *ctx)
{
    struct comm_control *control = comm_control(ranks);
    const bool damaged = *(const bool *)ctx;
    const struct reshard_endpoint *e;
    struct tp_err err = { 0 };
    struct example x;
    int wrong = 0;
    tp_status st;

    wrong += wrong_unless(open_example(&x, control, &err) == TP_OK, err.msg);
    if (wrong)
        return wrong;
    e = checkpoint_source_endpoint(x.source);
    for (int i = 0; i < e->n_extents; i++) {
        bool good = read_runs(&x, i, 7, control_rank(control), control_size(control));

        if (!damaged)
            wrong += wrong_unless(good, "values");
    }
    st = e->check(e->ctx, &err);
    wrong += wrong_unless(st == (damaged ? TP_E_CORRUPT : TP_OK), err.msg);
    close_example(&x);
    return wrong;
}

Test(checkpoint, several_processes_check_chunks_that_they_read_together, .timeout = 60)
{
    bool damaged = false;

    tiny_ckpt(temp_dir, "tp2", STEP, SEED, DTYPE_F32);
    cr_assert_eq(run_ranks(RANKS, 1 << 20, read_together, &damaged), 0);
    damage("rank-00000.h5");
    damaged = true;
    cr_assert_eq(run_ranks(RANKS, 1 << 20, read_together, &damaged), 0);
}

/* ---- target ---- */

static bool write_runs(struct checkpoint_target *target, const struct layout *l, int begin,
                       int every)
{
    const struct reshard_endpoint *e = checkpoint_target_endpoint(target);
    struct tp_err err = { 0 };
    bool good = true;

    for (int i = 0; i < e->n_extents; i++) {
        const struct tensor *t = &l->tensors[e->extents[i].tensor];
        int64_t most = box_elements(&e->extents[i].box) / 5 + 1;

        for (int64_t k = begin; k < box_run_count(&e->extents[i].box, most); k += every) {
            struct box run;
            void *data;

            box_run(&run, &e->extents[i].box, most, k);
            data = malloc((size_t)(box_elements(&run) * dtype_bytes(t->dtype)));
            fixture_fill(data, t, &run, SEED);
            good &= e->write(e->ctx, i, &run, data, &err) == TP_OK;
            free(data);
        }
    }
    return good;
}

/* Write temp_dir/NAME; each of n processes writes every n-th run. Returns how much is wrong. */
static int write_step(const char *name, struct comm_control *control, struct shard_info **shards,
                      struct arena *arena)
{
    struct layout l = tiny_layout("tp4dp2zero1", DTYPE_F32, arena);
    struct checkpoint_target *target = NULL;
    struct manifest m = { .layout = l };
    struct tp_err err = { 0 };
    int wrong = 0;

    wrong += wrong_unless(checkpoint_target_plan(&target, &l, control, &err) == TP_OK, err.msg);
    wrong +=
        wrong_unless(checkpoint_target_create(target, temp_path(name), &err) == TP_OK, err.msg);
    wrong += wrong_unless(write_runs(target, &l, control ? control_rank(control) : 0,
                                     control ? control_size(control) : 1),
                          "writing");
    wrong += wrong_unless(checkpoint_target_finish(target, &m, arena, &err) == TP_OK, err.msg);
    for (int rank = 0; rank < 8; rank++)
        wrong += wrong_unless(checkpoint_target_rank_bytes(target, rank) > 0, "an empty rank");
    checkpoint_target_close(target);
    *shards = m.shards;
    return wrong;
}

static int write_together(struct comm_world *ranks, void *ctx)
{
    struct comm_control *control = comm_control(ranks);
    struct shard_info *shards, *alone = ctx;
    struct arena arena = { 0 };
    int wrong = write_step("together", control, &shards, &arena);

    for (int i = 0; i < 8 && control_rank(control) == 0; i++) {
        wrong += wrong_unless(strcmp(shards[i].index_sha256, alone[i].index_sha256) == 0, "/index");
        wrong += wrong_unless(strcmp(shards[i].meta_sha256, alone[i].meta_sha256) == 0, "the rest");
    }
    arena_free(&arena);
    return wrong;
}

/* /index has the checksums of all chunks, so equal indexes mean equal payloads. */
Test(checkpoint, several_processes_write_the_bytes_that_one_writes, .timeout = 60)
{
    struct shard_info *alone = NULL;
    struct arena arena = { 0 };

    cr_assert(mkdir(temp_path("alone"), 0777) == 0 && mkdir(temp_path("together"), 0777) == 0);
    cr_assert_eq(write_step("alone", NULL, &alone, &arena), 0);
    cr_assert_eq(run_ranks(RANKS, 1 << 20, write_together, alone), 0);
    arena_free(&arena);
}

/* Writes with the processor's checksums, and with a device's. */
Test(checkpoint, a_target_that_stops_writes_nothing_after_the_signal)
{
    struct checkpoint_target *target = NULL;
    const struct reshard_endpoint *e;
    const int32_t data[4] = { 0 };
    struct arena arena = { 0 };
    struct layout l = tiny_layout("tp2", DTYPE_F32, &arena);
    struct tp_err err = { 0 };
    struct box run;

    stop_listen_all();
    cr_assert_eq(checkpoint_target_plan(&target, &l, NULL, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(checkpoint_target_create(target, temp_dir, &err), TP_OK, "%s", err.msg);
    e = checkpoint_target_endpoint(target);
    box_run(&run, &e->extents[0].box, 4, 0);
    for (int stops = 0; stops <= 1; stops++) {
        tp_status want = stops ? TP_E_STOPPED : TP_OK;

        cr_expect_eq(e->write(e->ctx, 0, &run, data, &err), want);
        cr_expect_eq(e->unsummed->write(e->ctx, 0, &run, data, &err), want);
        cr_assert_eq(raise(SIGTERM), 0);
        cr_expect_eq(e->unsummed->write(e->ctx, 0, &run, data, &err), want);
        checkpoint_target_stops(target);
    }
    checkpoint_target_close(target);
    arena_free(&arena);
}

/* ---- sums ---- */

static void add_words(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        into[i] += from[i];
}

static int reduce(struct comm_world *ranks, void *ctx)
{
    struct comm_control *control = comm_control(ranks);
    enum { GROUP = 3, N = GROUP * 10000 }; /* more than one slice */
    uint64_t *words = malloc(N * sizeof *words);
    const struct reduce_sums sums = { words, N, GROUP, add_words };
    const uint64_t rank = (uint64_t)control_rank(control), size = (uint64_t)control_size(control);
    struct tp_err err = { 0 };
    int wrong = 0;

    (void)ctx;
    for (uint64_t i = 0; i < N; i++)
        words[i] = i + 1000000 * rank;
    wrong += wrong_unless(reduce_sums(control, &sums, &err) == TP_OK, err.msg);
    for (uint64_t i = 0; i < N && !wrong; i++)
        wrong += wrong_unless(
            words[i] == (rank ? i + 1000000 * rank : size * i + 1000000 * (size * (size - 1) / 2)),
            "a sum");
    free(words);
    return wrong;
}

Test(checkpoint, sums_of_all_processes_are_added_on_the_first, .timeout = 60)
{
    cr_assert_eq(run_ranks(RANKS, 1 << 20, reduce, NULL), 0);
}
