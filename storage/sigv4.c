/* storage/sigv4.c - see storage/sigv4.h. */
#include "storage/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HASH_BYTES = 32, SIGNED_NAMES_MAX = 512, SCOPE_MAX = 128 };

static const char algorithm[] = "AWS4-HMAC-SHA256";

void sigv4_date(char out[SIGV4_DATE], time_t now)
{
    struct tm tm;

    if (!gmtime_r(&now, &tm) || !strftime(out, SIGV4_DATE, "%Y%m%dT%H%M%SZ", &tm))
        snprintf(out, SIGV4_DATE, "19700101T000000Z");
}

static void as_text(char out[SIGV4_HASH], const unsigned char hash[HASH_BYTES])
{
    for (int i = 0; i < HASH_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

tp_status sigv4_hash(char out[SIGV4_HASH], const void *data, size_t n, struct tp_err *err)
{
    unsigned char hash[HASH_BYTES];

    if (EVP_Digest(data, n, hash, NULL, EVP_sha256(), NULL) != 1)
        return tp_fail(err, TP_E_NOMEM, "no memory for SHA-256");
    as_text(out, hash);
    return TP_OK;
}

static bool hmac(unsigned char out[HASH_BYTES], const unsigned char *key, size_t key_bytes,
                 const char *text)
{
    return HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text), out,
                NULL) != NULL;
}

/* The names of the signed headers: "host;x-amz-date". */
static void signed_names(char out[SIGNED_NAMES_MAX], const struct sigv4_request *r)
{
    size_t n = 0;

    out[0] = 0;
    for (int i = 0; i < r->n_headers && n < SIGNED_NAMES_MAX; i++)
        n += (size_t)snprintf(out + n, SIGNED_NAMES_MAX - n, "%s%.*s", i ? ";" : "",
                              (int)strcspn(r->headers[i], ":"), r->headers[i]);
}

/* "name=" and "name" are the same parameter; the canonical form has the sign. */
static void put_query(FILE *f, const char *query)
{
    while (*query) {
        const size_t n = strcspn(query, "&");

        fprintf(f, "%.*s%s", (int)n, query, memchr(query, '=', n) ? "" : "=");
        query += n;
        if (*query == '&')
            fputc(*query++, f);
    }
}

/* The hash of the canonical form of a request. */
static tp_status hash_request(char out[SIGV4_HASH], const struct sigv4_request *r,
                              const char *names, struct tp_err *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    tp_status st;

    if (!f)
        return tp_fail(err, TP_E_NOMEM, "no memory to sign a request");
    fprintf(f, "%s\n%s\n", r->method, r->path);
    put_query(f, r->query);
    fputc('\n', f);
    for (int i = 0; i < r->n_headers; i++) {
        const char *value = strchr(r->headers[i], ':');

        fprintf(f, "%.*s:%s\n", (int)strcspn(r->headers[i], ":"), r->headers[i],
                value ? value + 1 + strspn(value + 1, " ") : "");
    }
    fprintf(f, "\n%s\n%s", names, r->payload_sha256);
    if (fclose(f) != 0) {
        free(text);
        return tp_fail(err, TP_E_NOMEM, "no memory to sign a request");
    }
    st = sigv4_hash(out, text, size, err);
    free(text);
    return st;
}

/* The key of a day, a region and a service, derived from the secret. */
static bool derive_key(unsigned char key[HASH_BYTES], const struct sigv4_credentials *c,
                       const char *day)
{
    char secret[sizeof c->secret_key + 4];
    bool ok;

    snprintf(secret, sizeof secret, "AWS4%s", c->secret_key);
    ok = hmac(key, (const unsigned char *)secret, strlen(secret), day) &&
         hmac(key, key, HASH_BYTES, c->region) && hmac(key, key, HASH_BYTES, "s3") &&
         hmac(key, key, HASH_BYTES, "aws4_request");
    explicit_bzero(secret, sizeof secret);
    return ok;
}

tp_status sigv4_sign(char out[SIGV4_AUTHORIZATION_MAX], const struct sigv4_request *request,
                     const struct sigv4_credentials *credentials, const char *date,
                     struct tp_err *err)
{
    char names[SIGNED_NAMES_MAX], hash[SIGV4_HASH], day[9], scope[SCOPE_MAX], text[512];
    unsigned char key[HASH_BYTES], signature[HASH_BYTES];
    bool ok;
    tp_status st;

    signed_names(names, request);
    if ((st = hash_request(hash, request, names, err)))
        return st;
    snprintf(day, sizeof day, "%.8s", date);
    snprintf(scope, sizeof scope, "%s/%s/s3/aws4_request", day, credentials->region);
    snprintf(text, sizeof text, "%s\n%s\n%s\n%s", algorithm, date, scope, hash);
    ok = derive_key(key, credentials, day) && hmac(signature, key, sizeof key, text);
    explicit_bzero(key, sizeof key);
    if (!ok)
        return tp_fail(err, TP_E_NOMEM, "no memory to sign a request");
    as_text(hash, signature);
    if (snprintf(out, SIGV4_AUTHORIZATION_MAX, "%s Credential=%s/%s,SignedHeaders=%s,Signature=%s",
                 algorithm, credentials->access_key, scope, names, hash) >= SIGV4_AUTHORIZATION_MAX)
        return tp_fail(err, TP_E_INTERNAL, "a signed request has too many headers");
    return TP_OK;
}
