/*
 * tests/unit/ckpt_verify.c - verify finds every kind of damage, names it, and reports sound
 * checkpoints as sound.
 *
 * covers: ckpt/tiling
 */
#include "ckpt/verify.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

TestSuite(verify, .init = temp_dir_make, .fini = temp_dir_remove);

static char findings[1 << 14];

static void note_finding(void *ctx, const char *sentence)
{
    size_t n = strlen(findings);

    (void)ctx;
    snprintf(findings + n, sizeof findings - n, "%s\n", sentence);
}

/* Verify step 2; returns the number of findings, whose sentences are in `findings`. */
static int verify(struct arena *arena, struct verify *v)
{
    struct tp_err err = { 0 };

    *v = (struct verify){ .dir = temp_path("step-00000002"), .jobs = 2, .found = note_finding };
    findings[0] = 0;
    cr_assert_eq(ckpt_verify(v, arena, &err), TP_OK, "%s", err.msg);
    return v->findings;
}

/* Flip a bit of a file of step 2. */
static void flip(const char *name, int64_t at)
{
    char path[PATH_MAX];
    unsigned char byte;
    int fd;

    snprintf(path, sizeof path, "%s/step-00000002/%s", temp_dir, name);
    fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

Test(verify, a_sound_checkpoint_has_no_findings_and_right_digests)
{
    struct arena arena = { 0 };
    struct verify v;
    int64_t bytes = 0;

    tiny_ckpt(temp_dir, "tp2pp2", 2, 9, DTYPE_BF16);
    cr_assert_eq(verify(&arena, &v), 0, "%s", findings);
    for (int i = 0; i < v.manifest.layout.n_tensors; i++) {
        const struct tensor *t = &v.manifest.layout.tensors[i];
        struct box whole = box_whole(t->ndim, t->shape);
        int64_t n = box_elements(&whole) * dtype_bytes(t->dtype);
        void *data = malloc((size_t)n);
        struct digest d;

        fixture_fill(data, t, &whole, 9);
        d = digest_box(data, &whole, t->ndim, t->shape, dtype_bytes(t->dtype));
        cr_assert_eq(memcmp(&d, &v.digests[i], sizeof d), 0, "%s/%s", t->group, t->name);
        free(data);
        bytes += n;
    }
    cr_assert_eq(v.bytes, bytes);
    arena_free(&arena);
}

Test(verify, damage_anywhere_is_found_and_its_file_is_named)
{
    struct arena arena = { 0 };
    struct verify v;
    struct shard_info info;
    const char *says[] = { "HDF5 signature", "/index", "payloads" };

    tiny_ckpt(temp_dir, "tp2", 2, 9, DTYPE_F32);
    cr_assert_eq(verify(&arena, &v), 0, "%s", findings);
    info = v.manifest.shards[1];
    for (int i = 0; i < 3; i++) {
        const int64_t at[] = { 1, info.index_offset + 10, 100 };

        flip(info.file, at[i]);
        cr_expect_geq(verify(&arena, &v), 1, "case %d", i);
        cr_expect(strstr(findings, says[i]) && strstr(findings, "rank-00001.h5"), "case %d: %s", i,
                  findings);
        flip(info.file, at[i]);
    }
    flip(MANIFEST_FILE, 40);
    cr_expect_eq(verify(&arena, &v), 1);
    cr_expect(strstr(findings, MANIFEST_FILE) && strstr(findings, "SHA-256"), "%s", findings);
    arena_free(&arena);
}

Test(verify, a_damaged_chunk_is_named_by_tensor_and_box)
{
    struct arena arena = { 0 };
    struct shard_reader *reader = NULL;
    const struct chunk_entry *chunks;
    struct chunk_entry victim;
    struct tp_err err = { 0 };
    char box[BOX_TEXT_MAX];
    struct verify v;
    int64_t n;

    tiny_ckpt(temp_dir, "tp2", 2, 9, DTYPE_F32);
    cr_assert_eq(verify(&arena, &v), 0, "%s", findings);
    cr_assert_eq(shard_open(&reader, v.dir, &v.manifest.shards[0], &v.manifest.layout, &err),
                 TP_OK);
    chunks = shard_chunks(reader, &n);
    victim = chunks[n / 2];
    shard_reader_close(reader);
    flip("rank-00000.h5", victim.offset + victim.stored_bytes - 1);
    cr_assert_eq(verify(&arena, &v), 1, "%s", findings);
    cr_expect(strstr(findings, v.manifest.layout.tensors[victim.tensor].name) &&
                  strstr(findings, box_format(box, &victim.box)) && strstr(findings, "CRC32C"),
              "%s", findings);
    arena_free(&arena);
}

Test(verify, missing_and_foreign_shards_are_found)
{
    struct arena arena = { 0 };
    struct verify v;

    tiny_ckpt(temp_dir, "tp2", 2, 9, DTYPE_F32);
    temp_write("step-00000002/rank-00007.h5", "x", 1);
    cr_expect_eq(verify(&arena, &v), 1);
    cr_expect(strstr(findings, "rank-00007.h5: is not a shard of this checkpoint"), "%s", findings);
    cr_assert_eq(unlink(temp_path("step-00000002/rank-00007.h5")), 0);
    cr_assert_eq(unlink(temp_path("step-00000002/rank-00001.h5")), 0);
    cr_expect_eq(verify(&arena, &v), 1);
    cr_expect(strstr(findings, "rank-00001.h5: the shard of rank 1 is missing"), "%s", findings);
    arena_free(&arena);
}

/* Write a step of one tensor from these boxes of ranks, as another program might. */
static void write_boxes(struct stored_box *boxes, int n)
{
    static struct tensor t = { .name = "w",
                               .group = "param",
                               .ndim = 2,
                               .shape = { 8, 4 },
                               .placement = { .dim = -1, .unit = 1, .blocks = 1 },
                               .layer = LAYER_FIRST };
    struct layout l = { .spec = spec_default(), .n_tensors = 1, .tensors = &t };
    const struct ckpt_begin_request begin = { .root = temp_dir, .step = 2, .force = true };
    struct ckpt_transaction txn = { .tmp.lock_fd = -1 };
    struct shard_info shards[2];
    struct manifest m = { .state = { .step = 2, .dtype = "fp32" }, .shards = shards };
    struct tp_err err = { 0 };

    l.spec.tp = 2;
    m.layout = l;
    cr_assert_eq(ckpt_begin(&txn, &begin, &err), TP_OK, "%s", err.msg);
    for (int rank = 0; rank < 2; rank++) {
        const struct shard_plan plan = { txn.tmp.path, rank, &l, boxes, n, NULL, 0, NULL };

        cr_assert_eq(fixture_shard(&shards[m.n_shards++], &plan, 1, &err), TP_OK, "%s", err.msg);
    }
    cr_assert_eq(ckpt_commit(&txn, &m, &err), TP_OK, "%s", err.msg);
}

Test(verify, boxes_must_hold_each_element_once)
{
    struct stored_box boxes[2] = {
        { .rank = 0, .box = { 2, { 0, 0 }, { 5, 4 } } },
        { .rank = 1, .box = { 2, { 5, 0 }, { 3, 4 } } },
    };
    struct arena arena = { 0 };
    struct verify v;

    write_boxes(boxes, 2);
    cr_expect_eq(verify(&arena, &v), 0, "%s", findings);
    boxes[1].box = (struct box){ 2, { 4, 0 }, { 4, 4 } };
    write_boxes(boxes, 2);
    cr_expect_eq(verify(&arena, &v), 1);
    cr_expect(strstr(findings, "overlap") && strstr(findings, "param/w"), "%s", findings);
    boxes[1].box = (struct box){ 2, { 6, 0 }, { 2, 4 } };
    write_boxes(boxes, 2);
    cr_expect_eq(verify(&arena, &v), 1);
    cr_expect(strstr(findings, "4 are in no shard"), "%s", findings);
    arena_free(&arena);
}
