/*
 * orchestrator/state/state_owner.h - the job file that a default state folder belongs to.
 *
 * The default folder of train.yaml and of train.yml is train.run. So the first of them that runs
 * writes its name to train.run/job-file, and the other one is refused. The name has no folder,
 * because job file and default folder are always beside each other, also after both were moved.
 * When the owner is gone, perhaps because it was renamed, the next job file becomes the owner.
 *
 * A folder that a job file names by `state` may be shared on purpose: nothing is checked, and the
 * job file never becomes its owner.
 */
#ifndef ORCHESTRATOR_STATE_STATE_OWNER_H
#define ORCHESTRATOR_STATE_STATE_OWNER_H

#include <limits.h>

#include "core/err.h"
#include "orchestrator/job/job.h"

/* TP_E_USAGE: the job's state folder is its default one, and belongs to another job file. A folder
 * that cannot be read is no error here; who opens it says why. */
tp_status state_owner_check(const struct job *job, struct tp_err *err);

/* Check it, make the folder if there is none, and note that it belongs to the job. before: the name
 * of the owner that is gone; "": there was none. TP_E_USAGE: as above, or the folder is not private
 * (core/private_dir.h). */
tp_status state_owner_claim(char before[NAME_MAX + 1], const struct job *job, struct tp_err *err);

#endif
