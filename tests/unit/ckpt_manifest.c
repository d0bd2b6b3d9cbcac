/*
 * tests/unit/ckpt_manifest.c - manifest.json: what was written is read, and damage is refused.
 *
 * covers: ckpt/manifest_parse ckpt/manifest_text
 */
#include <criterion/criterion.h>
#include <jansson.h>

#include "ckpt/sha256.h"
#include "tests/unit/fixture.h"

enum { TAIL = 13 + 64 + 4 };

struct example {
    struct arena arena;
    struct manifest m;
    char *text;
    size_t size;
};

static struct example make_example_of(struct rng *r, struct model model)
{
    struct example x = { .size = 0 };
    struct spec s = random_spec(r, &model);
    struct tp_err err = { 0 };
    struct tensor *tensors;
    int n;

    cr_assert_eq(model_state(&tensors, &n, &model, DTYPE_BF16, &x.arena, &err), TP_OK);
    cr_assert_eq(layout_make(&x.m.layout, &s, model.layers, tensors, n, &x.arena, &err), TP_OK);
    memset(x.m.save_id, 'a', SAVE_ID_TEXT - 1);
    x.m.epoch = rng_int(r, 0, 5);
    x.m.step = rng_int(r, 0, INT64_MAX - 1);
    x.m.model_config = "{ \"a\": \"\\u00e9\",\n\t\"b\": 1.50 }\n";
    x.m.state = (struct manifest_train_state){ .step = x.m.step,
                                               .next_sample = 5,
                                               .tokens = 6,
                                               .seed = UINT64_MAX,
                                               .dtype = "bf16",
                                               .options = "{\"lr\": 0.0003, \"steps\": 20}" };
    x.m.n_shards = spec_world(&s) < 3 ? spec_world(&s) : 3;
    x.m.shards = arena_array(&x.arena, 3, sizeof *x.m.shards);
    for (int i = 0; i < x.m.n_shards; i++) {
        struct shard_info *info = &x.m.shards[i];

        *info = (struct shard_info){
            .rank = i, .size_bytes = 4096, .index_offset = 96, .index_rows = 3
        };
        snprintf(info->file, sizeof info->file, "rank-%05d.h5", i);
        memset(info->index_sha256, '1', SHA256_TEXT - 1);
        memset(info->meta_sha256, 'e', SHA256_TEXT - 1);
    }
    cr_assert_eq(manifest_format(&x.text, &x.size, &x.m, &err), TP_OK, "%s", err.msg);
    return x;
}

static struct example make_example(struct rng *r)
{
    return make_example_of(r, random_model(r));
}

static void free_example(struct example *x)
{
    free(x->text);
    arena_free(&x->arena);
}

static tp_status parse(const char *text, size_t size, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct manifest m;
    const struct json_scan_input in = json_scan_input_text(text, size, "manifest.json");
    tp_status st = manifest_parse(&m, &in, &arena, err);

    arena_free(&arena);
    return st;
}

/* The text with its right checksum; malloc'ed. */
static char *sign(const char *body, size_t n, size_t *size)
{
    char sha[SHA256_TEXT], *out = malloc(n + TAIL + 1);
    struct tp_err err;

    sha256_of(sha, body, n, &err);
    memcpy(out, body, n);
    *size = n + (size_t)snprintf(out + n, TAIL + 1, "\"checksum\": \"%s\"\n}\n", sha);
    return out;
}

