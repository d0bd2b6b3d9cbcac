/*
 * trainer/pipeline/schedule_diagram.h - a pipeline schedule as a picture: one row per rank, time
 * to the right.
 */
#ifndef TRAINER_PIPELINE_SCHEDULE_DIAGRAM_H
#define TRAINER_PIPELINE_SCHEDULE_DIAGRAM_H

#include <stdio.h>

#include "trainer/pipeline/schedule.h"

/* Print text: F3b is the forward pass of microbatch 3 through virtual stage b, B3b its backward
 * pass, which takes twice as long; dots are the bubble. The last line has the size of the bubble
 * and the number of messages. TP_E_IO: f cannot be written. */
tp_status schedule_print_text(FILE *f, const struct schedule *s, struct tp_err *err);

/* Print the same as an SVG document. */
tp_status schedule_print_svg(FILE *f, const struct schedule *s, struct tp_err *err);

#endif
