/*
 * trainer/run_summary.h - what a run will do, in a few lines for people: model, mesh, batch, bytes
 * of a rank, messages of a step.
 */
#ifndef TRAINER_RUN_SUMMARY_H
#define TRAINER_RUN_SUMMARY_H

#include "trainer/step_messages.h"
#include "trainer/trainer.h"

enum { DESCRIBE_LINES = 8, DESCRIBE_MAX = 512 };

/* Line number i, without a newline; empty where there is nothing to say. t is open; messages are
 * those of a step. Returns buf. */
char *describe_line(char buf[DESCRIBE_MAX], const struct trainer *t,
                    const struct step_messages *messages, int i);

#endif
