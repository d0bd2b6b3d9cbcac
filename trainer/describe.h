/*
 * trainer/describe.h - what a run will do, in a few lines for people: model, mesh, batch, bytes of
 * a rank, messages of a step.
 */
#ifndef TRAINER_DESCRIBE_H
#define TRAINER_DESCRIBE_H

#include "trainer/trainer.h"

enum { DESCRIBE_LINES = 8, DESCRIBE_MAX = 512 };

/* Line number i, without a newline; empty where there is nothing to say. t is open. Returns buf. */
char *describe_line(char buf[DESCRIBE_MAX], const struct trainer *t, int i);

/* Collectives of one step on one rank, by arithmetic (tests compare with comm_counts). */
struct messages {
    int64_t tp_calls, tp_bytes;     /* activations and loss; under sp gradients of norms */
    int64_t kv_calls, kv_bytes;     /* gradients of shared KV heads */
    int64_t dp_calls, dp_bytes;     /* gradients, over dp and cp */
    int64_t cp_calls, cp_bytes;     /* sent to the next rank of the ring of attention */
    int64_t pp_calls, pp_bytes;     /* sent to other stages: activations and gradients */
    int64_t ends_calls, ends_bytes; /* gradient of a tied head, first and last stage */
    int64_t tiny_calls;             /* of the norm, and of loss and flags */
};
struct messages describe_messages(const struct trainer *t);

#endif
