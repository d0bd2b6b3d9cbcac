/*
 * orchestrator/process/relay_message.h - the datagrams that relays send to tp-run.
 *
 * tp-run listens at a UDP port and writes its number to DIR/relay-port, where DIR is the folder of
 * the attempt's heartbeats, which all nodes share. A tp-run that takes over listens at another
 * port, so relays read the file again now and then. Where no datagram arrives at all (a firewall)
 * tp-run cannot watch nodes this way, only ranks.
 */
#ifndef ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H
#define ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum { RELAY_ID_TEXT = 64, RELAY_NODE_TEXT = 64 };

enum relay_news {
    RELAY_ALIVE,
    RELAY_ENDED,  /* the rank has ended as planned: 0, or 75 for saved and stopped */
    RELAY_FAILED, /* it has ended otherwise */
};

/* As it is sent; numbers are little-endian. */
struct relay_message {
    char id[RELAY_ID_TEXT];     /* of the attempt: others are ignored */
    char node[RELAY_NODE_TEXT]; /* as the scheduler calls it; "" where it is not known */
    int32_t rank;
    int32_t news; /* enum relay_news; a relay's last message says how its rank ended */
};

/* ---- tp-run's side ---- */

/* A socket that messages arrive at, and its port. -1: none can be had. */
int relay_listen(int *port);

/* Tell the relays of the attempt whose heartbeats are in `dir` the port. */
tp_status relay_write_port(const char *dir, int port, struct tp_err *err);

/* The next message with this id that has arrived; its texts are 0-terminated. False: there is none.
 */
bool relay_receive(struct relay_message *message, int fd, const char *id);

/* ---- the relay's side ---- */

/* A way to send to tp-run. Start with fd -1. */
struct relay_sender {
    int fd;   /* connected UDP socket, -1: none yet */
    int port; /* that it is connected to */
};

/* Connect to the port that DIR/relay-port names now, on the host with this IPv4 address. Does
 * nothing when it is connected to it already, or when either is not known. */
void relay_connect(struct relay_sender *s, const char *dir, const char *host);

/* Send, if it is connected. Nothing waits for an answer. */
void relay_send(const struct relay_sender *s, const struct relay_message *message);

#endif
