/* ckpt/sha256.c - see ckpt/sha256.h. */
#include "ckpt/sha256.h"

#include <openssl/evp.h>
#include <stdint.h>
#include <stdlib.h>

#include "storage/object.h"

struct sha256 {
    EVP_MD_CTX *ctx;
};

tp_status sha256_new(struct sha256 **out, struct tp_err *err)
{
    struct sha256 *h = calloc(1, sizeof *h);

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

void sha256_add(struct sha256 *h, const void *data, size_t n)
{
    EVP_DigestUpdate(h->ctx, data, n);
}

void sha256_end(struct sha256 *h, char out[SHA256_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    EVP_DigestFinal_ex(h->ctx, sum, &n);
    for (unsigned i = 0; i < 32; i++) {
        out[2 * i] = i < n ? digits[sum[i] >> 4] : '?';
        out[2 * i + 1] = i < n ? digits[sum[i] & 15] : '?';
    }
    out[SHA256_TEXT - 1] = 0;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

tp_status sha256_of(char out[SHA256_TEXT], const void *data, size_t n, struct tp_err *err)
{
    struct sha256 *h = NULL;
    tp_status st = sha256_new(&h, err);

    if (st)
        return st;
    sha256_add(h, data, n);
    sha256_end(h, out);
    return TP_OK;
}

tp_status sha256_file(char out[SHA256_TEXT], const char *path, struct tp_err *err)
{
    char part[16384];
    struct sha256 *h = NULL;
    struct object object;
    int64_t size = 0;
    tp_status st = object_open(&object, &size, path, err);

    if (st)
        return st;
    if (!(st = sha256_new(&h, err))) {
        for (int64_t at = 0; at < size && !st; at += (int64_t)sizeof part) {
            size_t n = size - at < (int64_t)sizeof part ? (size_t)(size - at) : sizeof part;

            st = object_read_at(&object, path, at, part, n, err);
            sha256_add(h, part, st ? 0 : n);
        }
        sha256_end(h, out);
    }
    object_close(&object);
    return st;
}
