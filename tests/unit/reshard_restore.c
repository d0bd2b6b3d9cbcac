/*
 * tests/unit/reshard_restore.c - each rank reads its boxes from a checkpoint of any layout, into
 * the memory of the host or of the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: reshard/formats/checkpoint/checkpoint_source reshard/formats/checkpoint/shard_parts
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/file_tree.h"
#include "device/staging.h"
#include "kernels/cast.h"
#include "layout/model_tensors.h"
#include "reshard/restore.h"
#include "tests/unit/cuda_support.h"
#include "tests/unit/device_read.h"
#include "tests/unit/fixture.h"

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { STEP = 4 };
static const uint64_t SEED = 3 | FIXTURE_SMOOTH;

struct saved {
    char root[64];
    struct arena arena;
    struct model model;
    struct ckpt_found step;
};

/* Write a checkpoint of the first tensors of a model at a layout, at most so many, and open it.
 * zstd: the level of compression, or 0. */
static void save_at(struct saved *s, const struct model *m, struct spec spec, int most, int zstd)
{
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    int n;

    *s = (struct saved){ .root = "/tmp/tp-restore-XXXXXX", .model = *m };
    cr_assert_not_null(mkdtemp(s->root));
    cr_assert_eq(model_state(&tensors, &n, &s->model, DTYPE_BF16, &s->arena, &err), TP_OK);
    n = n < most ? n : most;
    cr_assert_eq(layout_make(&l, &spec, s->model.layers, tensors, n, &s->arena, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(fixture_checkpoint_zstd(s->root, STEP, &l, NULL, SEED, false, zstd, &err), TP_OK,
                 "%s", err.msg);
    cr_assert_eq(ckpt_open(&s->step, s->root, -1, &s->arena, &err), TP_OK, "%s", err.msg);
}

/* A random model at a random layout. zstd: the level of compression, or 0. */
static void save(struct saved *s, struct rng *r, int zstd)
{
    struct model m = random_model(r);
    struct spec spec = random_spec(r, &m);

    save_at(s, &m, spec, INT_MAX, zstd);
}

static void discard(struct saved *s)
{
    struct tp_err err = { 0 };

    cr_assert_eq(file_tree_remove(s->root, &err), TP_OK, "%s", err.msg);
    arena_free(&s->arena);
}

/* ---- where it is read to ---- */

static struct device *gpu; /* NULL: memory of the host */
static struct device_queue *queue;
static struct staging staging;

static void open_gpu(uint64_t seed)
{
    struct tp_err err = { 0 };

    gpu = open_cuda(seed);
    cr_assert_eq(device_queue_open(gpu, &queue, DEVICE_QUEUE_COMPUTE, &err), TP_OK);
    cr_assert_eq(staging_open(&staging, queue, 1 << 16, &err), TP_OK);
}

static void close_gpu(void)
{
    staging_close(&staging);
    device_queue_close(queue);
    device_close(gpu);
}

static void *memory(struct arena *arena, int64_t n_bytes)
{
    struct tp_err err = { 0 };
    void *p = NULL;

    if (!gpu)
        return arena_alloc(arena, (size_t)n_bytes);
    cr_assert_eq(device_alloc(gpu, &p, n_bytes, &err), TP_OK, "%s", err.msg);
    return p;
}

/* A copy of it; the caller frees it. */
static void *content(const void *p, int64_t n_bytes)
{
    void *copy = malloc((size_t)n_bytes + 1);
    struct tp_err err = { 0 };

    if (gpu)
        cr_assert_eq(device_read(&staging, copy, p, n_bytes, &err), TP_OK, "%s", err.msg);
    else
        memcpy(copy, p, (size_t)n_bytes);
    return copy;
}

/* The boxes of all tensors that one rank of a layout needs. */
struct wanted {
    int n;
    int *ids;
    enum dtype *dtypes;
    struct reshard_extent *extents;
    void **data;
};

/* Some tensors of bf16 are wanted as fp32. */
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
        if (t % 2 && w->dtypes[t] == DTYPE_BF16)
            w->dtypes[t] = DTYPE_F32;
        for (int i = 0; i < n; i++) {
            w->extents[w->n] = (struct reshard_extent){ t, boxes[i] };
            w->data[w->n++] = memory(arena, box_elements(&boxes[i]) * dtype_bytes(w->dtypes[t]));
        }
    }
}

