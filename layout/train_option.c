/* layout/train_option.c - see layout/train_option.h. */
#include "layout/train_option.h"

#include <string.h>

/* clang-format off */
static const struct train_option options[] = {
    { 'm', "model", OPT_KIND_STR },
    { 'd', "data", OPT_KIND_STR },
    { 'n', "steps", OPT_KIND_STR },
    { 'l', "layout", OPT_KIND_STR },
    { 0, "seq", OPT_KIND_STR },
    { 0, "batch", OPT_KIND_STR },
    { 0, "micro", OPT_KIND_STR },
    { 0, "dtype", OPT_KIND_STR },
    { 0, "seed", OPT_KIND_STR },
    { 0, "lr", OPT_KIND_STR },
    { 0, "min-lr", OPT_KIND_STR },
    { 0, "warmup", OPT_KIND_STR },
    { 0, "beta1", OPT_KIND_STR },
    { 0, "beta2", OPT_KIND_STR },
    { 0, "eps", OPT_KIND_STR },
    { 0, "weight-decay", OPT_KIND_STR },
    { 0, "clip", OPT_KIND_STR },
    { 0, "ckpt", OPT_KIND_STR },
    { 0, "save-every", OPT_KIND_STR },
    { 0, "keep", OPT_KIND_STR },
    { 0, "ckpt-zstd", OPT_KIND_STR_OPT },
    { 0, "resume", OPT_KIND_STR_OPT },
    { 0, "step", OPT_KIND_STR },
    { 0, "reset-optim", OPT_KIND_FLAG },
    { 0, "exit-step", OPT_KIND_STR },
    { 0, "log", OPT_KIND_STR },
    { 0, "logits", OPT_KIND_STR },
    { 'q', "quiet", OPT_KIND_FLAG },
    { 0, "device", OPT_KIND_STR },
    { 0, "cuda-graphs", OPT_KIND_STR },
    { 't', "threads", OPT_KIND_STR },
    { 0, "same-bits", OPT_KIND_STR },
    { 0, "mem", OPT_KIND_STR },
    { 0, "recompute", OPT_KIND_STR },
    { 0, "plan", OPT_KIND_STR },
    { 0, "print-plan", OPT_KIND_FLAG },
    { 0, "print-schedule", OPT_KIND_STR_OPT },
    { 'h', "help", OPT_KIND_FLAG },
    { 0, NULL, OPT_KIND_END },
};
/* clang-format on */

const struct train_option *train_options(void)
{
    return options;
}

char train_option_letter(const char *name)
{
    const struct train_option *o = options;

    while (o->name && strcmp(o->name, name) != 0)
        o++;
    return o->letter;
}
