/* tests/unit/trainer_token_file.c - token files: plain bytes, Megatron's pairs, hostile indices. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file_tree.h"
#include "tests/unit/random.h"
#include "trainer/data/token_file.h"

/* A folder for one test, which the test removes at its end. */
struct place {
    char dir[64], prefix[80], idx[96], bin[96];
};

static struct place place_make(void)
{
    struct place p;

    snprintf(p.dir, sizeof p.dir, "/tmp/tp-tokens-XXXXXX");
    cr_assert(mkdtemp(p.dir));
    snprintf(p.prefix, sizeof p.prefix, "%s/text_document", p.dir);
    snprintf(p.idx, sizeof p.idx, "%s.idx", p.prefix);
    snprintf(p.bin, sizeof p.bin, "%s.bin", p.prefix);
    return p;
}

static void place_remove(const struct place *p)
{
    struct tp_err err;

    cr_assert_eq(file_tree_remove(p->dir, &err), TP_OK);
}

static void put(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");

    cr_assert(f);
    cr_assert_eq(fwrite(data, 1, size, f), size);
    fclose(f);
}

/* An index in memory, written as the format says. */
struct bytes {
    unsigned char *at;
    size_t n;
};

static void add(struct bytes *b, const void *data, size_t n)
{
    b->at = realloc(b->at, b->n + n + 1);
    cr_assert(b->at);
    memcpy(b->at + b->n, data, n);
    b->n += n;
}

static void add_u64(struct bytes *b, uint64_t x)
{
    add(b, &x, 8);
}

/* An index of n sequences of sizes[i] tokens of `width` bytes; each document has two sequences. */
static struct bytes index_of(int code, int width, const int32_t *sizes, int n)
{
    struct bytes b = { 0 };
    uint64_t at = 0;

    add(&b, "MMIDIDX\0", 9);
    add_u64(&b, 1);
    add(&b, &(unsigned char){ (unsigned char)code }, 1);
    add_u64(&b, (uint64_t)n);
    add_u64(&b, (uint64_t)(n / 2 + 1));
    add(&b, sizes, (size_t)n * 4);
    for (int i = 0; i < n; i++) {
        add_u64(&b, at);
        at += (uint64_t)sizes[i] * (uint64_t)width;
    }
    for (int i = 0; i <= n / 2; i++)
        add_u64(&b, (uint64_t)(i < n / 2 ? 2 * i : n));
    return b;
}

Test(tokens, every_type_reads_back_what_was_written)
{
    static const struct {
        int code, width;
        int64_t most;
    } types[] = { { 1, 1, 255 },     { 2, 1, 127 },     { 3, 2, 32767 },
                  { 4, 4, 1 << 30 }, { 5, 8, 1 << 30 }, { 8, 2, 65535 } };
    struct rng r = rng_start("tokens/types");

    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        struct place p = place_make();
        struct tp_err err = { 0 };
        struct bytes bin = { 0 }, idx;
        int32_t sizes[8];
        int64_t want[1024], out[1024], n = 0;
        struct token_file t;

        for (int i = 0; i < 8; i++) {
            sizes[i] = (int32_t)rng_int(&r, 0, 100);
            for (int j = 0; j < sizes[i]; j++) {
                want[n] = rng_int(&r, 0, types[k].most);
                add(&bin, &want[n++], (size_t)types[k].width); /* little-endian */
            }
        }
        idx = index_of(types[k].code, types[k].width, sizes, 8);
        put(p.idx, idx.at, idx.n);
        put(p.bin, bin.at, bin.n);
        cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
        cr_assert(t.n == n && t.documents == 4);
        cr_assert_eq(token_file_read(&t, 0, n, out, &err), TP_OK, "%s", err.msg);
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(out[i], want[i]);
        if (n > 0) {
            cr_assert_eq(token_file_read(&t, n - 1, 1, out, &err), TP_OK, "%s", err.msg);
            cr_assert_eq(out[0], want[n - 1]);
        }
        token_file_close(&t);
        cr_assert_eq(token_file_open(&t, p.bin, &err), TP_OK, "the .bin's name opens the pair");
        cr_assert_eq(t.n, n);
        token_file_close(&t);
        free(bin.at);
        free(idx.at);
        place_remove(&p);
    }
}

Test(tokens, any_other_file_has_bytes_as_tokens)
{
    struct place p = place_make();
    struct tp_err err = { 0 };
    int64_t out[5];
    struct token_file t;

    put(p.prefix, "a\xff\0z!", 5);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
    cr_assert(t.n == 5 && t.is_bytes && !t.asked);
    cr_assert_eq(token_file_read(&t, 0, 5, out, &err), TP_OK, "%s", err.msg);
    cr_assert(out[0] == 'a' && out[1] == 255 && out[2] == 0 && out[4] == '!');
    token_file_close(&t);
    place_remove(&p);
}

