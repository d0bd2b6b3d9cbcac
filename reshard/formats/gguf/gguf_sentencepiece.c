/* reshard/formats/gguf/gguf_sentencepiece.c - see reshard/formats/gguf/gguf_sentencepiece.h. */
#include "reshard/formats/gguf/gguf_sentencepiece.h"

#include <stdlib.h>
#include <string.h>

#include "storage/object.h"

enum {
    MODEL_MAX_BYTES = 256 << 20,
    TYPE_BPE = 2, /* TrainerSpec.ModelType; 1, the default, is unigram */
};

/* Scores of tokens that are not pieces, as in llama.cpp's converter. */
static const float ADDED_SCORE = -1000, UNUSED_SCORE = -10000;

/* ---- Protocol Buffers: fields one after the other, each with its number and its kind ---- */

struct message {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number;
    uint64_t value;      /* of a number, or the bits of a float */
    struct message text; /* of a text or a message */
};

enum wire_kind { WIRE_VARINT = 0, WIRE_8_BYTES = 1, WIRE_TEXT = 2, WIRE_4_BYTES = 5 };

static bool read_varint(struct message *m, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        unsigned char byte = *m->at++;

        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool read_fixed(struct message *m, uint64_t *value, int n_bytes)
{
    *value = 0;
    if (m->end - m->at < n_bytes)
        return false;
    for (int i = 0; i < n_bytes; i++)
        *value |= (uint64_t)*m->at++ << (8 * i);
    return true;
}

/* Read the next field of a message that has one. False: it is damaged. */
static bool read_field(struct message *m, struct field *f)
{
    uint64_t key, n;

    *f = (struct field){ 0 };
    if (!read_varint(m, &key))
        return false;
    f->number = key >> 3;
    switch (key & 7) {
    case WIRE_VARINT:
        return read_varint(m, &f->value);
    case WIRE_8_BYTES:
        return read_fixed(m, &f->value, 8);
    case WIRE_4_BYTES:
        return read_fixed(m, &f->value, 4);
    case WIRE_TEXT:
        if (!read_varint(m, &n) || n > (uint64_t)(m->end - m->at))
            return false;
        f->text = (struct message){ m->at, m->at + n };
        m->at += n;
        return true;
    default:
        return false;
    }
}

/* ---- the model ---- */

struct reader {
    struct gguf_tokenizer *out;
    const char *path;
    struct arena *arena;
    int64_t n; /* pieces so far */
    uint64_t type, bos;
};

static tp_status damaged(const struct reader *r, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: is not a SentencePiece model, or is damaged", r->path);
}

static tp_status set_token(const struct reader *r, int64_t i, const char *text, size_t n,
                           enum gguf_token type, float score, struct tp_err *err)
{
    static const char space[] = "\xe2\x96\x81"; /* what stands for a space in a piece */
    struct gguf_tokenizer *t = r->out;
    char *copy, *at;

    if (i < 0 || i >= t->n)
        return tp_fail(err, TP_E_CORRUPT, "%s: token \"%.*s\" is not one of the model's %lld rows",
                       r->path, n < 60 ? (int)n : 60, text, (long long)t->n);
    if (!(copy = arena_array(r->arena, n + 1, 1)))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tokens", r->path);
    memcpy(copy, text, n);
    copy[n] = 0;
    /* llama.cpp looks for these in the text itself */
    for (at = copy; type == GGUF_TOKEN_USER_DEFINED && (at = strstr(at, space));) {
        *at++ = ' ';
        memmove(at, at + 2, strlen(at + 2) + 1);
    }
    t->tokens[i] = copy;
    t->types[i] = (unsigned char)type;
    t->scores[i] = score;
    return TP_OK;
}

/* SentencePiece: 1 piece, 2 score, 3 type, whose numbers are llama.cpp's. */
static tp_status read_piece(struct reader *r, struct message m, struct tp_err *err)
{
    uint64_t type = GGUF_TOKEN_NORMAL;
    struct message text = { 0 };
    uint32_t score_bits = 0; /* of a float */
    float score;
    struct field f;

    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return damaged(r, err);
        if (f.number == 1)
            text = f.text;
        else if (f.number == 2)
            score_bits = (uint32_t)f.value;
        else if (f.number == 3)
            type = f.value;
    }
    if (!text.at || memchr(text.at, 0, (size_t)(text.end - text.at)) || type < GGUF_TOKEN_NORMAL ||
        type > GGUF_TOKEN_BYTE)
        return damaged(r, err);
    memcpy(&score, &score_bits, sizeof score);
    return set_token(r, r->n++, (const char *)text.at, (size_t)(text.end - text.at),
                     (enum gguf_token)type, score, err);
}

