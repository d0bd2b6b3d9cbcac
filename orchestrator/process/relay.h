/*
 * orchestrator/process/relay.h - tp-run on a node: between Slurm's step and a rank.
 *
 * A rank's slot lies in its node's memory. The relay starts the rank, and five times a second
 * copies the slot to the state folder, which all nodes share, and sends a beat, a datagram, to
 * tp-run: a node whose beats stop is crashed or cut off, whatever its ranks do. Each copy is open,
 * write, close, so that it is seen over NFS too. When DIR/stop appears the relay kills its rank at
 * once: so a step whose srun is gone ends within a beat. DIR/beats says at which port tp-run
 * listens, on the host that srun was started on; it is read again every second, because a tp-run
 * that takes over has another one. Where no datagram ever arrives (a
 * firewall) nodes are not watched this way, only ranks.
 */
#ifndef ORCHESTRATOR_PROCESS_RELAY_H
#define ORCHESTRATOR_PROCESS_RELAY_H

#include <stdbool.h>

#include "core/err.h"
#include "core/heartbeat.h"

/* What the last beat says: the rank has ended, in order (0, or 75 for saved and stopped) or not. */
enum relay_news { RELAY_BEATS, RELAY_ENDED, RELAY_FAILED };

enum { RELAY_PERIOD_MS = 200, RELAY_ID_TEXT = 64, RELAY_NODE_TEXT = 64 };

/* A beat, as it travels. id is that of the attempt, so that nobody else's is taken for it. */
struct relay_beat {
    char id[RELAY_ID_TEXT];
    char node[RELAY_NODE_TEXT]; /* as Slurm calls it; "" where it does not say */
    int32_t rank;               /* little-endian, as all here */
    int32_t news;               /* enum relay_news */
};

/* tp-run's side: a socket that beats arrive at; *port is where. -1: none can be had. */
int relay_listen(int *port);

/* Tell the relays of the attempt whose slots are in dir where to. */
tp_status relay_tell_port(const char *dir, int port, struct tp_err *err);

/* The next beat with this id that waits; its texts end. false: there is none. */
bool relay_next(struct relay_beat *beat, int fd, const char *id);

/* How the rank ended. */
struct relay_end {
    int rank;
    int exit_code; /* 128 + the signal, where one ended it */
    int signal;    /* 0: none */
    bool asked;    /* the relay was told to end it, or handed a signal on */
};

/* Run argv as rank SLURM_PROCID, with its slot copied to dir. */
tp_status relay_run(struct relay_end *end, char **argv, const char *dir, struct tp_err *err);

#endif