Test(tokens, negative_tokens_are_read)
{
    struct place p = place_make();
    struct tp_err err = { 0 };
    struct bytes idx = index_of(4, 4, (int32_t[]){ 3 }, 1);
    struct token_file t;
    int64_t out[3];

    put(p.idx, idx.at, idx.n);
    put(p.bin, (int32_t[]){ 1, 2, -3 }, 12);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(token_file_read(&t, 1, 2, out, &err), TP_OK, "%s", err.msg);
    cr_assert(out[0] == 2 && out[1] == -3);
    token_file_close(&t);
    free(idx.at);
    place_remove(&p);
}

/* Write a number at byte `at` of a good index, or truncate the file. */
Test(tokens, hostile_indices_are_refused_with_a_reason)
{
    enum { SIZES = 34, POINTERS = SIZES + 8, DOCUMENTS = POINTERS + 16, END = DOCUMENTS + 16 };
    static const struct {
        int at, width;
        int64_t value;
        tp_status st;
        const char *says;
    } bad[] = {
        { 0, 1, 'X', TP_E_USAGE, "MMIDIDX" },
        { 9, 8, 2, TP_E_USAGE, "version 2" },
        { 17, 1, 7, TP_E_USAGE, "f32" },
        { 17, 1, 0, TP_E_CORRUPT, "type 0" },
        { 17, 1, 200, TP_E_CORRUPT, "type 200" },
        { 17, 1, 4, TP_E_CORRUPT, "tokens" }, /* twice as wide, so the .bin is too short */
        { 18, 8, INT64_MAX, TP_E_CORRUPT, "no room" },
        { 18, 8, -1, TP_E_CORRUPT, "no room" },
        { 18, 8, 3, TP_E_CORRUPT, "no room" },
        { 26, 8, INT64_MAX / 4, TP_E_CORRUPT, "no room" },
        { 26, 8, -1, TP_E_CORRUPT, "no room" },
        { SIZES, 4, -1, TP_E_CORRUPT, "sequence 0 has -1 tokens" },
        { SIZES, 4, INT32_MAX, TP_E_CORRUPT, "sequence 0 has" },
        { SIZES + 4, 4, 4, TP_E_CORRUPT, "bytes" },
        { POINTERS, 8, -8, TP_E_CORRUPT, "begins at byte -8" },
        { POINTERS + 8, 8, INT64_MAX, TP_E_CORRUPT, "sequence 1 begins" },
        { DOCUMENTS, 8, -1, TP_E_CORRUPT, "document 0" },
        { DOCUMENTS + 8, 8, 3, TP_E_CORRUPT, "document 1" },
    };
    struct bytes good = index_of(3, 2, (int32_t[]){ 5, 7 }, 2);
    int16_t tokens[12] = { 0 };

    cr_assert_eq(good.n, (size_t)END);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct place p = place_make();
        struct tp_err err = { 0 };
        struct bytes b = { 0 };
        struct token_file t;

        add(&b, good.at, good.n);
        memcpy(b.at + bad[i].at, &bad[i].value, (size_t)bad[i].width);
        put(p.idx, b.at, b.n);
        put(p.bin, tokens, sizeof tokens);
        cr_expect_eq(token_file_open(&t, p.prefix, &err), bad[i].st, "case %zu: %s", i, err.msg);
        cr_expect(strstr(err.msg, bad[i].says) && strstr(err.msg, p.prefix), "case %zu: %s", i,
                  err.msg);
        free(b.at);
        place_remove(&p);
    }
    for (size_t n = 0; n < good.n; n++) {
        struct place p = place_make();
        struct tp_err err = { 0 };
        struct token_file t;

        put(p.idx, good.at, n);
        put(p.bin, tokens, sizeof tokens);
        cr_expect_neq(token_file_open(&t, p.prefix, &err), TP_OK, "cut to %zu bytes", n);
        place_remove(&p);
    }
    free(good.at);
}

/* Flip random bits. An index that opens can be read from end to end. */
Test(tokens, what_opens_is_safe_to_read)
{
    struct bytes good = index_of(8, 2, (int32_t[]){ 5, 0, 7, 12 }, 4);
    uint16_t tokens[24] = { 0 };
    struct rng r = rng_start("tokens/flips");
    struct place p = place_make();

    put(p.bin, tokens, sizeof tokens);
    for (int i = 0; i < 400; i++) {
        struct tp_err err = { 0 };
        struct bytes b = { 0 };
        struct token_file t;

        add(&b, good.at, good.n);
        for (int64_t k = rng_int(&r, 0, 3); k > 0; k--)
            b.at[rng_int(&r, 0, (int64_t)b.n - 1)] ^= (unsigned char)(1 << rng_int(&r, 0, 7));
        put(p.idx, b.at, b.n);
        if (token_file_open(&t, p.prefix, &err) == TP_OK) {
            int64_t out[64];

            cr_assert_leq(t.n, 24 * 2);
            cr_assert_eq(token_file_read(&t, 0, t.n, out, &err), TP_OK, "%s", err.msg);
            token_file_close(&t);
        }
        free(b.at);
    }
    free(good.at);
    place_remove(&p);
}

