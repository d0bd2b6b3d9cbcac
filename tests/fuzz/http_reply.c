/* tests/fuzz/http_reply.c - a web server's reply: lines of a head, up to an empty one, and the body
 * of an error. (libcurl finds the lines.) */
#include <ctype.h>

#include "storage/http_reply.h"
#include "tests/fuzz/fuzz.h"

static void check_text(const char *text)
{
    fuzz_must(memchr(text, 0, HTTP_VALUE_MAX) != NULL, "a value without an end");
    for (; *text; text++)
        fuzz_must(isprint((unsigned char)*text), "a value that cannot be sent again");
}

static void check(const struct http_reply *r)
{
    check_text(r->etag);
    check_text(r->region);
    fuzz_must((r->first == -1) == (r->last == -1) && r->first >= -1 && r->first <= r->last,
              "a range without an order");
    fuzz_must(r->total == -1 || r->total > r->last, "a range beyond the end");
    fuzz_must(r->retry_after_s >= 0 && r->retry_after_s < 1e19, "a pause below zero");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_reply reply;
    char code[HTTP_CODE_MAX];
    size_t n = 1;

    http_reply_begin(&reply);
    while (size > 0 && n > 0) {
        const uint8_t *end = memchr(data, '\n', size);
        char *line; /* a block of its own, so that a byte too far is seen */

        n = end ? (size_t)(end - data) + 1 : size;
        line = malloc(n);
        fuzz_must(line != NULL, "no memory");
        memcpy(line, data, n);
        http_reply_header(&reply, line, n);
        free(line);
        check(&reply);
        data += n;
        size -= n;
        if (n == 1)
            break;
    }
    n = size < sizeof reply.text ? size : sizeof reply.text - 1;
    memcpy(reply.text, data, n);
    reply.text[n] = 0;
    http_reply_code(code, reply.text);
    for (const char *c = code; *c; c++)
        fuzz_must(isalnum((unsigned char)*c), "a code of other characters");
    return 0;
}
