/*
 * trainer/pipeline/schedule_diagram.h - a pipeline schedule for people: a row a rank, time to the
 * right.
 */
#ifndef TRAINER_PIPELINE_SCHEDULE_DIAGRAM_H
#define TRAINER_PIPELINE_SCHEDULE_DIAGRAM_H

#include <stdio.h>

#include "trainer/pipeline/schedule.h"

/* Text: F3b is the forward pass of microbatch 3 through virtual stage b, B the backward pass, which
 * takes twice as long; dots are the bubble. Then a line with its size and the messages. TP_E_IO: f
 * cannot be written. */
tp_status schedule_print_text(FILE *f, const struct schedule *s, struct tp_err *err);

/* The same as an SVG document. */
tp_status schedule_print_svg(FILE *f, const struct schedule *s, struct tp_err *err);

#endif
