/*
 * reshard/formats/foreign.h - the formats of other frameworks that are read as pieces: a table.
 *
 * docs/formats/adding.md explains how to add one.
 */
#ifndef RESHARD_FORMATS_FOREIGN_H
#define RESHARD_FORMATS_FOREIGN_H

#include <limits.h>

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

struct foreign_format {
    const char *name;  /* of --format */
    const char *title; /* for people */
    bool (*detect)(const char *path);
    /* Add the pieces of all tensors in piece_source_path(s), under their names here. `m` is NULL
     * when there is no config.json, and none can be made; not if `fused`. */
    tp_status (*read)(struct piece_source *s, const struct model *m, struct tp_err *err);
    /* Whether the optimizer's state that was opened belongs to the weights; NULL: its names say
     * so. */
    tp_status (*check)(struct piece_source *s, struct tp_err *err);
    /* Make the text of a config.json from what else piece_source_path(s) has, and a note of what
     * was chosen; both live as long as s. *text NULL: this checkpoint does not say what model it
     * is. NULL: none of the format does. */
    tp_status (*config)(const char **text, const char **note, struct piece_source *s,
                        struct tp_err *err);
    bool fused;   /* its tensors are not those of a model, so `read` needs one of a known family */
    bool is_file; /* the path is that of a file, which a checkpoint of another format may have */
    /* The folder of the tokenizer of what is at `path`; NULL: `path` itself. */
    tp_status (*assets)(char dir[PATH_MAX], const char *path, struct tp_err *err);
    /* Of a format that is read alone: as in export_format.h. NULL: none. */
    const char *extras;
    const char *unproved; /* what its files cannot prove, for tp-ckpt verify; NULL: nothing more
                             than what is so of all formats */
};

/* Formats have second names: "torch" is "bin", "megatron-dist" is "torch_dist", "sharded_state" is
 * "vllm". The first name, or `name` itself. */
const char *foreign_format_name(const char *name);

/* The format of this name, or of what is at `path`; NULL: none. */
const struct foreign_format *foreign_format_find(const char *name);
const struct foreign_format *foreign_format_detect(const char *path);

/* Files of a folder of steps that name its newest step: of Megatron-LM, of DeepSpeed. */
enum { FOREIGN_TRACKERS = 3 };
extern const char *const foreign_trackers[FOREIGN_TRACKERS];

/* The names of all that can be read, safetensors first, for messages ("safetensors, bin, ...") and
 * --help ("auto|safetensors|bin|..."): `first` is put before them, "" or with its separator. */
enum { FOREIGN_LIST_TEXT = 256 };
const char *foreign_format_list(char text[FOREIGN_LIST_TEXT], const char *first,
                                const char *separator);

/* Safetensors as pieces; imports read them in another way. */
const struct foreign_format *foreign_format_safetensors(void);

/* foreign_format_detect, with safetensors. */
const struct foreign_format *foreign_format_detect_any(const char *path);

/* For a remote path: whether the server answers, so that what is not there is not there. Errors as
 * object_open's, but TP_E_NOTFOUND. */
tp_status foreign_reach(const char *path, struct tp_err *err);

/* Open and read `path` with at most memory_bytes for tables; 0: no limit. TP_E_BUDGET: it needs
 * more. */
tp_status foreign_open(struct piece_source **out, const struct foreign_format *format,
                       const char *path, const struct model *m, int64_t memory_bytes,
                       struct tp_err *err);

/* The number of a model's tensor in a source, or -1. The first GPT-2 has names without
 * "transformer.". */
int foreign_find(const struct piece_source *s, const char *group, const char *name);

#endif
