/*
 * ckpt/root_owner.h - ROOT/owner: the one live job that a checkpoint root belongs to.
 *
 * tp-run claims the root of its job, so that a second job with the same root is refused while the
 * first one lives. The epoch (ckpt/epoch.h) protects the root also from programs that do not claim
 * it, and from an owner that was thought to be dead and comes back.
 *
 * An owner on this host lives as long as its process does, or the process that runs its ranks. An
 * owner on another host, or in another pid namespace, shows that it lives by setting the time of
 * the file every few seconds; after ROOT_OWNER_LEASE_S without that it counts as dead. The time is
 * that of the file server on both sides, so the clocks of hosts do not matter.
 */
#ifndef CKPT_ROOT_OWNER_H
#define CKPT_ROOT_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum { ROOT_OWNER_LEASE_S = 60, ROOT_OWNER_BEAT_S = 5 };

/* Who claims a root. Texts are borrowed. */
struct root_owner_claim {
    const char *run; /* the identity of the job: the same after it was started again */
    const char *job; /* its name, for people */
};

/* A claim that this process holds. */
struct root_owner;

/* Whether a live job other than `run` owns the root, without a claim and without the lock of the
 * root. TP_E_EXISTS: err says who. A root that does not exist has no owner. */
tp_status root_owner_check(const char *root, const char *run, struct tp_err *err);

/* Claim the root, which exists, under its lock. A claim of the same `run` is taken over, also while
 * the process that made it lives: the caller knows that it is the only one of its run.
 * TP_E_EXISTS: a live job owns the root; err says who. TP_E_IO. */
tp_status root_owner_claim(struct root_owner **out, const char *root,
                           const struct root_owner_claim *claim, struct tp_err *err);

/* Record the process that runs the ranks and may outlive this one. start: process_stat.start. */
void root_owner_set_child(struct root_owner *o, int64_t pid, int64_t start);

/* Show that this owner lives; call it every ROOT_OWNER_BEAT_S. */
void root_owner_beat(struct root_owner *o);

/* Free o. release: the job has ended, so the root has no owner any more; otherwise the claim stays,
 * and holds while the child lives. o may be NULL. */
void root_owner_close(struct root_owner *o, bool release);

#endif
