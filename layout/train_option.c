/* layout/train_option.c - see layout/train_option.h. */
#include "layout/train_option.h"

#include <string.h>

const struct train_option *train_options(void)
{
    static const struct train_option options[] = {
        { 'm', "model", true },  { 'd', "data", true },    { 'n', "steps", true },
        { 'l', "layout", true }, { 't', "threads", true }, { 'q', "quiet", false },
        { 'h', "help", false },  { 0, "", false },
    };

    return options;
}

char train_option_letter(const char *name)
{
    const struct train_option *o = train_options();

    while (o->letter && strcmp(o->name, name) != 0)
        o++;
    return o->letter;
}
