/*
 * orchestrator/process/memory_dir.h - the folder in /dev/shm that has the heartbeats of an attempt
 * on this host.
 *
 * tp-run and the attempt's supervisor hold a shared lock (flock) on it as long as they live. If
 * both are killed, it stays for the job's next tp-run, which reads how far the ranks came and
 * removes it. If no such tp-run comes, that of another job of the same user removes it after a
 * while.
 */
#ifndef ORCHESTRATOR_PROCESS_MEMORY_DIR_H
#define ORCHESTRATOR_PROCESS_MEMORY_DIR_H

#include <limits.h>
#include <stdbool.h>

#include "core/err.h"

/* Where such folders are, and the seconds after which one of dead processes is removed. */
#define MEMORY_DIR_PARENT "/dev/shm"
enum { MEMORY_DIR_KEEP_S = 3600 };

/* Whether this host has /dev/shm, and room there. */
bool memory_dir_is_possible(void);

/* Write a random name. TP_E_IO: no random numbers. */
tp_status memory_dir_name(char path[PATH_MAX], struct tp_err *err);

/* Whether a path can be that of such a folder. */
bool memory_dir_is(const char *path);

/* Lock the open folder, until this process closes it or ends. */
void memory_dir_hold(int fd);

/* Open and lock the folder at this path, if it is such a folder and this user's. It stays open
 * until this process ends. */
void memory_dir_hold_path(const char *path);

/* Remove this user's folders in `parent` whose lock nobody holds, if they are older than `seconds`
 * and no heartbeat in them is younger. */
void memory_dir_clean(const char *parent, double seconds);

#endif
