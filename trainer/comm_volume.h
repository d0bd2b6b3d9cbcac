/*
 * trainer/comm_volume.h - what a step sends, by arithmetic from layout and schedule: calls and
 * payload bytes of collectives and messages on each axis. Tests compare it with comm_counts, to the
 * byte.
 */
#ifndef TRAINER_COMM_VOLUME_H
#define TRAINER_COMM_VOLUME_H

#include "trainer/trainer.h"

struct messages {
    int64_t tp_calls, tp_bytes;     /* activations and loss; under sp gradients of norms */
    int64_t kv_calls, kv_bytes;     /* gradients of shared KV heads */
    int64_t dp_calls, dp_bytes;     /* gradients, over dp and cp */
    int64_t cp_calls, cp_bytes;     /* sent to the next rank of the ring of attention */
    int64_t pp_calls, pp_bytes;     /* sent to other stages: activations and gradients */
    int64_t ends_calls, ends_bytes; /* gradient of a tied head, first and last stage */
    int64_t tiny_calls;             /* of the norm, and of loss and flags */
};

/* Of one step on this rank; t is open. */
struct messages messages_count(const struct trainer *t);

#endif
