/*
 * comm/comm.h - the types that every part of comm/ uses to describe a collective.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdint.h>

#include "layout/dtype.h"

/* A communicator: a group of ranks that call collectives together. */
struct comm;

/* A message that was sent and may not have arrived yet. */
struct comm_request;

/* The ranks of a job. */
struct comm_world;

/* The rank after this one in its communicator, or the one before. The last rank is before the
 * first. */
enum comm_neighbour { COMM_NEXT, COMM_PREVIOUS };

enum comm_op { COMM_SUM, COMM_MAX };

/* The kinds of calls that are counted; an index of comm_counts. */
enum comm_kind {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_TO_ALL,
    COMM_SEND,
    COMM_RECV,
    COMM_KINDS,
};

struct comm_counts {
    int64_t calls[COMM_KINDS];
    int64_t bytes[COMM_KINDS]; /* this rank's payload: elements times the size of an element */
};

/* What collectives promise beyond their results. Not every transport promises it. */
enum comm_promise {
    /* Sums follow the tree of kernels/cpu/tree_reduce.h. They depend neither on timing nor on how
     * the ranks are connected. When a rank adds 2^k neighbouring terms itself and the ranks then
     * add their sums, the bits are the same. --same-bits relies on this. */
    COMM_SUMS_ALONG_TREE,
};

#endif
