/*
 * orchestrator/process/relay_message.h - the datagrams that relays send to tp-run.
 *
 * tp-run listens on a UDP port, and writes its number and a random key to DIR/relay-port. DIR is
 * the folder of the attempt's heartbeats, which all nodes share and only this user can read.
 * Anybody can send to the port, so messages without the key are ignored. A tp-run that takes over
 * listens on another port, so relays read the file again regularly. If no datagram ever arrives
 * (because of a firewall), tp-run cannot watch nodes this way, only ranks.
 */
#ifndef ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H
#define ORCHESTRATOR_PROCESS_RELAY_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum { RELAY_ID_TEXT = 64, RELAY_NODE_TEXT = 64, RELAY_KEY_TEXT = 33 };

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
    char key[RELAY_KEY_TEXT]; /* of DIR/relay-port; relay_send fills it in */
    char spare[7];            /* 0 */
};
_Static_assert(sizeof(struct relay_message) == 176, "the layout is fixed");

/* ---- tp-run's side ---- */

/* Where tp-run receives. */
struct relay_listener {
    int fd; /* -1: nowhere */
    int port;
    char key[RELAY_KEY_TEXT];
};

/* Open a socket for messages, with a new key. False: this failed, and fd is -1. */
bool relay_listen(struct relay_listener *out);

/* Write port and key for the relays of the attempt whose heartbeats are in the open directory. */
tp_status relay_write_port(int dir, const struct relay_listener *to, struct tp_err *err);

/* Read the next message with this id and the key; its texts are 0-terminated. False: none has
 * arrived. */
bool relay_receive(struct relay_message *message, const struct relay_listener *from,
                   const char *id);

/* ---- the relay's side ---- */

/* A way to send to tp-run. Start with fd -1. */
struct relay_sender {
    int fd;   /* connected UDP socket, -1: none yet */
    int port; /* to which it is connected */
    char key[RELAY_KEY_TEXT];
};

/* Connect to the port that relay-port in the open directory names now, on the host with this IPv4
 * address. Does nothing if it is connected to it already, or if port or host is not known. */
void relay_connect(struct relay_sender *s, int dir, const char *host);

/* Send with the key, if it is connected. There is no answer. */
void relay_send(const struct relay_sender *s, const struct relay_message *message);

#endif
