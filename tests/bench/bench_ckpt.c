/*
 * tests/bench/bench_ckpt.c - the rates of checksums, of a save and of a verification, compared with
 * plain writes of the same bytes. Files are in TMPDIR or /tmp. Rates by CPU time are meaningful on
 * a machine that does other work, too.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/crc.h"
#include "ckpt/sha256.h"
#include "ckpt/transaction.h"
#include "ckpt/verify.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "core/thread_pool.h"

enum { ROWS = 8192, COLUMNS = 4096, TENSORS = 4, RUN_ROWS = 512, PASSES = 200 }; /* 128 MiB each */

#define TOTAL_BYTES (4.0 * ROWS * COLUMNS * TENSORS)

static void print_rate(const char *what, double bytes, double seconds)
{
    printf("%-44s %8.2f GB/s\n", what, bytes / seconds / 1e9);
}

/* ---- one core ---- */

static const char *const variant_names[DIGEST_VARIANTS] = { "plain C", "AVX2", "AVX-512 IFMA" };

/* The digest of rows of elements, a MiB at a time, as a reshard sums it. The MiB stays in the
 * cache, and the fastest of many passes counts, so other work on the machine does not. */
static uint32_t bench_digest(enum digest_variant v, const void *data, int elem)
{
    const int64_t shape[] = { PASSES, (1 << 20) / elem };
    double best = INFINITY;
    uint32_t keep = 0;
    char what[64];

    for (int64_t row = 0; row < PASSES; row++) {
        const struct box run = { 2, { row, 0 }, { 1, shape[1] } };
        double t = clock_cpu_seconds();

        keep ^= (uint32_t)digest_box_by(v, data, &run, 2, shape, elem).d[0];
        t = clock_cpu_seconds() - t;
        best = t < best ? t : best;
    }
    snprintf(what, sizeof what, "digest of %s, %s, in cache", elem == 2 ? "bf16" : "f32",
             variant_names[v]);
    print_rate(what, 1 << 20, best);
    return keep;
}

static void bench_sums(const float *data, size_t bytes)
{
    const int64_t n = (int64_t)bytes / 4, wide[] = { n / 512, 4096 };
    const struct box cut = { 2, { 0, 512 }, { n / 512, 512 } };
    char text[SHA256_TEXT];
    struct tp_err err;
    uint32_t keep;
    double t = clock_cpu_seconds();

    keep = crc32c(data, bytes);
    print_rate("crc32c, one core", (double)bytes, clock_cpu_seconds() - t);
    for (int v = DIGEST_PLAIN; v < DIGEST_VARIANTS; v++)
        for (int elem = 2; elem <= 4; elem += 2)
            if (digest_variant_runs((enum digest_variant)v))
                keep ^= bench_digest((enum digest_variant)v, data, elem);
    t = clock_cpu_seconds();
    keep ^= (uint32_t)digest_box(data, &cut, 2, wide, 4).d[0];
    print_rate("digest of f32, cut by columns, one core", (double)bytes, clock_cpu_seconds() - t);
    t = clock_cpu_seconds();
    sha256_of(text, data, bytes / 4, &err);
    print_rate("SHA-256, one core, for comparison", (double)bytes / 4, clock_cpu_seconds() - t);
    printf("%-44s %08x\n", "(the sum of the above, so that the compiler keeps them)", keep);
}

/* ---- the disk ---- */

static tp_status plain_write(const char *path, const float *data, size_t bytes, struct tp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    double t = clock_seconds();
    tp_status st = TP_OK;

    if (fd < 0)
        return tp_fail_errno(err, "%s", path);
    for (int i = 0; i < TENSORS && !st; i++)
        st = file_write_at(fd, path, (int64_t)i * (int64_t)bytes, data, bytes, err);
    fsync(fd);
    print_rate("plain write and fsync", TOTAL_BYTES, clock_seconds() - t);
    close(fd);
    unlink(path);
    return st;
}

/* One shard, written by `jobs` threads in runs. */
struct saving {
    struct shard_writer *writer;
    const float *data;
};

static tp_status save_run(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct saving *s = ctx;
    int tensor = (int)(item / (ROWS / RUN_ROWS));
    struct box run = { 2, { item % (ROWS / RUN_ROWS) * RUN_ROWS, 0 }, { RUN_ROWS, COLUMNS } };

    (void)worker;
    return shard_write(s->writer, tensor, &run, s->data + run.lo[0] * COLUMNS, err);
}

