/*
 * trainer/step_messages.h - what a step sends: calls and payload bytes of collectives and messages
 * on each process group.
 *
 * The code that sends messages counts them: a step runs on queues of a device that does nothing
 * (device/null/null.h), and the communicators count as in every step.
 */
#ifndef TRAINER_STEP_MESSAGES_H
#define TRAINER_STEP_MESSAGES_H

#include "trainer/trainer.h"

struct step_messages {
    int64_t tp_calls, tp_bytes; /* activations, loss and norm; with sp gradients of norms */
    int64_t kv_calls, kv_bytes; /* gradients of shared KV heads */
    int64_t ep_calls, ep_bytes; /* tokens to their experts, and back */
    int64_t dp_calls, dp_bytes; /* gradients and weights, over dp and cp */
    int64_t cp_calls, cp_bytes; /* sent to the next rank of ring attention */
    int64_t pp_calls, pp_bytes; /* sent to other stages: activations and gradients */
    int64_t embedding_calls, embedding_bytes; /* gradient of a tied head, first and last stage */
    int64_t few_words_calls;                  /* of the norm, and of loss and flags */
};

/* Count the messages of one step of this rank. t is open, and unchanged afterwards. Not
 * collective. */
tp_status step_messages_count(struct step_messages *out, struct trainer *t, struct tp_err *err);

/* What this rank has sent so far. */
struct step_messages step_messages_now(const struct trainer *t);

#endif