/* An index whose columns are longer than what is read of them at a time. */
Test(tokens, many_sequences_are_checked_to_the_last)
{
    enum { N = 20000 };
    struct place p = place_make();
    struct tp_err err = { 0 };
    int32_t *sizes = malloc(N * sizeof *sizes);
    int64_t *tokens = malloc(N * sizeof *tokens), *out = malloc(N * sizeof *out);
    struct token_file t;
    struct bytes idx;

    cr_assert(sizes && tokens && out);
    for (int i = 0; i < N; i++) {
        sizes[i] = 1;
        tokens[i] = i;
    }
    idx = index_of(5, 8, sizes, N);
    put(p.idx, idx.at, idx.n);
    put(p.bin, tokens, N * sizeof *tokens);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(token_file_read(&t, 0, N, out, &err), TP_OK, "%s", err.msg);
    cr_assert_arr_eq(out, tokens, N * sizeof *tokens);
    token_file_close(&t);
    idx.at[34 + 4 * N + 8 * (N - 1)] ^= 1; /* where the last sequence begins */
    put(p.idx, idx.at, idx.n);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_E_CORRUPT);
    cr_assert(strstr(err.msg, "sequence 19999 begins"), "%s", err.msg);
    free(idx.at);
    free(sizes);
    free(tokens);
    free(out);
    place_remove(&p);
}

Test(tokens, a_file_that_is_cut_while_it_is_read_is_an_error_with_both_sizes)
{
    struct place p = place_make();
    struct tp_err err = { 0 };
    static char text[40000];
    static int64_t out[sizeof text];
    struct token_file t;

    put(p.prefix, text, sizeof text);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(truncate(p.prefix, 5000), 0);
    cr_expect_eq(token_file_read(&t, 0, 5000, out, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(token_file_read(&t, 0, sizeof text, out, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, p.prefix) && strstr(err.msg, "has 5000 bytes, but had 40000"), "%s",
              err.msg);
    token_file_close(&t);
    place_remove(&p);
}

Test(tokens, files_that_hold_no_tokens_are_refused)
{
    struct place p = place_make();
    struct tp_err err = { 0 };
    struct token_file t;
    char fifo[96];

    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_E_NOTFOUND);
    cr_assert_eq(token_file_open(&t, p.dir, &err), TP_E_USAGE, "%s", err.msg);
    snprintf(fifo, sizeof fifo, "%s/fifo", p.dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_assert_eq(token_file_open(&t, fifo, &err), TP_E_USAGE, "%s", err.msg);
    put(p.idx, "x", 1);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_E_NOTFOUND);
    cr_assert(strstr(err.msg, "text_document.bin"), "%s", err.msg);
    put(p.prefix, "", 0); /* an empty file opens; the reader checks the number of tokens */
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(t.n, 0);
    token_file_close(&t);
    place_remove(&p);
}

/* The error is about the name, and says how to train on the bytes anyway. */
static void expect_no_text(const char *path)
{
    struct tp_err err = { 0 };
    struct token_file t;
    char words[PATH_MAX + 16], asked[PATH_MAX + 16];

    put(path, "some text", 9);
    cr_assert_eq(token_file_open(&t, path, &err), TP_E_USAGE, "%s", path);
    snprintf(words, sizeof words, "bytes:%s ", path);
    cr_assert(strstr(err.msg, words), "%s", err.msg);
    snprintf(asked, sizeof asked, "bytes:%s", path);
    cr_assert_eq(token_file_open(&t, asked, &err), TP_OK, "%s", err.msg);
    cr_assert(t.n == 9 && t.is_bytes && t.asked);
    cr_assert_str_eq(token_file_path(asked), path);
    token_file_close(&t);
}

Test(tokens, names_of_other_kinds_of_files_are_refused)
{
    static const char *const endings[] = { ".jsonl", ".json", ".csv", ".parquet",     ".npy",
                                           ".gz",    ".zst",  ".pt",  ".safetensors", ".tfrecord",
                                           ".pkl",   ".h5",   ".tgz" };
    struct place p = place_make();
    struct tp_err err = { 0 };
    struct token_file t;
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        snprintf(path, sizeof path, "%s/x%s", p.dir, endings[i]);
        expect_no_text(path);
    }
    snprintf(path, sizeof path, "%s/x.txt", p.dir);
    put(path, "some text", 9);
    cr_assert_eq(token_file_open(&t, path, &err), TP_OK, "%s", err.msg);
    token_file_close(&t);
    place_remove(&p);
}

Test(tokens, one_file_of_a_pair_is_refused_by_every_name)
{
    struct place p = place_make();
    struct tp_err err = { 0 };
    struct token_file t;

    put(p.bin, "tokens", 6);
    cr_assert_eq(token_file_open(&t, p.bin, &err), TP_E_NOTFOUND);
    cr_assert(strstr(err.msg, p.idx) && strstr(err.msg, "bytes:"), "%s", err.msg);
    cr_assert_eq(token_file_open(&t, p.idx, &err), TP_E_NOTFOUND);
    cr_assert_eq(token_file_open(&t, p.prefix, &err), TP_E_NOTFOUND);
    place_remove(&p);
}
