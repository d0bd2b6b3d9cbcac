/*
 * cli/ckpt/foreign.h - tp-ckpt ls, show, verify and digest on checkpoints of other frameworks,
 * local or at a URL.
 */
#ifndef CLI_CKPT_FOREIGN_H
#define CLI_CKPT_FOREIGN_H

#include <stdbool.h>

#include "core/err.h"
#include "reshard/foreign_contents.h"

/* The options --config and --mem of these verbs. */
#define FOREIGN_OPTIONS(q)                                                           \
    OPT_STR(0, "config", "FILE", &(q)->config,                                       \
            "config.json, for a checkpoint of another framework (default:\n"         \
            "CKPT's, or one that is made from its arguments)"),                      \
        OPT_SIZE(0, "mem", "SIZE", &(q)->memory_bytes,                               \
                 "limit on resident memory, for a checkpoint of another framework\n" \
                 "(default 1G)")

enum { FOREIGN_MEMORY_BYTES = 1 << 30 }; /* the default of --mem */

/* foreign_contents_open, which also prints the note. */
tp_status foreign_open_noted(struct foreign_contents *c, const struct foreign_contents_request *q,
                             struct tp_err *err);

/* Each prints its result. */
tp_status foreign_ls(const struct foreign_contents_request *q, bool json, struct tp_err *err);
tp_status foreign_show(const struct foreign_contents_request *q, bool json, struct tp_err *err);

/* Where one tensor is stored. TP_E_NOTFOUND: there is none of this name. */
tp_status foreign_show_tensor(const struct foreign_contents_request *q, const char *name, bool json,
                              struct tp_err *err);

/* TP_E_NO: it is damaged, which has been printed. */
tp_status foreign_verify(const struct foreign_contents_request *q, bool json, struct tp_err *err);

#endif
