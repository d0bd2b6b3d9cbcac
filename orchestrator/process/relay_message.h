/*
 * orchestrator/process/relay_message.h - the datagrams that relays send to tp-run.
 *
 * tp-run listens on a UDP port and writes its number to DIR/relay-port, where DIR is the folder of
 * the attempt's heartbeats, which all nodes share. A tp-run that takes over listens on another
 * port, so relays read the file again regularly. If no datagram ever arrives (because of a
 * firewall), tp-run cannot watch nodes this way, only ranks.
 */
#ifndef ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H
#define ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum { RELAY_ID_TEXT = 64, RELAY_NODE_TEXT = 64 };

enum relay_news {
    RELAY_ALIVE,
    RELAY_ENDED,  /* the rank has ended as planned, with 0, or with 75 (saved and stopped) */
    RELAY_FAILED, /* the rank has ended in another way */
};

/* The datagram; numbers are little-endian. */
struct relay_message {
    char id[RELAY_ID_TEXT];     /* of the attempt: others are ignored */
    char node[RELAY_NODE_TEXT]; /* the scheduler's name for it; "": not known */
    int32_t rank;
    int32_t news; /* enum relay_news; a relay's last message reports how its rank ended */
};

/* ---- tp-run's side ---- */

/* Open a socket for messages; *port gets its port. -1: this failed. */
int relay_listen(int *port);

/* Write the port for the relays of the attempt whose heartbeats are in `dir`. */
tp_status relay_write_port(const char *dir, int port, struct tp_err *err);

/* Read the next message with this id; its texts are 0-terminated. False: none has arrived. */
bool relay_receive(struct relay_message *message, int fd, const char *id);

/* ---- the relay's side ---- */

/* A way to send to tp-run. Start with fd -1. */
struct relay_sender {
    int fd;   /* connected UDP socket, -1: none yet */
    int port; /* to which it is connected */
};

/* Connect to the port that DIR/relay-port names now, on the host with this IPv4 address. Does
 * nothing if it is connected to it already, or if port or host is not known. */
void relay_connect(struct relay_sender *s, const char *dir, const char *host);

/* Send, if it is connected. There is no answer. */
void relay_send(const struct relay_sender *s, const struct relay_message *message);

#endif
