/* tests/unit/storage_sigv4.c - signatures: the examples of Amazon's documentation ("Signature
 * Calculations for the Authorization Header", Amazon S3 API Reference). */
#include "storage/sigv4.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define HELLO_SHA256 "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"

static const struct sigv4_credentials credentials = {
    .access_key = "AKIAIOSFODNN7EXAMPLE",
    .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    .region = "us-east-1",
};

static void check(const struct sigv4_request *request, const char *signature)
{
    char authorization[SIGV4_AUTHORIZATION_MAX] = "";
    struct tp_err err = { 0 };

    cr_assert_eq(sigv4_sign(authorization, request, &credentials, "20130524T000000Z", &err), TP_OK,
                 "%s", err.msg);
    cr_expect_not_null(strstr(authorization, signature), "%s", authorization);
    cr_expect_not_null(
        strstr(authorization, "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"),
        "%s", authorization);
    cr_expect_null(strstr(authorization, credentials.secret_key));
}

Test(sigv4, get_of_a_range)
{
    check(&(struct sigv4_request){ .method = "GET",
                                   .path = "/test.txt",
                                   .query = "",
                                   .headers = { "host:examplebucket.s3.amazonaws.com",
                                                "range:bytes=0-9",
                                                "x-amz-content-sha256:" EMPTY_SHA256,
                                                "x-amz-date:20130524T000000Z" },
                                   .n_headers = 4,
                                   .payload_sha256 = EMPTY_SHA256 },
          "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
          "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

Test(sigv4, put_with_a_payload)
{
    char hash[SIGV4_HASH];
    struct tp_err err;

    cr_assert_eq(sigv4_hash(hash, "Welcome to Amazon S3.", 21, &err), TP_OK);
    cr_expect_str_eq(hash, HELLO_SHA256);
    check(&(struct sigv4_request){ .method = "PUT",
                                   .path = "/test%24file.text",
                                   .query = "",
                                   .headers = { "date: Fri, 24 May 2013 00:00:00 GMT",
                                                "host: examplebucket.s3.amazonaws.com",
                                                "x-amz-content-sha256: " HELLO_SHA256,
                                                "x-amz-date: 20130524T000000Z",
                                                "x-amz-storage-class: REDUCED_REDUNDANCY" },
                                   .n_headers = 5,
                                   .payload_sha256 = HELLO_SHA256 },
          "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

Test(sigv4, parameters_of_a_query)
{
    struct sigv4_request r = { .method = "GET",
                               .path = "/",
                               .query = "max-keys=2&prefix=J",
                               .headers = { "host:examplebucket.s3.amazonaws.com",
                                            "x-amz-content-sha256:" EMPTY_SHA256,
                                            "x-amz-date:20130524T000000Z" },
                               .n_headers = 3,
                               .payload_sha256 = EMPTY_SHA256 };

    check(&r, "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    r.query = "lifecycle"; /* a name without a value */
    check(&r, "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

Test(sigv4, dates_are_of_greenwich)
{
    char date[SIGV4_DATE];

    setenv("TZ", "America/New_York", 1);
    sigv4_date(date, 1369353600);
    cr_expect_str_eq(date, "20130524T000000Z");
}
