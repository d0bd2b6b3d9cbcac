/*
 * reshard/formats/upload_set.h - the files of another framework on their way to a store.
 *
 * A format creates its files in a scratch folder, with everything around the tensors, but the
 * tensors themselves go to the store in parts (storage/upload_file.h). So the scratch folder has
 * sparse files, of which only headers take space.
 */
#ifndef RESHARD_FORMATS_UPLOAD_SET_H
#define RESHARD_FORMATS_UPLOAD_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct upload_set;

/* For files of the folder `dir` that go to `to` (s3://...); both are borrowed. n_tensors: of the
 * transfer. */
tp_status upload_set_new(struct upload_set **out, const char *dir, const char *to, int n_tensors,
                         struct tp_err *err);

/* Add a file of the folder, which has its final length; it gets the numbers 0, 1, ... */
tp_status upload_set_add(struct upload_set *s, const char *path, struct tp_err *err);

/* n bytes at `offset` of a file will be written, while tensors `first` to `last` are
 * transferred. */
tp_status upload_set_expect(struct upload_set *s, int file, int64_t offset, int64_t n, int first,
                            int last, struct tp_err *err);

/* A tensor is written to so many places at the same time; everywhere: in no order. */
void upload_set_places(struct upload_set *s, int tensor, int n, bool everywhere);

/* The most bytes of parts that are in memory at the same time, if the tensors are transferred in
 * order by so many threads. */
tp_status upload_set_bytes(int64_t *out, const struct upload_set *s, int threads,
                           struct tp_err *err);

/* After all files and ranges: begin the uploads. */
tp_status upload_set_begin(struct upload_set *s, struct tp_err *err);

/* Thread safe. */
tp_status upload_set_write(struct upload_set *s, int file, int64_t offset, const void *data,
                           int64_t n, struct tp_err *err);

/* Send what is left, and wait until the store has everything. */
tp_status upload_set_finish(struct upload_set *s, struct tp_err *err);

/* Make the files appear, one after the other; remove those that have. */
tp_status upload_set_appear(struct upload_set *s, struct tp_err *err);
void upload_set_remove(struct upload_set *s);

/* Whether a file of the folder is one of these. */
bool upload_set_has(const struct upload_set *s, const char *path);

/* Free; s may be NULL. What has not appeared never does. */
void upload_set_free(struct upload_set *s);

#endif
