/* tests/unit/orchestrator_relay_message.c - the datagrams between relays and tp-run. */
#include "orchestrator/process/relay_message.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;
static struct relay_listener listener;
static int folder; /* dir, open */

static void setup(void)
{
    temp_dir_make();
    folder = open(temp_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_geq(folder, 0);
    cr_assert(relay_listen(&listener));
    cr_assert_eq(relay_write_port(folder, &listener, &err), TP_OK, "%s", err.msg);
}

static void teardown(void)
{
    close(listener.fd);
    temp_dir_remove();
}

TestSuite(relay_message, .init = setup, .fini = teardown);

static bool arrives(struct relay_message *m, const char *id)
{
    struct pollfd p = { .fd = listener.fd, .events = POLLIN };

    return poll(&p, 1, 5000) == 1 && relay_receive(m, &listener, id);
}

static struct relay_sender connected(void)
{
    struct relay_sender s = { .fd = -1 };

    relay_connect(&s, folder, "127.0.0.1");
    cr_assert(s.fd >= 0 && s.port == listener.port);
    return s;
}

Test(relay_message, what_is_sent_arrives)
{
    const struct relay_message sent = {
        .id = "run.3", .node = "n17", .rank = 5, .news = RELAY_FAILED
    };
    struct relay_sender s = connected();
    struct relay_message m;

    relay_send(&s, &sent);
    cr_assert(arrives(&m, "run.3"));
    cr_expect(m.rank == 5 && m.news == RELAY_FAILED && strcmp(m.node, "n17") == 0);
    cr_expect(!relay_receive(&m, &listener, "run.3"), "one message arrives once");
    close(s.fd);
}

/* A relay of an earlier attempt may run a little longer than its attempt. */
Test(relay_message, messages_of_another_attempt_are_ignored)
{
    struct relay_message old = { .id = "run.2", .rank = 1 }, now = { .id = "run.3", .rank = 2 };
    struct relay_sender s = connected();
    struct relay_message m;

    relay_send(&s, &old);
    relay_send(&s, &now);
    cr_assert(arrives(&m, "run.3"));
    cr_expect_eq(m.rank, 2);
    close(s.fd);
}

/* Any user can send to the port, and read the id in the list of processes. */
Test(relay_message, messages_without_the_key_are_ignored)
{
    const struct relay_message sent = { .id = "run.3", .rank = 1, .news = RELAY_FAILED };
    struct relay_sender s = connected(), forged = connected();
    struct relay_message m;

    cr_expect_eq(strlen(s.key), RELAY_KEY_TEXT - 1);
    forged.key[0] ^= 1;
    relay_send(&forged, &sent);
    forged.key[0] = 0;
    relay_send(&forged, &sent);
    relay_send(&s, &(struct relay_message){ .id = "run.3", .rank = 2 });
    cr_assert(arrives(&m, "run.3"));
    cr_expect_eq(m.rank, 2);
    close(s.fd);
    close(forged.fd);
}

Test(relay_message, other_datagrams_are_ignored)
{
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)listener.port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct relay_message full, m;
    struct relay_sender s = connected();
    int other = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memset(&full, 'x', sizeof full); /* its texts are not terminated */
    memcpy(full.id, "run.3", 6);
    sendto(other, "run.3", 5, 0, (const struct sockaddr *)&to, sizeof to);
    sendto(other, "", 0, 0, (const struct sockaddr *)&to, sizeof to);
    relay_send(&s, &full);
    cr_assert(arrives(&m, "run.3"));
    cr_expect_eq(strlen(m.node), sizeof m.node - 1, "the name of the node is terminated");
    close(other);
    close(s.fd);
}

Test(relay_message, a_relay_follows_tp_run_to_another_port)
{
    const struct relay_message sent = { .id = "run.3", .rank = 7 };
    struct relay_sender s = connected();
    struct relay_message m;
    struct relay_listener old = listener;

    cr_assert(relay_listen(&listener)); /* a tp-run that has taken over */
    cr_assert_eq(relay_write_port(folder, &listener, &err), TP_OK);
    relay_connect(&s, folder, "127.0.0.1");
    cr_expect_eq(s.port, listener.port);
    relay_send(&s, &sent);
    cr_assert(arrives(&m, "run.3"));
    cr_expect(!relay_receive(&m, &old, "run.3"));
    close(old.fd);
    close(s.fd);
}

Test(relay_message, without_a_port_or_a_host_nothing_is_sent)
{
    const struct relay_message sent = { .id = "run.3" };
    struct relay_sender s = { .fd = -1 };

    relay_connect(&s, folder, NULL);
    relay_connect(&s, folder, "no address");
    relay_connect(&s, -1, "127.0.0.1");
    cr_expect_eq(s.port, 0);
    relay_send(&s, &sent); /* does nothing */
    for (const char *const *bad = (const char *const[]){ "0\n", "-5\n", "70000\n", "x\n", NULL };
         *bad; bad++) {
        char path[64];

        snprintf(path, sizeof path, "%s/relay-port", temp_dir);
        cr_assert_eq(file_replace(path, *bad, strlen(*bad), &err), TP_OK);
        relay_connect(&s, folder, "127.0.0.1");
        cr_expect_eq(s.port, 0, "port %s", *bad);
    }
}
