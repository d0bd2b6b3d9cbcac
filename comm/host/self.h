/*
 * comm/host/self.h - one rank alone: every call is a copy, or nothing.
 */
#ifndef COMM_HOST_SELF_H
#define COMM_HOST_SELF_H

#include "comm/host/group.h"

/* This process is the only rank. */
void self_process_open(struct host_process *p, struct host_group *all);

/* Make g a group of one rank, in a process of any kind. */
void self_group_open(struct host_group *g);

#endif
