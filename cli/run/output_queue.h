/*
 * cli/run/output_queue.h - text for a standard stream whose reader may stand still: a terminal
 * after Ctrl-S or behind a lost connection, or a pipe to a program that hangs. Nothing here waits
 * for the reader, except at the end, because tp-run has to watch its job.
 */
#ifndef CLI_RUN_OUTPUT_QUEUE_H
#define CLI_RUN_OUTPUT_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

struct output_queue;

/* A queue for the open descriptor `fd` that holds at most `most` bytes. NULL: no memory. */
struct output_queue *output_queue_open(int fd, size_t most);

/* Add a text, all of it or, when the queue is full, nothing; and send what the reader takes now. */
void output_queue_add(struct output_queue *q, const char *text, size_t n);

/* Send what the reader takes now. True: nothing is left. */
bool output_queue_send(struct output_queue *q);

/* Wait for the reader for at most `seconds`, and free the queue. False: some of the text is lost;
 * then *error is the errno of the write that failed, EAGAIN: the reader still stands still, 0: the
 * queue was full. q may be NULL. */
bool output_queue_close(struct output_queue *q, double seconds, int *error);

#endif
