/* tests/unit/storage_http_reply.c - headers of a server's reply, and what is none. */
#include "storage/http_reply.h"

#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

static struct http_reply reply;

static void setup(void)
{
    http_reply_begin(&reply);
}

TestSuite(http_reply, .init = setup);

static void header(const char *line)
{
    http_reply_header(&reply, line, strlen(line));
}

static void expect_range(const char *value, int64_t first, int64_t last, int64_t total)
{
    char line[300] = "Content-Range: ";

    http_reply_begin(&reply);
    header(strcat(strcat(line, value), "\r\n"));
    cr_expect(reply.first == first && reply.last == last && reply.total == total,
              "%s: %lld to %lld of %lld", value, (long long)reply.first, (long long)reply.last,
              (long long)reply.total);
}

Test(http_reply, a_range_is_read)
{
    expect_range("bytes 0-9/100", 0, 9, 100);
    expect_range("bytes 9-9/10", 9, 9, 10);
    expect_range("bytes 5-7/*", 5, 7, -1);
    expect_range("bytes */100", -1, -1, 100);
    expect_range("bytes 0-9223372036854775797/9223372036854775798", 0, INT64_MAX - 10,
                 INT64_MAX - 9);
}

Test(http_reply, a_range_that_contradicts_itself_is_none)
{
    const char *const wrong[] = { "bytes 9-0/100",
                                  "bytes 0-9/9",
                                  "bytes -5-9/100",
                                  "bytes 5--3/100",
                                  "bytes +1-9/100",
                                  "bytes 0-9/-1",
                                  "bytes 0-9",
                                  "bytes 0-9/",
                                  "bytes 0- 9/100",
                                  "items 0-9/100",
                                  "bytes 0-99999999999999999999/100",
                                  "bytes 0-9/99999999999999999999",
                                  "" };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_range(wrong[i], -1, -1, -1);
}

Test(http_reply, seconds_and_dates_to_wait_for_are_read_and_negative_and_past_ones_are_not)
{
    const time_t soon = time(NULL) + 100;
    char line[80];

    header("Retry-After: 7\r\n");
    cr_expect_eq(reply.retry_after_s, 7);
    header("retry-after: -1\r\n");
    cr_expect_eq(reply.retry_after_s, 0);
    strftime(line, sizeof line, "Retry-After: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime(&soon));
    header(line);
    cr_expect(reply.retry_after_s > 90 && reply.retry_after_s <= 100, "%g", reply.retry_after_s);
    header("Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    cr_expect_eq(reply.retry_after_s, 0);
    header("Retry-After: soon\r\n");
    cr_expect_eq(reply.retry_after_s, 0);
    header("Retry-After: 99999999999999999999\r\n");
    cr_expect_eq(reply.retry_after_s, 0);
}

Test(http_reply, advice_depends_on_the_code_then_on_the_status)
{
    reply.status = 403;
    cr_expect(strstr(http_reply_advice(&reply, "ExpiredToken"), "get new ones") != NULL);
    cr_expect(http_reply_refuses_keys("ExpiredToken"));
    cr_expect(http_reply_refuses_keys("ExpiredTokenException"));
    cr_expect_not(http_reply_refuses_keys("AccessDenied"));
    cr_expect_not(http_reply_refuses_keys(""));
    cr_expect(strstr(http_reply_advice(&reply, "AccessDenied"), "may do this") != NULL);
    reply.status = 400;
    cr_expect_str_eq(http_reply_advice(&reply, "Unheard"), "");
}

Test(http_reply, texts_are_taken_only_if_they_may_be_sent_again)
{
    char line[HTTP_VALUE_MAX + 20];

    header("ETag:  \"a b\" \r\n");
    cr_expect_str_eq(reply.etag, "\"a b\"");
    header("ETag: \"\x1b[2J\"\r\n");
    header("ETag: \"\xc3\xa9\"\r\n");
    memset(line, 'x', sizeof line);
    memcpy(line, "etag: ", 6);
    http_reply_header(&reply, line, sizeof line);
    http_reply_header(&reply, "etag", 4);
    header("x-etag: y\r\n");
    cr_expect_str_eq(reply.etag, "\"a b\"");
    header("X-Amz-Bucket-Region: eu-west-1\n");
    cr_expect_str_eq(reply.region, "eu-west-1");
}

Test(http_reply, a_redirect_forgets_the_headers_before_it)
{
    header("ETag: \"a\"\r\n");
    header("Content-Range: bytes 0-1/2\r\n");
    header("Retry-After: 3\r\n");
    header("HTTP/1.1 206 Partial Content\r\n");
    cr_expect(!reply.etag[0] && reply.first == -1 && reply.total == -1 && reply.retry_after_s == 0);
}

Test(http_reply, an_error_code_has_letters_and_digits)
{
    char code[HTTP_CODE_MAX];

    cr_expect_str_eq(http_reply_code(code, "<Error><Code>NoSuchKey</Code></Error>"), "NoSuchKey");
    cr_expect_str_eq(http_reply_code(code, "<Code>\x1b[2J"), "");
    cr_expect_str_eq(http_reply_code(code, "<code>x"), "");
    cr_expect_str_eq(http_reply_code(code, "<Code>"), "");
}
