/*
 * trainer/run_summary.h - what a run will do, in a few lines of text: model, mesh, batch, data,
 * memory per rank, communication per step, how a GPU gets it.
 */
#ifndef TRAINER_RUN_SUMMARY_H
#define TRAINER_RUN_SUMMARY_H

#include "trainer/step_messages.h"
#include "trainer/trainer.h"

enum { RUN_SUMMARY_LINES = 10, RUN_SUMMARY_MAX = 512 };

/* Write line number i without a newline; it may be empty. t is open; messages: of one step.
 * Returns buf. */
char *run_summary_line(char buf[RUN_SUMMARY_MAX], const struct trainer *t,
                       const struct step_messages *messages, int i);

#endif