static tp_status save(const char *root, int jobs, const float *data, struct tp_err *err)
{
    static struct tensor tensors[TENSORS];
    static const char *const names[TENSORS] = { "a", "b", "c", "d" };
    struct stored_box boxes[TENSORS];
    struct layout layout = { .spec = spec_default(), .n_tensors = TENSORS, .tensors = tensors };
    struct saving s = { .data = data };
    struct shard_info info;
    const struct ckpt_begin_request begin = { .root = root, .step = 1, .force = true };
    struct ckpt_transaction txn = { 0 };
    struct shard_plan plan = { .layout = &layout, .boxes = boxes, .n_boxes = TENSORS };
    const double t = clock_seconds(), cpu = clock_cpu_seconds();
    struct manifest m = {
        .layout = layout, .n_shards = 1, .shards = &info, .state = { .step = 1 }
    };
    char what[64];
    tp_status st;

    for (int i = 0; i < TENSORS; i++) {
        tensors[i] = (struct tensor){ .name = names[i],
                                      .group = "param",
                                      .ndim = 2,
                                      .shape = { ROWS, COLUMNS },
                                      .placement = { .dim = -1, .unit = 1, .blocks = 1 },
                                      .layer = LAYER_FIRST };
        boxes[i] = (struct stored_box){ .tensor = i, .box = box_whole(2, tensors[i].shape) };
    }
    TP_TRY(ckpt_begin(&txn, &begin, err));
    plan.dir = txn.tmp.path;
    TP_TRY(shard_create(&s.writer, &plan, err));
    TP_TRY(thread_pool_run(save_run, &s, TENSORS * ROWS / RUN_ROWS, jobs, err));
    TP_TRY(shard_finish(s.writer, &info, err));
    TP_TRY(ckpt_commit(&txn, &m, err));
    snprintf(what, sizeof what, "save with checksums, fsync, commit; %d threads", jobs);
    print_rate(what, TOTAL_BYTES, clock_seconds() - t);
    snprintf(what, sizeof what, "the same, CPU time; %d threads", jobs);
    print_rate(what, TOTAL_BYTES, clock_cpu_seconds() - cpu);
done:
    shard_close(s.writer);
    ckpt_abort(&txn);
    return st;
}

static void print_finding(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

static tp_status verify(const char *dir, int jobs, struct tp_err *err)
{
    struct verify v = { .dir = dir, .jobs = jobs, .found = print_finding };
    struct arena arena = { 0 };
    double t = clock_cpu_seconds();
    char what[64];
    tp_status st = ckpt_verify(&v, &arena, err);

    snprintf(what, sizeof what, "verify from the page cache, CPU time, %d threads", jobs);
    print_rate(what, TOTAL_BYTES, clock_cpu_seconds() - t);
    if (!st && v.findings)
        st = tp_fail(err, TP_E_NO, "the checkpoint that was saved does not verify");
    arena_free(&arena);
    return st;
}

int main(void)
{
    const size_t bytes = (size_t)4 * ROWS * COLUMNS;
    const char *tmp = getenv("TMPDIR");
    char top[256], path[300], dir[330];
    struct tp_err err = { 0 }, ignored;
    float *data = malloc(bytes);
    tp_status st;

    snprintf(top, sizeof top, "%s/tp-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!data || !mkdtemp(top))
        return 1;
    for (size_t i = 0; i < bytes / 4; i++)
        data[i] = (float)(i * 2654435761u) * 1e-9f;
    snprintf(path, sizeof path, "%s/root", top);
    snprintf(dir, sizeof dir, "%s/step-00000001", path);
    bench_sums(data, bytes);
    TP_TRY(plain_write(path, data, bytes, &err));
    TP_TRY(save(path, 1, data, &err));
    TP_TRY(save(path, 2, data, &err));
    TP_TRY(verify(dir, 1, &err));
    TP_TRY(verify(dir, 2, &err));
done:
    file_tree_remove(top, &ignored);
    free(data);
    if (st)
        fprintf(stderr, "bench_ckpt: %s\n", err.msg);
    return tp_exit_code(st);
}
