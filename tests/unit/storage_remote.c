/*
 * tests/unit/storage_remote.c - how long a request is tried on a slow link; see storage/remote.h.
 *
 * The link is a model: the functions of libcurl and the clock are replaced here, so no test waits.
 */
#define CURL_DISABLE_TYPECHECK
#include "storage/remote.h"

#include <criterion/criterion.h>
#include <curl/curl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#undef curl_easy_setopt
#undef curl_easy_getinfo

enum { MIB = 1 << 20 };

/* The clock, and the link. */
static int64_t offset_ns; /* what the model has waited */
static struct {
    double bytes_per_s;
    size_t breaks_at; /* the connection breaks after so many bytes of a body; 0: never */
    int breaks;       /* so many times */
    long status;
    int requests;
} net;

/* One connection. */
struct model_curl {
    curl_xferinfo_callback progress;
    curl_write_callback write;
    void *progress_data, *write_data;
    double limit_s, stall_s;
    curl_off_t up;
};

int clock_gettime(clockid_t id, struct timespec *t)
{
    long rc = syscall(SYS_clock_gettime, id, t);
    int64_t ns = t->tv_sec * INT64_C(1000000000) + t->tv_nsec + offset_ns;

    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
    return (int)rc;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    offset_ns += t->tv_sec * INT64_C(1000000000) + t->tv_nsec;
    return 0;
}

CURL *curl_easy_init(void)
{
    return calloc(1, sizeof(struct model_curl));
}

void curl_easy_cleanup(CURL *curl)
{
    free(curl);
}

void curl_easy_reset(CURL *curl)
{
    memset(curl, 0, sizeof(struct model_curl));
}

CURLcode curl_easy_setopt(CURL *curl, CURLoption option, ...)
{
    struct model_curl *c = curl;
    va_list args;

    va_start(args, option);
    if (option == CURLOPT_TIMEOUT_MS)
        c->limit_s = (double)va_arg(args, long) / 1000;
    else if (option == CURLOPT_LOW_SPEED_TIME)
        c->stall_s = (double)va_arg(args, long);
    else if (option == CURLOPT_POSTFIELDSIZE_LARGE)
        c->up = va_arg(args, curl_off_t);
    else if (option == CURLOPT_XFERINFOFUNCTION)
        c->progress = va_arg(args, curl_xferinfo_callback);
    else if (option == CURLOPT_XFERINFODATA)
        c->progress_data = va_arg(args, void *);
    else if (option == CURLOPT_WRITEFUNCTION)
        c->write = va_arg(args, curl_write_callback);
    else if (option == CURLOPT_WRITEDATA)
        c->write_data = va_arg(args, void *);
    va_end(args);
    return CURLE_OK;
}

CURLcode curl_easy_getinfo(CURL *curl, CURLINFO info, ...)
{
    va_list args;

    (void)curl;
    va_start(args, info);
    if (info == CURLINFO_RESPONSE_CODE)
        *va_arg(args, long *) = net.status;
    va_end(args);
    return CURLE_OK;
}

/* Move a second's bytes at a time, of a body that goes up or of 4 MiB that come down. */
CURLcode curl_easy_perform(CURL *curl)
{
    struct model_curl *c = curl;
    const curl_off_t all = c->up ? c->up : 4 * MIB, step = (curl_off_t)net.bytes_per_s;
    const bool breaks = net.breaks_at && net.requests++ < net.breaks;
    static char zeroes[MIB];
    double passed = 0;

    if (step == 0) {
        offset_ns += (int64_t)(c->stall_s * 1e9);
        return CURLE_OPERATION_TIMEDOUT;
    }
    for (curl_off_t at = 0; at < all; at += step) {
        const curl_off_t n = all - at < step ? all - at : step;

        if (breaks && at > (curl_off_t)net.breaks_at)
            return CURLE_RECV_ERROR;
        if ((passed += 1) > c->limit_s)
            return CURLE_OPERATION_TIMEDOUT;
        offset_ns += 1000000000;
        if (!c->up)
            c->write(zeroes, 1, (size_t)n, c->write_data);
        if (c->progress)
            c->progress(c->progress_data, 0, c->up ? 0 : at + n, 0, c->up ? at + n : 0);
    }
    return CURLE_OK;
}

static char body[5 * MIB];

/* Get 4 MiB, or put 5; *tries is how many requests it took. */
static tp_status transfer(int *tries, const char *method, struct tp_err *err)
{
    const bool is_put = strcmp(method, "PUT") == 0;
    const struct remote_request q = { .method = method,
                                      .path = "http://host/object",
                                      .body = is_put ? body : NULL,
                                      .body_bytes = is_put ? sizeof body : 0,
                                      .into = is_put ? NULL : body,
                                      .room = is_put ? 0 : 4 * MIB,
                                      .status = net.status };
    static struct http_reply reply;
    tp_status st = remote_send(&reply, &q, err);

    *tries = reply.tries;
    return st;
}

static void check(const char *method, int expected_tries)
{
    struct tp_err err = { 0 };
    int tries = 0;

    cr_assert_eq(transfer(&tries, method, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(tries, expected_tries, "%d tries", tries);
}

Test(remote, a_slow_transfer_takes_as_long_as_its_bytes_need)
{
    net.bytes_per_s = 2 * HTTP_SLOWEST_BYTES_PER_S;
    net.status = 206;
    check("GET", 1); /* 35 minutes */
    net.status = 200;
    check("PUT", 1);
}

Test(remote, after_a_slow_transfer_that_breaks_another_is_tried)
{
    net.bytes_per_s = 16000;
    net.breaks_at = 3 * MIB; /* more than three minutes */
    net.breaks = 5;
    net.status = 206;
    check("GET", 6);
    net.requests = 0;
    net.status = 200;
    check("PUT", 6);
}

Test(remote, a_link_on_which_nothing_moves_is_given_up_in_time)
{
    struct tp_err err = { 0 };
    const int64_t begin = offset_ns;
    int tries = 0;

    net.status = 206;
    cr_expect_eq(transfer(&tries, "GET", &err), TP_E_IO);
    /* the last of the tries, of 30 s each, began in time */
    cr_expect(offset_ns - begin <= (REMOTE_TIMEOUT_S + 30) * INT64_C(1000000000), "%lld s",
              (long long)(offset_ns - begin) / 1000000000);
    cr_expect_geq(tries, 3, "%d tries", tries);
}
