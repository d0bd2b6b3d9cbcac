/*
 * cli/run/event_text.h - an event as a sentence for people.
 */
#ifndef CLI_RUN_EVENT_TEXT_H
#define CLI_RUN_EVENT_TEXT_H

#include <jansson.h>
#include <stdio.h>
#include <time.h>

/* The time of an event, 0: it is not one that can be printed, because the file is damaged. */
time_t event_time(double seconds);

/* Print one line: the time of day (with the day, if it was another day), and the sentence, in which
 * control characters are escaped (text_escape). */
void event_print(FILE *f, const json_t *event);

#endif
