/* tests/fuzz/http_request.c - requests to the status page. The input is what a client sends. */
#include <sys/socket.h>

#include "orchestrator/web/status_page.h"
#include "tests/fuzz/fuzz.h"

enum { ROUNDS = 8 };

static json_t *some(void *ctx)
{
    (void)ctx;
    return json_pack("{s:s, s:i}", "state", "training", "step", 5);
}

static struct status_page *serving(void)
{
    static struct status_page *page;
    const struct status_page_source source = { some, some, some, NULL };
    struct tp_err err = { 0 };

    if (!page)
        fuzz_must(status_page_open(&page, "127.0.0.1:0", NULL, &source, &err) == TP_OK, err.msg);
    return page;
}

/* The clients are socket pairs: ten thousand TCP connections a second use up the ports. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct status_page *page = serving();
    struct tp_err err = { 0 };
    char reply[4096];
    int fd[2];

    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0,
              "no socket pair");
    fuzz_must(status_page_add(page, fd[1], &err) == TP_OK, err.msg);
    if (send(fd[0], data, size, MSG_NOSIGNAL) >= 0)
        shutdown(fd[0], SHUT_WR);
    for (int i = 0; i < ROUNDS; i++) {
        status_page_serve(page);
        if (recv(fd[0], reply, sizeof reply, MSG_DONTWAIT) == 0)
            break;
    }
    close(fd[0]);
    status_page_serve(page);
    return 0;
}
