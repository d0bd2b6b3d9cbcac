/*
 * tests/unit/reshard_safetensors.c - safetensors files: what is written is read, and false headers
 * are refused.
 *
 * covers: reshard/formats/safetensors/safetensors_header
 *     reshard/formats/safetensors/safetensors_source
 *     reshard/formats/safetensors/safetensors_index
 *     reshard/formats/safetensors/safetensors_target
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/file_tree.h"
#include "reshard/formats/memory.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/safetensors/safetensors_index.h"
#include "reshard/restore.h"
#include "tests/unit/random.h"

static char *temp_dir(void)
{
    static char dir[64];

    snprintf(dir, sizeof dir, "/tmp/tp-safetensors-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

static void remove_dir(const char *dir)
{
    struct tp_err err = { 0 };

    cr_assert_eq(file_tree_remove(dir, &err), TP_OK, "%s", err.msg);
}

enum { N = 5, MAX_ELEMENTS = 9 * 9 * 9 };

/* Random tensors, whole, in memory. */
struct bundle {
    struct safetensors_tensor tensors[N];
    struct reshard_tensor moved[N];
    struct reshard_extent extents[N];
    enum dtype dtypes[N];
    char names[N][32];
    char bytes[N][MAX_ELEMENTS * 8];
    void *data[N];
};

static void bundle_make(struct bundle *b, struct rng *r)
{
    static const enum dtype types[] = { DTYPE_F64, DTYPE_F32, DTYPE_BF16, DTYPE_U8 };

    memset(b, 0, sizeof *b);
    for (int i = 0; i < N; i++) {
        struct safetensors_tensor *t = &b->tensors[i];

        snprintf(b->names[i], sizeof b->names[i], "layer.%d \"w\" \xc3\xa4", i);
        t->name = b->names[i];
        t->dtype = types[i < 4 ? i : 3];
        t->ndim = (int)rng_int(r, 0, 3);
        for (int d = 0; d < t->ndim; d++)
            t->shape[d] = rng_int(r, 0, 9);
        b->moved[i] = (struct reshard_tensor){ .name = t->name, .ndim = t->ndim };
        memcpy(b->moved[i].shape, t->shape, sizeof t->shape);
        b->extents[i] = (struct reshard_extent){ i, box_whole(t->ndim, t->shape) };
        b->dtypes[i] = t->dtype;
        b->data[i] = b->bytes[i];
        for (size_t k = 0; k < sizeof b->bytes[i]; k++)
            b->bytes[i][k] = (char)rng_next(r);
    }
}

static void must_read_back(const char *path, const struct bundle *b)
{
    static struct bundle got;
    struct transfer_stats stats;
    struct tp_err err = { 0 };

    memset(&got, 0, sizeof got);
    for (int i = 0; i < N; i++)
        got.data[i] = got.bytes[i];
    const struct restore_request q = { N, N, b->extents, got.data, b->dtypes, NULL, 1000, 1 };

    cr_assert_eq(restore_safetensors(&q, path, b->moved, &stats, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < N; i++)
        cr_assert_eq(memcmp(got.bytes[i], b->bytes[i],
                            (size_t)(box_elements(&b->extents[i].box) * dtype_bytes(b->dtypes[i]))),
                     0);
}

Test(safetensors, what_is_written_to_one_file_or_several_is_read)
{
    struct rng r = rng_start("safetensors/round");
    static struct bundle b;

    for (int i = 0; i < 60; i++) {
        char *dir = temp_dir(), path[128];
        struct memory_endpoint mp = { b.extents, b.dtypes, b.data, N, NULL };
        struct reshard_endpoint from = memory_endpoint_make(&mp);
        struct transfer m = {
            .n_tensors = N, .tensors = b.moved, .from = &from, .memory_bytes = 1 << 20, .threads = 1
        };
        struct tensor tensors[N] = { 0 };
        struct piece_target *t;
        struct transfer_plan *p;
        struct transfer_stats stats;
        struct tp_err err = { 0 };

        bundle_make(&b, &r);
        for (int k = 0; k < N; k++) {
            tensors[k].name = b.tensors[k].name;
            tensors[k].dtype = b.tensors[k].dtype;
            tensors[k].ndim = b.tensors[k].ndim;
            memcpy(tensors[k].shape, b.tensors[k].shape, sizeof tensors[k].shape);
        }
        cr_assert_eq(safetensors_create(&t, dir, tensors, N, rng_int(&r, 0, 4000), &err), TP_OK,
                     "%s", err.msg);
        m.to = piece_target_endpoint(t);
        cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(transfer_execute(p, &stats, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(piece_target_finish(t, &err), TP_OK, "%s", err.msg);
        transfer_plan_free(p);
        piece_target_close(t);
        must_read_back(dir, &b);

        snprintf(path, sizeof path, "%s/one.safetensors", dir);
        cr_assert_eq(safetensors_write_file(path, b.tensors, (const void *const *)b.data, N, &err),
                     TP_OK, "%s", err.msg);
        must_read_back(path, &b);
        remove_dir(dir);
    }
}

/* A file with this header and n bytes of data. */
static void write_raw(const char *path, const char *header, uint64_t claim, size_t n_data)
{
    FILE *f = fopen(path, "wb");

    cr_assert_not_null(f);
    cr_assert_eq(fwrite(&claim, 8, 1, f), 1);
    fwrite(header, 1, strlen(header), f);
    for (size_t i = 0; i < n_data; i++)
        fputc('x', f);
    cr_assert_eq(fclose(f), 0);
}

Test(safetensors, false_headers_are_refused)
{
    static const struct {
        const char *header, *says;
        size_t n_data;
    } cases[] = {
        { "[]", "not a JSON object", 0 },
        { "{", "not a JSON object", 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "outside the file",
          3 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "belong to no", 5 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]}}", "do not match", 4 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", "hole", 5 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", "outside", 4 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", "outside", 4 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
          "overlaps", 3 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
          "occurs twice", 4 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
          "too many elements", 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,0],\"data_offsets\":[0,0]}}",
          "too many elements", 0 },
        { "{\"a\":{\"dtype\":\"F64\",\"shape\":[288230376151711744],\"data_offsets\":[0,0]}}",
          "do not match", 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", "not an integer", 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", "axes",
          1 },
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", "no shape", 1 },
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "no dtype", 1 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", "no data_offsets", 1 },
        { "{\"a\":7}", "no dtype", 0 },
    };
    char *dir = temp_dir(), path[128];
    struct safetensors_source *s;
    struct tp_err err = { 0 };

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_raw(path, cases[i].header, strlen(cases[i].header), cases[i].n_data);
        cr_expect_eq(safetensors_open(&s, dir, &err), TP_E_CORRUPT, "case %zu", i);
        cr_expect(strstr(err.msg, cases[i].says), "case %zu: %s", i, err.msg);
        cr_expect(strstr(err.msg, path), "case %zu: %s", i, err.msg);
    }
    write_raw(path, "{}", UINT64_MAX, 0);
    cr_expect_eq(safetensors_open(&s, path, &err), TP_E_CORRUPT);
    write_raw(path, "{}", 1000, 0);
    cr_expect_eq(safetensors_open(&s, path, &err), TP_E_CORRUPT);
    remove_dir(dir);
}

