/*
 * comm/host/shm_member.h - a rank's handle of a group that shares memory, and the barrier of its
 * ranks. Only comm/host/ uses this.
 */
#ifndef COMM_HOST_SHM_MEMBER_H
#define COMM_HOST_SHM_MEMBER_H

#include "comm/host/group.h"
#include "comm/host/shm_job.h"

/* group->impl */
struct shm_member {
    struct shm_job *job;
    struct shm_group *group;
    int host_rank; /* this rank's number in the job */
    int parity;    /* of the next post and slots: alternates */
};

/* The calls that a rank can announce. */
enum shm_call {
    SHM_CALL_ALL_REDUCE,
    SHM_CALL_ALL_GATHER,
    SHM_CALL_REDUCE_SCATTER,
    SHM_CALL_BROADCAST,
    SHM_CALL_GATHER,
    SHM_CALL_BARRIER,
    SHM_CALL_SPLIT,
    SHM_CALL_ALL_TO_ALL,
    SHM_CALLS,
};

/* The parity of this call; the next call gets the other one. */
int shm_member_turn(struct host_group *g);

struct shm_post *shm_member_post(struct host_group *g, int parity, int rank);
char *shm_member_slot(struct host_group *g, int parity, int rank);

/* Where this rank's calling thread sleeps. */
struct futex_sleep *shm_member_sleep(struct host_group *g);

/* Wait until all ranks of the group have called this. */
void shm_member_barrier(struct host_group *g);

/* Announce what this rank calls, wait for all ranks, and check that all make the same call. If they
 * do not, all ranks get TP_E_INTERNAL before any data are mixed. */
tp_status shm_member_agree(struct host_group *g, int parity, const struct shm_post *said,
                           struct tp_err *err);

#endif