static void drop(struct wanted *w)
{
    for (int i = 0; gpu && i < w->n; i++)
        device_free(gpu, w->data[i]);
}

static tp_status restore_with(const struct saved *s, const struct wanted *w,
                              const struct transfer_device *device, int64_t memory_bytes,
                              struct transfer_stats *stats, struct tp_err *err)
{
    const struct restore_request q = { .device = device,
                                       .n_tensors = s->step.manifest.layout.n_tensors,
                                       .n_extents = w->n,
                                       .extents = w->extents,
                                       .data = w->data,
                                       .dtypes = w->dtypes,
                                       .memory_bytes = memory_bytes,
                                       .threads = 2 };

    return restore_checkpoint(&q, &s->step, w->ids, stats, err);
}

/* At times the memory is too little for a tile to fit into the device's part of it. */
static tp_status restore(const struct saved *s, const struct wanted *w, struct rng *r,
                         struct transfer_stats *stats, struct tp_err *err)
{
    const struct transfer_device on = { .device = gpu,
                                        .ops = gpu ? cuda->kernels : NULL,
                                        .memory_bytes = 1 << 20 };

    if (gpu)
        return restore_with(s, w, &on, rng_int(r, 1 << 16, 1 << 20), stats, err);
    return restore_with(s, w, NULL, rng_int(r, 16, 100000), stats, err);
}

static void check_values(const struct saved *s, const struct wanted *w)
{
    for (int i = 0; i < w->n; i++) {
        const struct tensor *t = &s->step.manifest.layout.tensors[w->extents[i].tensor];
        enum dtype type = w->dtypes[w->extents[i].tensor];
        int64_t n = box_elements(&w->extents[i].box), bytes = n * dtype_bytes(type);
        void *saved = malloc((size_t)(n * dtype_bytes(t->dtype))), *right = malloc((size_t)bytes);
        void *got = content(w->data[i], bytes);

        fixture_fill(saved, t, &w->extents[i].box, SEED);
        cast(right, type, saved, t->dtype, n);
        cr_assert_eq(memcmp(right, got, (size_t)bytes), 0, "%s/%s", t->group, t->name);
        free(saved);
        free(right);
        free(got);
    }
}

static void check_boxes(struct rng *r, int times)
{
    for (int i = 0; i < times; i++) {
        struct saved s;
        struct spec spec;
        struct layout to;
        struct tp_err err = { 0 };

        save(&s, r, i & 1); /* every other one is compressed */
        spec = random_spec(r, &s.model);
        cr_assert_eq(layout_make(&to, &spec, s.model.layers, s.step.manifest.layout.tensors,
                                 s.step.manifest.layout.n_tensors, &s.arena, &err),
                     TP_OK);
        for (int rank = 0; rank < spec_world(&spec); rank++) {
            struct arena arena = { 0 };
            struct transfer_stats stats;
            struct wanted w;

            want(&w, &to, rank, &arena);
            cr_assert_eq(restore(&s, &w, r, &stats, &err), TP_OK, "%s", err.msg);
            check_values(&s, &w);
            drop(&w);
            arena_free(&arena);
        }
        discard(&s);
    }
}

Test(restore, every_rank_of_any_layout_gets_its_boxes)
{
    struct rng r = rng_start("restore/boxes");

    check_boxes(&r, 12);
}

