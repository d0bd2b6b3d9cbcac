/* tests/unit/storage_location.c - paths: what they name, what is refused, and how they are encoded.
 */
#include "storage/location.h"

#include <criterion/criterion.h>
#include <string.h>

static struct tp_err err;

Test(location, the_scheme_decides)
{
    cr_expect_eq(location_kind("runs/ckpt"), LOCATION_LOCAL);
    cr_expect_eq(location_kind("./s3://b"), LOCATION_LOCAL);
    cr_expect_eq(location_kind("s3:/b"), LOCATION_LOCAL);
    cr_expect_eq(location_kind("s3://b/k"), LOCATION_S3);
    cr_expect_eq(location_kind("http://h/k"), LOCATION_HTTP);
    cr_expect_eq(location_kind("https://h/k"), LOCATION_HTTP);
    cr_expect_not(location_is_remote("/runs"));
}

Test(location, wrong_ones_are_refused_without_repeating_secrets)
{
    static const char *const wrong[] = {
        "s3://",
        "s3:///key",
        "s3://a b/k",
        "s3://a@b/k",
        "http://",
        "https://?x",
        "http://h/a b",
        "http://h/\n",
        "https://h/k?X-Amz-Signature=hidden",
        "https://h/k#hidden",
        "https://user:hidden@h/k",
        "ftp://user:hidden@h/k",
        "gs://bucket/hidden",
        "S3://bucket/hidden",
        "s3:/bucket/hidden",
        "s3:hidden",
        "HTTPS://user:hidden@h/k",
        "https:/h/hidden",
        "FTP://user:hidden@h/k",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_eq(location_check(wrong[i], &err), TP_E_USAGE, "%s", wrong[i]);
        cr_expect_null(strstr(err.msg, "hidden"), "%s", err.msg);
    }
    cr_expect_eq(location_check("/any path?", &err), TP_OK);
    cr_expect_eq(location_check("./s3:/b", &err), TP_OK);
    cr_expect_eq(location_check("s3/b", &err), TP_OK);
    cr_expect_eq(location_check("run:3", &err), TP_OK);
    cr_expect_eq(location_check("s3://my-bucket.x/a?b#c", &err), TP_OK, "%s", err.msg);
    cr_expect_eq(location_check("https://h:8080/a%20b", &err), TP_OK, "%s", err.msg);
    cr_expect_eq(location_check_local("s3://b/k", &err), TP_E_USAGE);
    cr_expect_eq(location_check_local("runs", &err), TP_OK);
}

Test(location, bucket_and_key)
{
    char bucket[LOCATION_BUCKET_MAX];

    cr_expect_str_eq(location_split(bucket, "s3://b/runs/ckpt"), "runs/ckpt");
    cr_expect_str_eq(bucket, "b");
    cr_expect_str_eq(location_split(bucket, "s3://other"), "");
    cr_expect_str_eq(bucket, "other");
}

Test(location, encoding_follows_the_rules_of_signatures)
{
    char out[32] = "x";

    cr_expect(location_encode(out, sizeof out, "a/b c-._~+\xc3\xa9", true));
    cr_expect_str_eq(out, "xa/b%20c-._~%2B%C3%A9");
    out[0] = 0;
    cr_expect(location_encode(out, sizeof out, "a/b", false));
    cr_expect_str_eq(out, "a%2Fb");
    cr_expect_not(location_encode(out, 8, "abcdefgh", false), "no room");
}

Test(location, slashes_at_the_end_of_a_path_are_removed)
{
    static const char *const paths[][2] = { { "s3://bucket/runs//", "s3://bucket/runs" },
                                            { "http://host/a/", "http://host/a" },
                                            { "folder/", "folder" },
                                            { "/", "/" } };
    char out[PATH_MAX], path[PATH_MAX + 1];

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cr_assert_eq(location_clean(out, paths[i][0], &err), TP_OK, "%s", err.msg);
        cr_expect_str_eq(out, paths[i][1]);
    }
    cr_expect_eq(location_clean(out, "", &err), TP_E_USAGE);
    cr_expect_eq(location_clean(out, "s3://", &err), TP_E_USAGE);
    memset(path, 'a', sizeof path - 1);
    path[PATH_MAX] = 0;
    cr_expect_eq(location_clean(out, path, &err), TP_E_USAGE);
}