Test(safetensors, an_index_gives_each_file_once)
{
    static const struct {
        const char *text, *files; /* NULL: it is refused */
    } cases[] = {
        { "{\"weight_map\": {\"a\": \"2\", \"b\": \"1\", \"c\": \"2\", \"d\": \"0\"}, \"x\": [1]}",
          "0 1 2 " },
        { "{\"metadata\": {\"total_size\": 5}, \"weight_map\": {}}", "" },
        { "{\"weight_map\": {\"a\": \"../2\"}}", NULL },
        { "{\"weight_map\": {\"a\": 7}}", NULL },
        { "{\"weight_map\": [\"2\"]}", NULL },
        { "{\"weight_map\": {\"a\": \"2\"}", NULL },
        { "{}", NULL },
    };
    char *dir = temp_dir(), path[128];

    snprintf(path, sizeof path, "%s/index.json", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors_files files = { .n = 0 };
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        char found[64] = "";
        FILE *f = fopen(path, "w");
        tp_status st;

        fputs(cases[i].text, f);
        fclose(f);
        st = safetensors_index_read(&files, path, &arena, &err);
        cr_expect_eq(st, cases[i].files ? TP_OK : TP_E_CORRUPT, "case %zu: %s", i, err.msg);
        for (int k = 0; k < files.n; k++)
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s ", files.names[k]);
        if (cases[i].files)
            cr_expect_str_eq(found, cases[i].files);
        else
            cr_expect(strstr(err.msg, path), "%s", err.msg);
        arena_free(&arena);
    }
    remove_dir(dir);
}

Test(safetensors, damage_to_a_header_never_crashes)
{
    struct rng r = rng_start("safetensors/damage");
    static struct bundle b;
    char *dir = temp_dir(), path[128];
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char *bytes;
    size_t size;

    bundle_make(&b, &r);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    cr_assert_eq(safetensors_write_file(path, b.tensors, (const void *const *)b.data, N, &err),
                 TP_OK);
    cr_assert_eq(file_read_all(&bytes, &size, path, 1 << 20, &arena, &err), TP_OK);
    for (int i = 0; i < 3000; i++) {
        size_t at = (size_t)rng_int(&r, 0, 600 < size ? 600 : (int64_t)size - 1);
        size_t keep = rng_int(&r, 0, 9) ? size : (size_t)rng_int(&r, 0, (int64_t)size);
        char old = bytes[at];
        struct safetensors_source *s;
        FILE *f = fopen(path, "wb");

        bytes[at] = (char)rng_next(&r);
        fwrite(bytes, 1, keep, f);
        fclose(f);
        bytes[at] = old;
        if (safetensors_open(&s, path, &err) == TP_OK)
            safetensors_source_close(s);
        else
            cr_assert(strstr(err.msg, path));
    }
    arena_free(&arena);
    remove_dir(dir);
}

Test(safetensors, a_tensor_that_is_missing_or_has_another_shape_is_named)
{
    struct rng r = rng_start("safetensors/select");
    static struct bundle b;
    char *dir = temp_dir(), path[128];
    struct safetensors_source *s;
    struct tp_err err = { 0 };
    struct reshard_tensor want;

    bundle_make(&b, &r);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    cr_assert_eq(safetensors_write_file(path, b.tensors, (const void *const *)b.data, N, &err),
                 TP_OK);
    cr_assert_eq(safetensors_open(&s, dir, &err), TP_OK);
    want = b.moved[2];
    want.name = "lm_head.weight";
    cr_expect_eq(safetensors_select(s, &want, 1, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "lm_head.weight is missing"), "%s", err.msg);
    want = b.moved[2];
    want.ndim = 1;
    want.shape[0] = 12345;
    cr_expect_eq(safetensors_select(s, &want, 1, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "12345"), "%s", err.msg);
    safetensors_source_close(s);
    cr_expect_eq(safetensors_open(&s, "/nonexistent", &err), TP_E_NOTFOUND);
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(safetensors_open(&s, dir, &err), TP_E_NOTFOUND);
    remove_dir(dir);
}
