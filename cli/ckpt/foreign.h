/*
 * cli/ckpt/foreign.h - tp-ckpt ls, show, verify and digest on checkpoints of other frameworks.
 */
#ifndef CLI_CKPT_FOREIGN_H
#define CLI_CKPT_FOREIGN_H

#include <stdbool.h>

#include "core/err.h"
#include "reshard/foreign_contents.h"

/* The option --config of these verbs. */
#define FOREIGN_CONFIG_HELP                                            \
    "config.json, for a checkpoint of Megatron-LM (default: CKPT's,\n" \
    "or one that is made from its arguments)"

/* foreign_contents_open, which also prints the note. */
tp_status foreign_open_noted(struct foreign_contents *c, const char *path, const char *config,
                             struct tp_err *err);

/* Each prints its result. `config` may be NULL. */
tp_status foreign_ls(const char *path, const char *config, bool json, struct tp_err *err);
tp_status foreign_show(const char *path, const char *config, bool json, struct tp_err *err);

/* Where one tensor is stored. TP_E_NOTFOUND: there is none of this name. */
tp_status foreign_show_tensor(const char *path, const char *config, const char *name, bool json,
                              struct tp_err *err);

/* TP_E_NO: it is damaged, which has been printed. */
tp_status foreign_verify(const char *path, const char *config, bool json, struct tp_err *err);

#endif
