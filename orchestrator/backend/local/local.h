/*
 * orchestrator/backend/local/local.h - the local backend: ranks run on this machine.
 *
 * Its nodes are the names in the job file. The job's command starts its own ranks, or mpirun does.
 */
#ifndef ORCHESTRATOR_BACKEND_LOCAL_LOCAL_H
#define ORCHESTRATOR_BACKEND_LOCAL_LOCAL_H

#include "orchestrator/backend/backend.h"

extern const struct job_backend LOCAL_JOB_BACKEND;
extern const struct backend LOCAL_BACKEND;

#endif