Test(restore, a_gpu_gets_its_boxes)
{
    struct rng r = rng_start("restore/gpu_boxes");

    open_gpu(rng_next(&r));
    check_boxes(&r, 2);
    close_gpu();
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

static void check_damage(struct rng *r, int times)
{
    int found = 0;

    for (int i = 0; i < times || !found; i++) {
        struct saved s;
        struct spec spec;
        struct layout to;
        struct tp_err err = { 0 };
        struct box box;
        int tensor;

        save(&s, r, i & 1); /* every other one is compressed */
        flip(&s, r, &tensor, &box);
        spec = random_spec(r, &s.model);
        cr_assert_eq(layout_make(&to, &spec, s.model.layers, s.step.manifest.layout.tensors,
                                 s.step.manifest.layout.n_tensors, &s.arena, &err),
                     TP_OK);
        for (int rank = 0; rank < spec_world(&spec); rank++) {
            struct transfer_stats stats;
            struct wanted w;
            tp_status st;

            want(&w, &to, rank, &s.arena);
            st = restore(&s, &w, r, &stats, &err);
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
            drop(&w);
        }
        discard(&s);
    }
}

Test(restore, a_flipped_bit_is_found_when_any_part_of_its_chunk_is_read)
{
    struct rng r = rng_start("restore/damage");

    check_damage(&r, 30);
}

Test(restore, a_gpu_finds_a_flipped_bit)
{
    struct rng r = rng_start("restore/gpu_damage");

    open_gpu(rng_next(&r));
    check_damage(&r, 2);
    close_gpu();
}

/* ---- host memory ---- */

/* From now on the heap has room for so many bytes more. */
static void limit_heap(int64_t n_bytes)
{
    struct rlimit limit;
    long long pages = 0;
    FILE *f;

    malloc_trim(0); /* no room from earlier */
    f = fopen("/proc/self/statm", "r");
    cr_assert(f && fscanf(f, "%lld", &pages) == 1 && !getrlimit(RLIMIT_AS, &limit));
    fclose(f);
    limit.rlim_cur =
        n_bytes < 0 ? limit.rlim_max : (rlim_t)(pages * sysconf(_SC_PAGESIZE) + n_bytes);
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* Restore a tensor of so many rows in bf16 into a GPU as `type`. limit: while the heap has no room
 * for the tensor. */
static void restore_tensor(int64_t rows, enum dtype type, int64_t memory_bytes, bool limit)
{
    const struct transfer_device on = { .device = gpu,
                                        .ops = cuda->kernels,
                                        .memory_bytes = 1 << 20 };
    struct model m = small_llama();
    struct reshard_extent extent = { .tensor = 0 };
    int id = 0;
    void *data;
    struct wanted w = { 1, &id, &type, &extent, &data };
    struct transfer_stats stats;
    struct saved s;
    struct tp_err err = { 0 };
    tp_status st;

    m.vocab = rows;
    save_at(&s, &m, spec_default(), 1, 0);
    extent.box = box_whole(2, s.step.manifest.layout.tensors[0].shape);
    data = memory(NULL, box_elements(&extent.box) * dtype_bytes(type));
    if (limit)
        limit_heap(box_elements(&extent.box) * 2 * 3 / 4);
    st = restore_with(&s, &w, &on, memory_bytes, &stats, &err);
    limit_heap(-1);
    cr_assert_eq(st, TP_OK, "%s", err.msg);
    cr_assert_leq(stats.buffer_bytes, memory_bytes);
    check_values(&s, &w);
    drop(&w);
    discard(&s);
}

/* Neither memory of the host that grows with a tensor: pinned memory, and the heap. */
Test(restore, a_gpu_needs_no_host_memory_for_a_whole_tensor)
{
    enum { MEMORY = 1 << 20, OTHER = 1 << 20 };
    struct rng r = rng_start("restore/gpu_memory");
    int64_t peak;

    open_gpu(rng_next(&r));
    restore_tensor(8192, DTYPE_F32, MEMORY,
                   false); /* the fake device allocates threads at its first kernel */
    peak = fake->pinned_peak();
    cr_assert_leq(peak, MEMORY + OTHER);
    restore_tensor(24576, DTYPE_F32, MEMORY, !SANITIZED);
    cr_assert_eq(fake->pinned_peak(), peak);
    close_gpu();
}

Test(restore, a_gpu_gets_tiles_that_its_tables_have_no_room_for)
{
    struct rng r = rng_start("restore/gpu_tiles");

    open_gpu(rng_next(&r));
    restore_tensor(256, DTYPE_BF16, 1 << 16, false);
    close_gpu();
}
