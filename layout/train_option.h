/*
 * layout/train_option.h - the options of tp-train: long and short forms, and which have a value.
 *
 * tp-train takes its letters from this table, and tp-run reads and checks tp-train's command lines
 * by it.
 */
#ifndef LAYOUT_TRAIN_OPTION_H
#define LAYOUT_TRAIN_OPTION_H

#include "core/opt.h"

struct train_option {
    char letter;        /* short form; 0: none */
    const char *name;   /* long form, without dashes */
    enum opt_kind kind; /* OPT_KIND_FLAG, OPT_KIND_STR (any value) or OPT_KIND_STR_OPT */
};

/* Every option, but --version; ends with name NULL. */
const struct train_option *train_options(void);

/* The letter of a long form, 0: it has none. */
char train_option_letter(const char *name);

#endif
