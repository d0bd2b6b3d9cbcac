/* tests/fuzz/relay_message.c - what arrives at tp-run's UDP port, and what a relay reads to find
 * it. The first byte of the input says which; bits of it add the right id and key to a datagram. */
#include <sys/socket.h>

#include "orchestrator/process/relay_message.h"
#include "tests/fuzz/fuzz.h"

enum { PORT_FILE = 1, RIGHT_ID = 2, RIGHT_KEY = 4 };

static const char ID[] = "run.3", KEY[RELAY_KEY_TEXT] = "0123456789abcdef0123456789abcdef";

static void receive(int what, const uint8_t *data, size_t size)
{
    struct relay_listener listener = { .fd = -1 };
    struct relay_message m, sent = { .rank = 0 };
    int fd[2];

    fuzz_must(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0,
              "no socket pair");
    memcpy(&sent, data, size < sizeof sent ? size : sizeof sent);
    if (what & RIGHT_ID)
        memcpy(sent.id, ID, sizeof ID);
    if (what & RIGHT_KEY)
        memcpy(sent.key, KEY, sizeof KEY);
    listener.fd = fd[1];
    memcpy(listener.key, KEY, sizeof KEY);
    fuzz_must(send(fd[0], &sent, size < sizeof sent ? size : sizeof sent, 0) >= 0, "not sent");
    if (relay_receive(&m, &listener, ID)) {
        fuzz_must(size >= sizeof sent && memcmp(m.key, KEY, sizeof KEY) == 0 &&
                      strcmp(m.id, ID) == 0,
                  "a message of somebody else");
        fuzz_must(memchr(m.node, 0, sizeof m.node) != NULL, "a name without an end");
    }
    close(fd[0]);
    close(fd[1]);
}

static void connect_to(const uint8_t *data, size_t size)
{
    struct relay_sender s = { .fd = -1 };
    int dir = open(fuzz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    fuzz_must(dir >= 0, "no folder");
    fuzz_write("relay-port", data, size);
    relay_connect(&s, dir, "127.0.0.1");
    fuzz_must(memchr(s.key, 0, sizeof s.key) && s.port >= 0 && s.port <= 65535, "no such port");
    if (s.fd >= 0)
        close(s.fd);
    close(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t what = fuzz_take(&data, &size);

    if (what & PORT_FILE)
        connect_to(data, size);
    else
        receive(what, data, size);
    return 0;
}
