/*
 * reshard/formats/hf_trainer/hf_trainer_files.h - the files beside the tensors: schedule, state of
 * random numbers, samplers. Inside reshard/formats/hf_trainer/ only.
 */
#ifndef RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_FILES_H
#define RESHARD_FORMATS_HF_TRAINER_HF_TRAINER_FILES_H

#include "reshard/formats/pieces/piece.h"

/* A file, or with a star in its name those that have a number from 0 on there: of each process, or
 * of each object. */
struct hf_trainer_file {
    const char *name;
    bool copied; /* to a folder of the same program; else it stays behind */
};

/* Note those of n that the folder of s has, by these names. */
tp_status hf_trainer_files_leave(struct piece_source *s, const struct hf_trainer_file *files,
                                 size_t n, struct tp_err *err);

/* Copy what was noted by this name into the folder `dir`. */
tp_status hf_trainer_files_copy(struct piece_source *s, const char *name, const char *dir,
                                struct tp_err *err);

#endif
