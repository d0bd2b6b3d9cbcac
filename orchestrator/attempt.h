/*
 * orchestrator/attempt.h - one launch of the job's command: its ranks, files, supervisor, and end.
 *
 * All files may read its members; only attempt.c changes them.
 */
#ifndef ORCHESTRATOR_ATTEMPT_H
#define ORCHESTRATOR_ATTEMPT_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/err.h"
#include "core/heartbeat.h"
#include "core/private_dir.h"
#include "orchestrator/process/supervisor.h"
#include "orchestrator/state/event.h"
#include "orchestrator/state/node.h"

enum { ATTEMPT_TEXT_MAX = 512, ATTEMPT_ID_TEXT = 64 };

struct attempt_rank {
    struct node *node;
    pid_t pid; /* if it is on this host; 0: not known */
    int pidfd; /* -1: not known, or the rank has ended */
    int beats; /* its open heartbeat file; -1: not open */
    bool gone;
};

/* What ended an attempt, or prevented its start. */
enum attempt_fault_kind {
    FAULT_NONE,
    FAULT_RANK,       /* a rank ended too early */
    FAULT_HANG,       /* no progress */
    FAULT_LOSS,       /* the loss is not finite */
    FAULT_NODE,       /* a node was lost */
    FAULT_EXIT,       /* the command ended by itself, with an error */
    FAULT_SUPERVISOR, /* the supervisor was killed */
    FAULT_RESHARD,    /* a program failed before the launch */
};

struct attempt_fault {
    enum attempt_fault_kind kind;
    int rank;          /* -1: not known */
    int signal;        /* that killed the rank or the command; 0: none, or not known */
    struct node *node; /* NULL: not known */
    int64_t step;
    double waited; /* seconds since the last progress or message */
    enum event_reason reason;
    char message[ATTEMPT_TEXT_MAX];
};

struct attempt {
    char id[ATTEMPT_ID_TEXT];  /* RUN.NUMBER; its processes have it in their environment */
    char heartbeats[PATH_MAX]; /* folder of the ranks' heartbeats, "": none */
    int heartbeats_fd;         /* the same, open; -1: it is gone, or is not ours */
    bool is_private;           /* only this host sees `heartbeats` */
    char log[PATH_MAX], exit_path[PATH_MAX];
    double launched_at;
    int world; /* 0: no ranks */
    struct attempt_rank *rank;
    struct supervisor supervisor;
    struct supervisor_outcome outcome;
    struct attempt_fault fault;
};

/* Make a zeroed struct an attempt without processes. */
void attempt_init(struct attempt *a);

/* Name the attempt and its files, except `heartbeats`. */
void attempt_name(struct attempt *a, const char *state, const char *run_id, int64_t number);

/* Choose a folder for the heartbeats. shared: other hosts must see it, so it is in the state
 * folder; otherwise it has a random name in /dev/shm. TP_E_IO: no random numbers. */
tp_status attempt_choose_heartbeats(struct attempt *a, const char *state, int64_t number,
                                    bool shared, struct tp_err *err);

/* Make that folder (private_dir.h), after removing those in /dev/shm that killed processes of this
 * user have left (memory_dir.h). */
tp_status attempt_make_heartbeats(struct attempt *a, struct tp_err *err);

/* Open the folder that an earlier tp-run made. id: which one it was; zeroes: not known. When it is
 * gone, or is not that folder, heartbeats_fd stays -1, and err says why. */
void attempt_find_heartbeats(struct attempt *a, const char *path, const struct private_dir_id *id,
                             struct tp_err *err);

/* Open the heartbeat file of a rank: its descriptor, or -1 if there is none yet. attempt_end_beats
 * ends the reading. The files that only this host sees stay open, so they can be read even after
 * they were removed. */
int attempt_beats(struct attempt *a, int rank);
void attempt_end_beats(struct attempt *a, int rank);

/* Place `world` ranks on the usable nodes in order, one for each slot. Forgets the fault of the
 * previous attempt. TP_E_NOMEM. */
tp_status attempt_place(struct attempt *a, int world, const struct node_list *nodes, double now,
                        struct tp_err *err);

/* Where the ranks are, as a record keeps it: [["a", 2], ["b", 2]], the nodes in the order of their
 * ranks. NULL: no memory. */
json_t *attempt_placement(const struct attempt *a);

/* After attempt_place at a takeover: the ranks are where this value says, because nodes may have
 * come back or been lost since they were started. No change if it names a node that is not in the
 * list, or has another number of ranks. */
void attempt_restore_placement(struct attempt *a, const json_t *placement,
                               const struct node_list *nodes);

void attempt_set_launched(struct attempt *a, double now);

/* Open the process of a rank on this host. Returns its pidfd the first time, else -1. */
int attempt_open_rank(struct attempt *a, int rank, const struct heartbeat_status *status);

/* A rank's process has ended. */
void attempt_rank_ended(struct attempt *a, int rank);

/* A rank is on another node than attempt_place expected: the scheduler has placed it there. */
void attempt_move(struct attempt *a, int rank, struct node *node);

/* The rank whose pidfd this is, -1: none. */
int attempt_rank_of(const struct attempt *a, int pidfd);
bool attempt_uses(const struct attempt *a, const struct node *node);

/* Kill the ranks on a node of this host. */
void attempt_kill_on(const struct attempt *a, const struct node *node);

/* Set the log that messages name. */
void attempt_set_log(struct attempt *a, const char *path);

void attempt_set_fault(struct attempt *a, const struct attempt_fault *fault);

/* A fault with a sentence. Bytes that are not printable text are replaced (text_clean). */
struct attempt_fault attempt_fault(enum attempt_fault_kind kind, enum event_reason reason,
                                   const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The supervisor has ended: read the outcome that it wrote. False: there is none. */
bool attempt_read_outcome(struct attempt *a);

/* Forget ranks and supervisor. over: no process of the attempt is alive, so its private
 * heartbeats are removed. */
void attempt_forget(struct attempt *a, bool over);

#endif
