/*
 * reshard/formats/export_format.h - the formats that can be written: one table.
 *
 * A format creates its files in an empty folder and is then the target of a transfer. `finish`
 * completes what depends on the bytes, such as checksums, and puts all files on the disk.
 */
#ifndef RESHARD_FORMATS_EXPORT_FORMAT_H
#define RESHARD_FORMATS_EXPORT_FORMAT_H

#include "comm/control.h"
#include "core/err.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/upload_set.h"

/* What of the optimizer's state a format has a place for. */
enum export_state {
    EXPORT_WEIGHTS, /* nothing: weights only */
    EXPORT_MOMENTS, /* moments; the weights are their own masters, so they are written in f32 */
    EXPORT_MASTERS, /* masters and moments */
};

struct export_format {
    const char *name;  /* of --format */
    const char *title; /* for people */
    enum export_state state;
    bool cuts;                  /* its files depend on the layout */
    bool tp_only;               /* on its tp alone; the source's other axes are not kept */
    bool shards;                /* its files are limited by max_shard_bytes */
    bool q8_0;                  /* it has ggml's Q8_0 */
    bool distributed_optimizer; /* it has the state of Megatron-LM's */
    bool modules;               /* its names depend on Megatron-LM's --transformer-impl */
    bool module_names;          /* it has those of transformers' modules */
    bool param_groups;          /* its optimizer has the groups that a program makes */
    bool megatron_core;         /* its optimizer depends on the version of Megatron-core */
    bool from_itself;           /* it is written only from files of this format */
    const char *model_folder;   /* of config.json and tokenizer; NULL: the format's folder itself */
    const char *extras;         /* formats with the same text here write each other's extras
                                   (reshard/formats/pieces/piece.h); NULL: it writes none */

    /* How many rows after the vocabulary's the source of the extras has, and what is written at
     * the layout `spec` too. NULL: the format has no such rows. */
    tp_status (*padding)(int64_t *rows, const struct model *m, const struct piece_source *extras,
                         const struct spec *spec, struct arena *arena, struct tp_err *err);
    /* Create the files. All borrowed parts of q outlive the writer. After a failure nothing needs
     * to be closed. */
    tp_status (*create)(struct export_writer *w, const struct export_contents *q,
                        struct tp_err *err);
    /* The tensors go to a store: name the files and what will be written to them, before the first
     * write. The set is borrowed, and outlives the writer. TP_E_USAGE: this model cannot. */
    tp_status (*send)(struct export_writer *w, struct upload_set *to, struct tp_err *err);
    /* Several processes write the files that `create` has made on rank 0: the others get a writer
     * of the same ones. q->dir is the same folder everywhere. After all writes each process syncs
     * what it wrote (`resumable` of the endpoint); only rank 0 calls `finish`. After a failure
     * nothing needs to be closed but rank 0's writer. Collective. NULL: one process writes. */
    tp_status (*share)(struct export_writer *w, const struct export_contents *q,
                       struct comm_control *control, struct tp_err *err);
    /* After all writes, once. */
    tp_status (*finish)(struct export_writer *w, struct tp_err *err);
    /* Free it; also without finish. */
    void (*close)(struct export_writer *w);
    /* The writer is of another folder, but has the same files. Prepare `dir`, where an interrupted
     * run left such files, so that `create` can be called there: keep the bytes of tensors and the
     * file `journal`, and remove everything else. NULL: the format cannot be continued. */
    tp_status (*keep)(struct export_writer *w, const char *dir, const char *journal,
                      struct tp_err *err);
};

/* The names of all that can be written, for messages and --help, as foreign_format_list; of_own:
 * of a checkpoint of this project. */
enum { EXPORT_LIST_TEXT = 256 };
const char *export_format_list(char text[EXPORT_LIST_TEXT], const char *first,
                               const char *separator, bool of_own);

/* The format of a name; TP_E_USAGE: there is none, and the message lists them. */
tp_status export_format_find(const struct export_format **out, const char *name,
                             struct tp_err *err);

#endif
