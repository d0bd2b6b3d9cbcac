/*
 * reshard/engine/tensor_digests.h - the digests of the tensors of a transfer, for an endpoint whose
 * files state none: threads add the digest of each run that they read or write.
 */
#ifndef RESHARD_ENGINE_TENSOR_DIGESTS_H
#define RESHARD_ENGINE_TENSOR_DIGESTS_H

#include <pthread.h>

#include "core/arena.h"
#include "reshard/engine/endpoint.h"

struct tensor_digests {
    struct digest *sums; /* [n]; in the caller's arena */
    int n;
    pthread_mutex_t lock; /* guards sums */
};

/* Without tensors, until tensor_digests_make. tensor_digests_end may follow at any time. */
void tensor_digests_init(struct tensor_digests *d);
void tensor_digests_end(struct tensor_digests *d);

/* n tensors of which nothing was added. False: memory is out, and *d is unchanged. */
bool tensor_digests_make(struct tensor_digests *d, int n, struct arena *arena);

/* Add the digest of a part of a tensor. Thread safe. */
void tensor_digests_add(struct tensor_digests *d, int tensor, const struct digest *part);

/* The digest of what was added of a tensor. While no thread adds. */
struct digest tensor_digests_of(const struct tensor_digests *d, int tensor);

/* The `combine` of an endpoint (reshard/engine/endpoint.h): rank 0 gets the digests of what all
 * processes added. Collective. */
tp_status tensor_digests_combine(struct tensor_digests *d, struct comm_control *control,
                                 struct tp_err *err);

/* All of them, for a journal (reshard/resume.h). */
struct reshard_sums tensor_digests_words(const struct tensor_digests *d);

#endif
