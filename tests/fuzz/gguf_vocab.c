/* tests/fuzz/gguf_vocab.c - the files of a tokenizer that an export to GGUF reads. The first byte
 * of the input says which one the rest is, beside a tokenizer.json that is accepted, and how many
 * rows the model has; 255 is a tokenizer.model without a tokenizer.json. What is made is read as a
 * reader of GGUF does: it must be whole. */
#include "reshard/formats/gguf/gguf_vocab.h"
#include "tests/fuzz/fuzz.h"

static const char tokenizer[] =
    "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}";

/* Walks over metadata keys. */
struct gguf_walk {
    const char *at, *end;
};

static uint64_t take_number(struct gguf_walk *w, size_t bytes)
{
    uint64_t x = 0;

    fuzz_must((size_t)(w->end - w->at) >= bytes, "the keys end too early");
    memcpy(&x, w->at, bytes);
    w->at += bytes;
    return x;
}

static void take_string(struct gguf_walk *w)
{
    const uint64_t n = take_number(w, 8);

    fuzz_must((uint64_t)(w->end - w->at) >= n, "a text that is longer than what follows");
    w->at += n;
}

static void take_value(struct gguf_walk *w, uint64_t type, int64_t rows)
{
    uint64_t kind, n;

    if (type != GGUF_VALUE_ARRAY) {
        if (type == GGUF_VALUE_STRING)
            take_string(w);
        else if (type == GGUF_VALUE_BOOL)
            fuzz_must(take_number(w, 1) <= 1, "a flag that is neither 0 nor 1");
        else
            take_number(w, 4);
        return;
    }
    kind = take_number(w, 4);
    n = take_number(w, 8);
    fuzz_must(kind != GGUF_VALUE_I32 || n == (uint64_t)rows, "not a type for each row");
    for (uint64_t i = 0; i < n; i++) {
        const char *value = w->at;

        take_value(w, kind, rows);
        fuzz_must(kind != GGUF_VALUE_I32 || (value[0] >= 1 && value[0] <= 6), "an unknown type");
    }
}

static void walk(const struct gguf_bytes *b, int64_t rows)
{
    struct gguf_walk w = { b->data, b->data + b->n };

    for (int64_t i = 0; i < b->keys; i++) {
        take_string(&w);
        take_value(&w, take_number(&w, 4), rows);
    }
    fuzz_must(w.at == w.end, "bytes after the last key");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json" };
    const uint8_t first = fuzz_take(&data, &size);
    const bool pieces = first == 255;
    const struct model model = { .vocab = pieces ? 300 : 1 + first / 2,
                                 .config = "{\"eos_token_id\":[1]}" };
    const struct export_contents contents = { .assets = fuzz_dir(), .model = &model };
    struct gguf_bytes b = { 0 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    tp_status st;

    fuzz_write(names[1], "{}", 2);
    fuzz_write(names[0], tokenizer, sizeof tokenizer - 1);
    fuzz_write(pieces ? "tokenizer.model" : names[first % 2], data, size);
    if (pieces)
        fuzz_must(unlink(fuzz_path(names[0])) == 0, "the folder cannot be changed");
    st = gguf_vocab_keys(&b, &contents, &arena, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK)
        walk(&b, model.vocab);
    gguf_bytes_free(&b);
    arena_free(&arena);
    return 0;
}
