/* tests/fuzz/http_request.c - requests to the status page. The input is what a client sends. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "orchestrator/web/status_page.h"
#include "tests/fuzz/fuzz.h"

enum { ROUNDS = 8 };

static json_t *some(void *ctx)
{
    (void)ctx;
    return json_pack("{s:s, s:i}", "state", "training", "step", 5);
}

static struct status_page *serving(struct sockaddr_in *to)
{
    static struct status_page *page;
    static int port;
    const struct status_page_source source = { some, some, some, NULL };
    struct tp_err err = { 0 };

    if (!page) {
        fuzz_must(status_page_open(&page, "127.0.0.1:0", NULL, &source, &err) == TP_OK, err.msg);
        port = atoi(strrchr(status_page_url(page), ':') + 1);
    }
    *to = (struct sockaddr_in){ .sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    return page;
}

/* The client's address, 127.1.0.0 and up: a port that the server closed first stays in use for a
 * minute, so the ports of one address would run out. */
static struct sockaddr_in next_client(void)
{
    static uint32_t n;

    return (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(0x7f010000u + n++ % 60000) };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct linger now = { 1, 0 };
    struct sockaddr_in to, from = next_client();
    struct status_page *page = serving(&to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char reply[4096];

    fuzz_must(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0, "cannot bind");
    fuzz_must(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "cannot connect");
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* leaves no port in use */
    if (send(fd, data, size, MSG_NOSIGNAL) >= 0)
        shutdown(fd, SHUT_WR);
    for (int i = 0; i < ROUNDS; i++) {
        status_page_serve(page);
        if (recv(fd, reply, sizeof reply, MSG_DONTWAIT) == 0)
            break;
    }
    close(fd);
    status_page_serve(page);
    return 0;
}
