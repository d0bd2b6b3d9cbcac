/* ckpt/hash.c - see ckpt/hash.h. */
#include "ckpt/hash.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct hash {
    EVP_MD_CTX *ctx;
};

tp_status hash_new(struct hash **out, struct tp_err *err)
{
    struct hash *h = calloc(1, sizeof *h);

    if (h)
        h->ctx = EVP_MD_CTX_new();
    if (!h || !h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        if (h)
            EVP_MD_CTX_free(h->ctx);
        free(h);
        return tp_fail(err, TP_E_NOMEM, "no memory for SHA-256");
    }
    *out = h;
    return TP_OK;
}

void hash_add(struct hash *h, const void *data, size_t n)
{
    EVP_DigestUpdate(h->ctx, data, n);
}

void hash_text(struct hash *h, char out[HASH_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    EVP_DigestFinal_ex(h->ctx, sum, &n);
    for (unsigned i = 0; i < 32; i++) {
        out[2 * i] = i < n ? digits[sum[i] >> 4] : '?';
        out[2 * i + 1] = i < n ? digits[sum[i] & 15] : '?';
    }
    out[HASH_TEXT - 1] = 0;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

tp_status hash_bytes(char out[HASH_TEXT], const void *data, size_t n, struct tp_err *err)
{
    struct hash *h = NULL;
    tp_status st = hash_new(&h, err);

    if (st)
        return st;
    hash_add(h, data, n);
    hash_text(h, out);
    return TP_OK;
}
