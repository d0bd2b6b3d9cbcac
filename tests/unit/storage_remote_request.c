/* tests/unit/storage_remote_request.c - where requests to S3 go; see storage/remote_request.h. */
#include "storage/remote_request.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* The URL of an object, with this endpoint and region. */
static void check_url(const char *path, const char *endpoint, const char *region, const char *url)
{
    struct aws_config aws = { .endpoint = "" };
    const struct remote_request q = { .method = "GET", .path = path, .status = 200 };
    static struct remote_request_try t;
    struct tp_err err = { 0 };

    snprintf(aws.endpoint, sizeof aws.endpoint, "%s", endpoint);
    snprintf(aws.credentials.region, sizeof aws.credentials.region, "%s", region);
    cr_assert_eq(remote_request_prepare(&t, &q, &aws, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(t.http.url, url);
}

Test(remote_request, the_bucket_is_in_the_host_where_it_can_be)
{
    check_url("s3://bucket-1/a/b", "", "eu-west-1",
              "https://bucket-1.s3.eu-west-1.amazonaws.com/a/b");
    check_url("s3://with.dots/a", "", "eu-west-1",
              "https://s3.eu-west-1.amazonaws.com/with.dots/a");
    check_url("s3://Old_Bucket/a", "", "us-east-1",
              "https://s3.us-east-1.amazonaws.com/Old_Bucket/a");
    check_url("s3://Capitals/a", "", "us-east-1", "https://s3.us-east-1.amazonaws.com/Capitals/a");
    check_url("s3://end-/a", "", "us-east-1", "https://s3.us-east-1.amazonaws.com/end-/a");
}

Test(remote_request, regions_of_china_have_their_own_domain)
{
    check_url("s3://bucket/a", "", "cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn/a");
    check_url("s3://with.dots/a", "", "cn-northwest-1",
              "https://s3.cn-northwest-1.amazonaws.com.cn/with.dots/a");
}

Test(remote_request, with_an_endpoint_the_bucket_is_in_the_path)
{
    check_url("s3://bucket/a b+%c", "http://127.0.0.1:9000", "cn-north-1",
              "http://127.0.0.1:9000/bucket/a%20b%2B%25c");
}
