/*
 * torch/pickle_copy.h - writes a value that was read from a pickle (torch/pickle.h) into a new one.
 */
#ifndef TORCH_PICKLE_COPY_H
#define TORCH_PICKLE_COPY_H

#include "torch/pickle_value.h"
#include "torch/pickle_writer.h"

/* Whether a value is plain: None, a number, text, or a list, tuple or dict of such. Nothing of it
 * names a class or a function, so a program that reads it calls nothing. Values with more than
 * 100,000 parts are not, counted as often as they occur: a small pickle can contain one value 2^100
 * times. */
bool pickle_copy_can(const struct pickle_value *v);

/* Push a plain value. */
void pickle_copy(struct pickle_writer *w, const struct pickle_value *v);

#endif
