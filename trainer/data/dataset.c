/* trainer/data/dataset.c - see trainer/data/dataset.h. */
#include "trainer/data/dataset.h"

#include <stddef.h>

/* Tokens that are looked at before the run begins: a fraction of a second. */
static const int64_t CHECKED_AT_OPEN = INT64_C(1) << 26;

static tp_status fail_token(const struct dataset *d, int64_t at, int64_t token, struct tp_err *err)
{
    if (d->tokens.is_bytes)
        return tp_fail(err, TP_E_USAGE,
                       "%s: byte %lld at offset %lld is not a token: the model's vocabulary is "
                       "%lld (bytes need 256)",
                       d->path, (long long)token, (long long)at, (long long)d->vocab);
    return tp_fail(err, TP_E_USAGE,
                   "%s: token %lld at position %lld is not in the model's vocabulary of %lld: it "
                   "was tokenized for another model",
                   d->path, (long long)token, (long long)at, (long long)d->vocab);
}

/* Bytes for a vocabulary of words are a mistake, unless they are asked for: nothing would fail, and
 * the model would learn to write letters. */
static tp_status check_kind(const struct dataset *d, struct tp_err *err)
{
    if (!d->tokens.is_bytes || d->tokens.asked || d->vocab <= DATASET_BYTES_VOCAB_MAX)
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s: is read as raw bytes, each a token from 0 to 255, but the model's vocabulary has %lld "
        "tokens; tokenize it with Megatron-LM's tools/preprocess_data.py and give the prefix of "
        "its .bin and .idx files, or give bytes:%s to train on bytes",
        d->path, (long long)d->vocab, d->path);
}

enum { READ_MAX = 4096 };

/* Tokens at .. at + n - 1, which must be in the vocabulary; n is at most READ_MAX + 1. */
static tp_status read_tokens(const struct dataset *d, int64_t at, int64_t n, int64_t *tokens,
                             struct tp_err *err)
{
    tp_status st = token_file_read(&d->tokens, at, n, tokens, err);

    for (int64_t k = 0; k < n && !st; k++)
        if (tokens[k] < 0 || tokens[k] >= d->vocab || tokens[k] > INT32_MAX)
            st = fail_token(d, at + k, tokens[k], err);
    return st;
}

static tp_status check_tokens(const struct dataset *d, struct tp_err *err)
{
    int64_t n = d->tokens.n < CHECKED_AT_OPEN ? d->tokens.n : CHECKED_AT_OPEN;
    int64_t tokens[READ_MAX];
    tp_status st = TP_OK;

    if (d->tokens.type == TOKEN_U8 && d->vocab >= 256)
        return TP_OK;
    for (int64_t i = 0; i < n && !st; i += READ_MAX)
        st = read_tokens(d, i, n - i < READ_MAX ? n - i : READ_MAX, tokens, err);
    return st;
}

tp_status dataset_open(struct dataset *d, const char *path, int64_t seq, int64_t vocab,
                       struct tp_err *err)
{
    struct dataset new = { .path = token_file_path(path), .seq = seq, .vocab = vocab };
    tp_status st = token_file_open(&new.tokens, path, err);

    if (st)
        return tp_fail_in(err, "--data");
    if (new.tokens.n < seq + 1)
        st = tp_fail(
            err, TP_E_USAGE,
            "%s: %lld %s are too few: one sequence of --seq %lld tokens and its target need %lld",
            new.path, (long long)new.tokens.n, new.tokens.is_bytes ? "bytes" : "tokens",
            (long long)seq, (long long)(seq + 1));
    if (!st)
        st = check_kind(&new, err);
    if (!st)
        st = check_tokens(&new, err);
    if (st) {
        dataset_close(&new);
        return st;
    }
    new.samples = (new.tokens.n - 1) / seq;
    *d = new;
    return TP_OK;
}

void dataset_close(struct dataset *d)
{
    token_file_close(&d->tokens);
    *d = (struct dataset){ 0 };
}

/* The target of a token is the next one, so both come from one read of one token more. */
tp_status dataset_fetch(const struct dataset *d, int64_t first, int64_t n,
                        const struct zigzag *part, int32_t *ids, int32_t *targets,
                        struct tp_err *err)
{
    const struct zigzag whole = { .seq = d->seq, .n = 1 };
    int64_t tokens[READ_MAX + 1], each, run;

    part = part ? part : &whole;
    each = zigzag_tokens(part);
    for (int64_t i = 0; i < n * each; i += run) {
        int64_t sample = (first + i / each) % d->samples;
        int64_t at = sample * d->seq + zigzag_position(part, i % each, &run);
        tp_status st;

        run = run < READ_MAX ? run : READ_MAX;
        if ((st = read_tokens(d, at, run + 1, tokens, err)))
            return st;
        for (int64_t k = 0; k < run; k++) {
            ids[i + k] = (int32_t)tokens[k];
            targets[i + k] = (int32_t)tokens[k + 1];
        }
    }
    return TP_OK;
}

tp_status dataset_fetch_ids(const struct dataset *d, int64_t first, int64_t n, int64_t *ids,
                            struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < n && !st; i++)
        st = token_file_read(&d->tokens, (first + i) % d->samples * d->seq, d->seq,
                             ids + i * d->seq, err);
    return st;
}
