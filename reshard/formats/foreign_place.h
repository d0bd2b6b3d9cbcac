/*
 * reshard/formats/foreign_place.h - where a checkpoint of another framework is, if it is not at the
 * path that people named: they name the folder above it or below it, a folder whose tracker names a
 * missing iteration, or what is not a checkpoint at all.
 */
#ifndef RESHARD_FORMATS_FOREIGN_PLACE_H
#define RESHARD_FORMATS_FOREIGN_PLACE_H

#include <stdbool.h>

#include "core/err.h"

/* For a local path at which nothing was detected. TP_E_NOTFOUND: the message names the folder that
 * is probably meant, or says what is there. TP_OK: there is nothing to say, or `path` is a URL or
 * no folder. */
tp_status foreign_place_check(const char *path, struct tp_err *err);

/* Whether a local folder is of another framework, although it has the name of a step: it has no
 * manifest, and a known format. */
bool foreign_place_is_step(const char *dir);

#endif
