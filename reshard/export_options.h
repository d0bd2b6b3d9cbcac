/*
 * reshard/export_options.h - the options that only some formats have. Inside reshard/ only.
 */
#ifndef RESHARD_EXPORT_OPTIONS_H
#define RESHARD_EXPORT_OPTIONS_H

#include "core/err.h"
#include "reshard/export_request.h"
#include "reshard/formats/export_format.h"

/* 1 or 2: the word is the first or the second one; 0: it is NULL; -1: it is another one. */
int export_options_word(const char *word, const char *first, const char *second);

/* A learning rate; false: the text is not one. */
bool export_options_rate(double *out, const char *text);

/* TP_E_USAGE: an option is not for this format, has a value that it does not take, or excludes
 * another one. */
tp_status export_options_check(const struct export_request *q, const struct export_format *f,
                               struct tp_err *err);

#endif
