/* trainer/data/dataset.c - see trainer/data/dataset.h. */
#include "trainer/data/dataset.h"

/* Tokens that are looked at before the run begins: a fraction of a second. */
static const int64_t CHECKED_AT_OPEN = INT64_C(1) << 26;

static tp_status fail_token(const struct dataset *d, int64_t at, struct tp_err *err)
{
    int64_t token = token_file_at(&d->tokens, at);

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

static tp_status check_tokens(const struct dataset *d, struct tp_err *err)
{
    int64_t n = d->tokens.n < CHECKED_AT_OPEN ? d->tokens.n : CHECKED_AT_OPEN;

    if (d->tokens.type == TOKEN_U8 && d->vocab >= 256)
        return TP_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t token = token_file_at(&d->tokens, i);

        if (token < 0 || token >= d->vocab)
            return fail_token(d, i, err);
    }
    return TP_OK;
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

tp_status dataset_fetch(const struct dataset *d, int64_t first, int64_t n,
                        const struct zigzag *part, int32_t *ids, int32_t *targets,
                        struct tp_err *err)
{
    const struct zigzag whole = { .seq = d->seq, .n = 1 };
    int64_t each, run;

    part = part ? part : &whole;
    each = zigzag_tokens(part);
    for (int64_t i = 0; i < n * each; i += run) {
        int64_t sample = (first + i / each) % d->samples, bad;
        int64_t at = sample * d->seq + zigzag_position(part, i % each, &run);

        bad = token_file_read(&d->tokens, at, run, d->vocab, ids + i);
        if (bad < 0)
            bad = token_file_read(&d->tokens, at + 1, run, d->vocab, targets + i);
        if (bad >= 0)
            return fail_token(d, bad, err);
    }
    return TP_OK;
}

void dataset_fetch_ids(const struct dataset *d, int64_t first, int64_t n, int64_t *ids)
{
    for (int64_t i = 0; i < n * d->seq; i++)
        ids[i] = token_file_at(&d->tokens, (first + i / d->seq) % d->samples * d->seq + i % d->seq);
}