Test(manifest, is_parsed_as_it_was_formatted)
{
    struct rng r = rng_start("manifest/round trip");

    for (int i = 0; i < 50; i++) {
        struct example x = make_example(&r);
        struct tp_err err = { 0 };
        struct manifest m;
        const struct json_scan_input in = json_scan_input_text(x.text, x.size, "manifest.json");
        char *again;
        size_t size;

        cr_assert_eq(manifest_parse(&m, &in, &x.arena, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(manifest_format(&again, &size, &m, &err), TP_OK);
        cr_assert_eq(size, x.size);
        cr_assert_eq(memcmp(again, x.text, size), 0);
        cr_assert_str_eq(m.model_config, x.m.model_config);
        cr_assert_eq(m.state.seed, UINT64_MAX);
        cr_assert_eq(m.step, x.m.step);
        free(again);
        free_example(&x);
    }
}

/* Llama 3.1 405B with its optimizer, on 16,384 ranks. */
Test(manifest, a_large_model_on_many_ranks_is_read, .timeout = 120)
{
    const struct model model = { .family = MODEL_LLAMA,
                                 .layers = 126,
                                 .hidden = 16384,
                                 .ffn = 53248,
                                 .heads = 128,
                                 .kv_heads = 8,
                                 .head_dim = 128,
                                 .vocab = 128256 };
    struct spec spec;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct manifest m = { .state = { .dtype = "bf16" } }, found;
    struct tensor *tensors;
    struct json_scan_input in;
    char *text;
    size_t size;
    int n;

    cr_assert_eq(spec_parse(&spec, "tp8pp16dp128zero1", &err), TP_OK);
    cr_assert_eq(model_state(&tensors, &n, &model, DTYPE_BF16, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(layout_make(&m.layout, &spec, model.layers, tensors, n, &arena, &err), TP_OK);
    memset(m.save_id, 'a', SAVE_ID_TEXT - 1);
    m.n_shards = spec_world(&spec);
    m.shards = arena_array(&arena, (size_t)m.n_shards, sizeof *m.shards);
    for (int i = 0; i < m.n_shards; i++) {
        m.shards[i] = (struct shard_info){ .rank = i, .size_bytes = 4096, .index_rows = 3 };
        snprintf(m.shards[i].file, sizeof m.shards[i].file, "rank-%05d.h5", i);
        memset(m.shards[i].index_sha256, '1', SHA256_TEXT - 1);
        memset(m.shards[i].meta_sha256, 'e', SHA256_TEXT - 1);
    }
    cr_assert_eq(manifest_format(&text, &size, &m, &err), TP_OK, "%s", err.msg);
    in = json_scan_input_text(text, size, "manifest.json");
    cr_assert_eq(manifest_parse(&found, &in, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(found.n_shards, 16384);
    cr_expect_eq(found.layout.n_tensors, n);
    cr_expect_eq(found.shards[16383].rank, 16383);
    cr_expect_gt(size, 5 << 20, "the text is read in several windows");
    free(text);
    arena_free(&arena);
}

/* It is only written when it is not 0, so that other files stay as they were. */
Test(manifest, the_age_of_the_moments_is_optional)
{
    struct rng r = rng_start("manifest/optimizer_start");
    struct example x = make_example(&r);
    struct tp_err err = { 0 };
    struct manifest m;
    struct json_scan_input in;
    char *text, *wrong;
    size_t size;

    cr_assert_null(strstr(x.text, "optimizer_start"));
    x.m.step = x.m.state.step = 40;
    x.m.state.optimizer_start = 39;
    cr_assert_eq(manifest_format(&text, &size, &x.m, &err), TP_OK, "%s", err.msg);
    in = json_scan_input_text(text, size, "m");
    cr_assert_eq(manifest_parse(&m, &in, &x.arena, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(m.state.optimizer_start, 39);
    *strstr(strstr(text, "optimizer_start"), "39") = '4'; /* 49, after the step */
    wrong = sign(text, size - TAIL, &size);
    cr_assert_eq(parse(wrong, size, &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "optimizer_start"), "%s", err.msg);
    free(wrong);
    free(text);
    free_example(&x);
}

Test(manifest, every_changed_byte_and_every_truncation_is_refused, .timeout = 300)
{
    struct rng r = rng_start("manifest/bytes");
    struct example x = make_example(&r);
    struct tp_err err = { 0 };
    size_t step =
        x.size > 20000 ? 3 : 1; /* a long text is hashed for every third byte only, to save time */

    for (size_t i = 0; i < x.size; i++) {
        char c = x.text[i];

        if (i % step && i + 2 * TAIL < x.size)
            continue;
        x.text[i] ^= (char)(1 << rng_int(&r, 0, 7));
        cr_assert_eq(parse(x.text, x.size, &err), TP_E_CORRUPT, "byte %zu", i);
        x.text[i] = c;
        cr_assert_eq(parse(x.text, i, &err), TP_E_CORRUPT, "cut to %zu", i);
    }
    free_example(&x);
}

/* Random changes with the right checksum are refused or harmless, and none causes a crash. */
Test(manifest, random_changes_with_the_right_checksum_never_crash, .timeout = 300)
{
    struct rng r = rng_start("manifest/signed damage");
    static const char alphabet[] = "0123456789-+eE.,:[]{}\"\\ntrufalse/@\n\t\x01\x80\xff ";

    for (int round = 0; round < 3000; round++) {
        struct example x = make_example(&r);
        size_t n = x.size - TAIL, size;
        char *text;
        struct tp_err err = { 0 };

        for (int k = 0; k <= round % 4; k++) {
            size_t at = (size_t)rng_int(&r, 0, (int64_t)n - 1);
            size_t many = (size_t)rng_int(&r, 1, 20);

            if (round % 3 == 0 && at + many < n) { /* leave bytes out */
                memmove(x.text + at, x.text + at + many, n - at - many);
                n -= many;
            } else {
                x.text[at] = alphabet[rng_int(&r, 0, sizeof alphabet - 2)];
            }
        }
        text = sign(x.text, n, &size);
        if (parse(text, size, &err))
            cr_assert(err.status == TP_E_CORRUPT && err.msg[0]);
        free(text);
        free_example(&x);
    }
}

/* Replace text in the example and correct its checksum. The error must contain this word. */
static void refuse(const struct example *x, const char *from, const char *to, const char *word)
{
    const char *at = strstr(x->text, from);
    size_t n = x->size - TAIL, size;
    char *body = malloc(n + strlen(to) + 1), *text;
    struct tp_err err = { 0 };
    size_t head;

    cr_assert_not_null(at, "%s", from);
    head = (size_t)(at - x->text);
    memcpy(body, x->text, head);
    memcpy(body + head, to, strlen(to));
    memcpy(body + head + strlen(to), at + strlen(from), n - head - strlen(from));
    text = sign(body, n + strlen(to) - strlen(from), &size);
    cr_expect_eq(parse(text, size, &err), TP_E_CORRUPT, "%s", to);
    cr_expect(strstr(err.msg, word), "'%s' does not contain '%s'", err.msg, word);
    free(body);
    free(text);
}

Test(manifest, false_members_are_refused_by_name)
{
    struct rng r = rng_start("manifest/false members");
    struct model model = random_model(&r);
    struct example x;

    while (model.family != MODEL_LLAMA) /* its tensors are named below */
        model = random_model(&r);
    x = make_example_of(&r, model);

    refuse(&x, "\"version\": 2", "\"version\": 4", "version 4");
    refuse(&x, "\"version\": 2", "\"version\": 99999999", "version 99999999");
    refuse(&x, "\"version\": 2", "\"version\": \"2\"", "version");
    refuse(&x, "\"format\": \"tp-ckpt\"", "\"format\": \"gguf\"", "gguf");
    refuse(&x, "\"step\": ", "\"step\": -", "step");
    refuse(&x, "\"train\": {\"step\": ", "\"train\": {\"step\": 3, \"other\": ", "step is 3");
    refuse(&x, "\"epoch\": ", "\"epoch\": 1, \"epoch\": ", "JSON");
    refuse(&x, "rank-00000.h5", "../../rank-00000.h5", "rank-00000.h5");
    refuse(&x, "rank-00000.h5", "/etc/passwd", "rank-00000.h5");
    refuse(&x, "\"index_rows\": 3", "\"index_rows\": 9223372036854775807", "index_rows");
    refuse(&x, "\"size_bytes\": 4096", "\"size_bytes\": 99999999999999999999", "JSON");
    refuse(&x, "\"dtype\": \"bf16\", \"shape\"", "\"dtype\": \"int3\", \"shape\"", "int3");
    refuse(&x, "\"shape\": [", "\"shape\": [4611686018427387904, ", "elements");
    refuse(&x, "\"shape\": [", "\"shape\": [0, 3037000500, 3037000500, ", "elements");
    refuse(&x, "\"shape\": [", "\"shape\": [-1, ", "size");
    refuse(&x, "\"shape\": [", "\"shape\": [1, 1, 1, 1, 1, 1, 1, ", "shape");
    refuse(&x, "\"name\": \"model.embed_tokens.weight\"", "\"name\": \"a/b\"", "a/b");
    refuse(&x, "\"name\": \"model.embed_tokens.weight\"", "\"name\": \".\"", "HDF5");
    refuse(&x, "\"name\": \"model.embed_tokens.weight\"",
           "\"name\": \"model.layers.0.input_layernorm.weight\"", "twice");
    refuse(&x, "\"spec\": \"", "\"spec\": \"tp0", "layout");
    refuse(&x, "\"seed\": \"18446744073709551615\"", "\"seed\": \"18446744073709551616\"", "seed");
    refuse(&x, "\"group\": \"param\"", "\"group\": \"index\"", "index");
    free_example(&x);
}

Test(manifest, a_member_that_readers_refuse_is_not_written)
{
    struct rng r = rng_start("manifest/large member");
    struct example x = make_example(&r);
    struct tp_err err = { 0 };
    char *text, *config = calloc(1, JSON_VALUE_BYTES_MAX / 2 + 1);
    size_t size;

    memset(config, '\n', JSON_VALUE_BYTES_MAX / 2); /* each takes two bytes in a JSON string */
    x.m.model_config = config;
    cr_expect_eq(manifest_format(&text, &size, &x.m, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "model_config"), "%s", err.msg);
    config[JSON_VALUE_BYTES_MAX / 2 - 1] = 0; /* with the quotes it fits */
    cr_assert_eq(manifest_format(&text, &size, &x.m, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(parse(text, size, &err), TP_OK, "%s", err.msg);
    free(text);
    free(config);
    free_example(&x);
}

Test(manifest, names_that_hdf5_cannot_hold_are_refused_when_writing)
{
    struct rng r = rng_start("manifest/names");
    struct example x = make_example(&r);
    const char *bad[] = { "", ".", "a/b", "a@1", "a\nb", "\xff\xfe", "\xc0\xaf", "\xed\xa0\x80" };
    char *text;
    size_t size;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tp_err err = { 0 };

        x.m.layout.tensors[0].name = bad[i];
        cr_expect_eq(manifest_format(&text, &size, &x.m, &err), TP_E_USAGE, "name %zu", i);
    }
    free_example(&x);
}
