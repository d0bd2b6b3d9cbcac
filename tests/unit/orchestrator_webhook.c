/* tests/unit/orchestrator_webhook.c - a receiver that does not answer: what waits, and what is
 * lost.
 */
#include "orchestrator/web/webhook.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Listen without ever answering. Returns the socket. */
static int listen_silently(char *url, size_t size)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, 8) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    snprintf(url, size, "http://127.0.0.1:%d/", ntohs(a.sin_port));
    return fd;
}

Test(webhook, what_does_not_fit_into_the_queue_is_reported, .timeout = 60)
{
    enum { QUEUE = 32, EVENTS = 40 };
    struct webhook *w;
    struct tp_err err = { 0 };
    json_t *event = json_pack("{s:s}", "event", "failed");
    char url[64], text[400];
    int fd = listen_silently(url, sizeof url), lost = 0;

    cr_assert_eq(webhook_open(&w, url, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < QUEUE; i++)
        webhook_post(w, event);
    cr_expect_not(webhook_failed(text, sizeof text, &lost, w), "all wait");
    webhook_post(w, event);
    cr_expect(webhook_failed(text, sizeof text, &lost, w), "the first one is reported at once");
    cr_expect_eq(lost, 1);
    cr_expect_str_eq(text, "127.0.0.1: it is too slow: 32 events wait to be sent");
    for (int i = QUEUE + 1; i < EVENTS; i++)
        webhook_post(w, event);
    cr_expect_not(webhook_failed(text, sizeof text, &lost, w), "the others later");
    webhook_wait(w, 0);
    cr_expect(webhook_failed(text, sizeof text, &lost, w));
    cr_expect_eq(lost, EVENTS - 1);
    cr_expect_not(webhook_failed(text, sizeof text, &lost, w));
    webhook_close(w);
    json_decref(event);
    close(fd);
}
