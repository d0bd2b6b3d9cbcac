/*
 * layout/train_option.h - the short forms of tp-train's options.
 *
 * tp-train takes its letters from this table, and tp-run reads tp-train's command lines by it.
 */
#ifndef LAYOUT_TRAIN_OPTION_H
#define LAYOUT_TRAIN_OPTION_H

#include <stdbool.h>

struct train_option {
    char letter;
    const char *name; /* long form, without dashes */
    bool has_value;
};

/* Every option with a letter; ends with letter 0. */
const struct train_option *train_options(void);

/* The letter of a long form, 0: it has none. */
char train_option_letter(const char *name);

#endif
