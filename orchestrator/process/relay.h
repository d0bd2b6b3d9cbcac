/*
 * orchestrator/process/relay.h - `tp-run relay`, which runs a rank on a node other than tp-run's.
 *
 * A rank's heartbeat file is in its node's memory, in a folder of a random name that only this user
 * can read (core/private_dir.h). The relay starts the rank. Five times a second
 * it copies that file to the folder of the attempt's heartbeats, which all nodes share, and sends a
 * message to tp-run (relay_message.h). When a node's messages stop, the node has crashed or is cut
 * off, even if its ranks still run. Each copy opens, writes and closes the file, so that other
 * hosts see it over NFS. When DIR/stop appears, the relay kills its rank at once. So the ranks end
 * even when nothing else can reach them. A relay holds a lock on its folder, and removes the
 * folders that killed relays of this user have left on the node.
 */
#ifndef ORCHESTRATOR_PROCESS_RELAY_H
#define ORCHESTRATOR_PROCESS_RELAY_H

#include <stdbool.h>

#include "core/err.h"
#include "orchestrator/process/environment.h"

#define RELAY_SIGNAL_ENV \
    "TP_STOP_SIGNAL" /* number of the signal that asks a rank to save and stop */

struct relay_setup {
    char **argv;      /* the rank's program */
    const char *dir;  /* of the attempt's heartbeats, shared */
    int rank;         /* the rank's number */
    const char *id;   /* of the attempt */
    const char *node; /* the scheduler's name for this node; "": not known */
    const char *host; /* IPv4 address of tp-run's host; NULL: not known */
    int stop_signal;  /* asks the rank to save and stop */
    const struct environment *env;
};

/* How the rank ended. */
struct relay_end {
    int exit_code; /* 128 + the signal, if a signal ended it */
    int signal;    /* 0: none */
    bool asked;    /* the end was requested: by DIR/stop, or by a signal that the relay forwarded */
};

/* Run the rank and wait for its end. TP_E_IO, TP_E_NOMEM: it cannot be started. */
tp_status relay_run(struct relay_end *end, const struct relay_setup *setup, struct tp_err *err);

/* Tell the relays of the attempt to kill their ranks: create `stop` in the open directory of its
 * heartbeats. */
void relay_stop_all(int dir);

#endif
