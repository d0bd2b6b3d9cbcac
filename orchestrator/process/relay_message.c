/* orchestrator/process/relay_message.c - see orchestrator/process/relay_message.h. */
#include "orchestrator/process/relay_message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/private_dir.h"

enum { FILE_TEXT = 64, PORT_MAX = 65535, KEY_BYTES = (RELAY_KEY_TEXT - 1) / 2 };

static const char NAME[] = "relay-port";

static bool make_key(char key[RELAY_KEY_TEXT])
{
    unsigned char random[KEY_BYTES];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return false;
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(key + 2 * i, 3, "%02x", random[i]);
    return true;
}

bool relay_listen(struct relay_listener *out)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *out = (struct relay_listener){ .fd = -1 };
    if (fd < 0 || !make_key(out->key) || bind(fd, (struct sockaddr *)&a, n) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    out->fd = fd;
    out->port = ntohs(a.sin_port);
    return true;
}

bool relay_receive(struct relay_message *message, const struct relay_listener *from, const char *id)
{
    ssize_t n;

    while ((n = recv(from->fd, message, sizeof *message, 0)) >= 0)
        if (n == sizeof *message && strncmp(message->id, id, sizeof message->id) == 0 &&
            memcmp(message->key, from->key, sizeof message->key) == 0) {
            message->node[sizeof message->node - 1] = 0;
            return true;
        }
    return false;
}

tp_status relay_write_port(int dir, const struct relay_listener *to, struct tp_err *err)
{
    char text[FILE_TEXT];
    int n = snprintf(text, sizeof text, "%d %s\n", to->port, to->key);

    return private_dir_replace(dir, "heartbeats", NAME, text, (size_t)n, err);
}

/* tp-run's current port and key. False: not known. */
static bool read_port(int *port, char key[RELAY_KEY_TEXT], int dir)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char *text, *end;
    size_t n;
    long number = 0;

    if (private_dir_read(&text, &n, dir, "heartbeats", NAME, FILE_TEXT, &arena, &ignored) ==
        TP_OK) {
        number = strtol(text, &end, 10);
        end += strspn(end, " ");
        snprintf(key, RELAY_KEY_TEXT, "%.*s", (int)strcspn(end, "\n"), end);
    }
    arena_free(&arena);
    *port = (int)number;
    return number > 0 && number <= PORT_MAX;
}

void relay_connect(struct relay_sender *s, int dir, const char *host)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    char key[RELAY_KEY_TEXT] = "";
    int port;

    if (!read_port(&port, key, dir) || (port == s->port && strcmp(key, s->key) == 0) || !host ||
        inet_pton(AF_INET, host, &a.sin_addr) != 1)
        return;
    if (s->fd < 0)
        s->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    a.sin_port = htons((uint16_t)port);
    if (s->fd >= 0 && connect(s->fd, (struct sockaddr *)&a, sizeof a) == 0) {
        s->port = port;
        memcpy(s->key, key, sizeof s->key);
    }
}

/* If no process listens on the port, the kernel reports the error of one send at the next send,
 * which then sends nothing. So a failed send is repeated. */
void relay_send(const struct relay_sender *s, const struct relay_message *message)
{
    struct relay_message m = *message;

    memcpy(m.key, s->key, sizeof m.key);
    if (s->fd >= 0 && send(s->fd, &m, sizeof m, 0) < 0)
        (void)!send(s->fd, &m, sizeof m, 0);
}
