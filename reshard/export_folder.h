/*
 * reshard/export_folder.h - an export to a folder by one process, which continues what an
 * interrupted run left. Inside reshard/ only.
 */
#ifndef RESHARD_EXPORT_FOLDER_H
#define RESHARD_EXPORT_FOLDER_H

#include "reshard/export_job.h"

/* Write the folder, which appears complete or not at all. */
tp_status export_folder_write(struct export_job *x, struct tp_err *err);

#endif
