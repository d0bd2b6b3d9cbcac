/* orchestrator/process/relay_message.c - see orchestrator/process/relay_message.h. */
#include "orchestrator/process/relay_message.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"

enum { PORT_TEXT = 16, PORT_MAX = 65535 };

int relay_listen(int *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

bool relay_receive(struct relay_message *message, int fd, const char *id)
{
    ssize_t n;

    while ((n = recv(fd, message, sizeof *message, 0)) >= 0)
        if (n == sizeof *message && strncmp(message->id, id, sizeof message->id) == 0) {
            message->node[sizeof message->node - 1] = 0;
            return true;
        }
    return false;
}

static void port_path(char path[PATH_MAX], const char *dir)
{
    snprintf(path, PATH_MAX, "%.4000s/relay-port", dir);
}

tp_status relay_write_port(const char *dir, int port, struct tp_err *err)
{
    char path[PATH_MAX], text[PORT_TEXT];

    port_path(path, dir);
    return file_replace(path, text, (size_t)snprintf(text, sizeof text, "%d\n", port), err);
}

/* tp-run's current port, 0: not known. */
static int read_port(const char *dir)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char path[PATH_MAX], *text;
    size_t n;
    long port = 0;

    port_path(path, dir);
    if (file_read_own(&text, &n, path, PORT_TEXT, &arena, &ignored) == TP_OK)
        port = strtol(text, NULL, 10);
    arena_free(&arena);
    return port > 0 && port <= PORT_MAX ? (int)port : 0;
}

void relay_connect(struct relay_sender *s, const char *dir, const char *host)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    int port = read_port(dir);

    if (port == 0 || port == s->port || !host || inet_pton(AF_INET, host, &a.sin_addr) != 1)
        return;
    if (s->fd < 0)
        s->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    a.sin_port = htons((uint16_t)port);
    if (s->fd >= 0 && connect(s->fd, (struct sockaddr *)&a, sizeof a) == 0)
        s->port = port;
}

/* If no process listens on the port, the kernel reports the error of one send at the next send,
 * which then sends nothing. So a failed send is repeated. */
void relay_send(const struct relay_sender *s, const struct relay_message *message)
{
    if (s->fd >= 0 && send(s->fd, message, sizeof *message, 0) < 0)
        (void)!send(s->fd, message, sizeof *message, 0);
}