/* TrainerSpec: 3 model_type, 41 bos_id. NormalizerSpec: 3 add_dummy_prefix. */
static tp_status read_spec(struct reader *r, struct message m, bool is_trainer, struct tp_err *err)
{
    struct field f;

    while (m.at < m.end) {
        if (!read_field(&m, &f))
            return damaged(r, err);
        if (is_trainer && f.number == 3)
            r->type = f.value;
        else if (is_trainer && f.number == 41)
            r->bos = f.value;
        else if (!is_trainer && f.number == 3)
            r->out->space_prefix = f.value != 0;
    }
    return TP_OK;
}

/* ModelProto: 1 pieces, 2 trainer_spec, 3 normalizer_spec. */
static tp_status read_model(struct reader *r, struct message m, struct tp_err *err)
{
    struct field f;
    tp_status st = TP_OK;

    while (m.at < m.end && !st) {
        if (!read_field(&m, &f))
            return damaged(r, err);
        if (f.number == 1)
            st = read_piece(r, f.text, err);
        else if (f.number == 2 || f.number == 3)
            st = read_spec(r, f.text, f.number == 2, err);
    }
    return !st && r->n == 0 ? damaged(r, err) : st;
}

/* llama.cpp needs a token for each byte. */
static tp_status check_kind(const struct reader *r, struct tp_err *err)
{
    const struct gguf_tokenizer *t = r->out;
    int bytes = 0;

    for (int64_t i = 0; i < t->n; i++)
        bytes += t->types[i] == GGUF_TOKEN_BYTE;
    if (r->type != TYPE_BPE)
        return tp_fail(err, TP_E_USAGE,
                       "%s: is not of type BPE, the only one that can be written to GGUF; put a "
                       "tokenizer.json beside it, which is used instead",
                       r->path);
    if (bytes < 256)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its BPE has no byte_fallback, which llama.cpp's tokenizer needs",
                       r->path);
    return TP_OK;
}

tp_status gguf_sentencepiece_read(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                                  struct arena *arena, struct tp_err *err)
{
    struct reader r = { .out = out, .path = path, .arena = arena, .type = 1, .bos = 1 };
    char *data;
    size_t n;
    tp_status st;

    TP_TRY(gguf_tokenizer_make(out, path, vocab, arena, err));
    out->pre = "default";
    out->space_prefix = true; /* as add_dummy_prefix is by default */
    TP_TRY(object_read_any(&data, &n, path, MODEL_MAX_BYTES, arena, err));
    TP_TRY(read_model(
        &r, (struct message){ (const unsigned char *)data, (const unsigned char *)data + n }, err));
    TP_TRY(check_kind(&r, err));
    out->first = r.bos < (uint64_t)r.n ? (int64_t)r.bos : -1; /* no token has the number -1 */
    for (int64_t i = 0; i < out->n; i++)
        if (!out->tokens[i]) {
            out->types[i] = GGUF_TOKEN_UNUSED;
            out->scores[i] = UNUSED_SCORE;
        }
done:
    return st;
}

/* ---- tokens beside the file ---- */

static tp_status add_token(const struct reader *r, int64_t i, const char *text, bool special,
                           struct tp_err *err)
{
    struct gguf_tokenizer *t = r->out;

    if (!text)
        return tp_fail(err, TP_E_CORRUPT, "%s: an added token has no content", r->path);
    if (gguf_tokenizer_is_beyond(t, i, text, r->arena))
        return TP_OK;
    /* a piece keeps its score and type, such as <unk> */
    if (i >= 0 && i < t->n && t->tokens[i] && strcmp(t->tokens[i], text) == 0 &&
        t->types[i] != GGUF_TOKEN_NORMAL)
        return TP_OK;
    return set_token(r, i, text, strlen(text),
                     special ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_USER_DEFINED, ADDED_SCORE, err);
}

tp_status gguf_sentencepiece_add(struct gguf_tokenizer *t, const char *path, json_t *added,
                                 json_t *decoder, struct arena *arena, struct tp_err *err)
{
    const struct reader r = { .out = t, .path = path, .arena = arena };
    const char *key;
    json_t *value;
    tp_status st = TP_OK;

    json_object_foreach(added, key, value) TP_TRY(
        add_token(&r, json_is_integer(value) ? json_integer_value(value) : -1, key, false, err));
    json_object_foreach(decoder, key, value)
    {
        char *end;
        long long number = strtoll(key, &end, 10);

        TP_TRY(add_token(&r, *key && !*end ? number : -1,
                         json_string_value(json_object_get(value, "content")),
                         json_is_true(json_object_get(value, "special")), err));
    }
done:
    return st;
}
