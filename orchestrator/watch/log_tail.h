/*
 * orchestrator/watch/log_tail.h - what the end of an attempt's log says about who was at fault.
 */
#ifndef ORCHESTRATOR_WATCH_LOG_TAIL_H
#define ORCHESTRATOR_WATCH_LOG_TAIL_H

#include <stddef.h>

/* The rank that a launcher names, -1 when it names none. Believed most is one that a signal killed
 * ("rank 3 was killed by signal 9", "process rank 3 with PID 17 ... exited on signal 9"), then one
 * that ended by itself ("rank 3 ended with exit code 1"), then the first of srun's ("srun: error:
 * n2: task 3: Exited with exit code 1"), but for those that srun itself has ended. *line gets the
 * line that names it, or else the last one that is not empty. */
int log_tail_rank(const char *log, char *line, size_t size);

#endif
