/*
 * reshard/export_shared.h - an export to a folder by several processes. Rank 0 does everything that
 * one process does, without a journal; the others only copy tensors. Inside reshard/ only.
 */
#ifndef RESHARD_EXPORT_SHARED_H
#define RESHARD_EXPORT_SHARED_H

#include "reshard/export_job.h"

/* TP_E_USAGE: there are several processes, and only one can do this. */
tp_status export_shared_check(const struct export_job *x, struct tp_err *err);

/* All processes: TP_E_USAGE: they do not read the same files. */
tp_status export_shared_compare(struct export_job *x, struct tp_err *err);

/* All processes: write the folder, which appears complete or not at all. */
tp_status export_shared_write(struct export_job *x, struct tp_err *err);

#endif
