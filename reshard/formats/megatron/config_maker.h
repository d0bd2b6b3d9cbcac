/*
 * reshard/formats/megatron/config_maker.h - reads arguments of Megatron-LM, and sets members of the
 * config.json that is made from them: inside reshard/formats/megatron/ only.
 *
 * The first failure is kept, and all calls after it do nothing that matters.
 */
#ifndef RESHARD_FORMATS_MEGATRON_CONFIG_MAKER_H
#define RESHARD_FORMATS_MEGATRON_CONFIG_MAKER_H

#include <jansson.h>

#include "core/err.h"
#include "torch/pickle.h"

enum { CONFIG_MAKER_TEXT = 64, CONFIG_MAKER_NOTE = 512 };

struct config_maker {
    const struct pickle_value *args;
    const char *path; /* of the file with the arguments, for messages */
    json_t *root;     /* the config */
    char note[CONFIG_MAKER_NOTE];
    struct tp_err *err;
    tp_status st;
};

/* ---- arguments ---- */

/* An argument; NULL when it is absent or None. */
const struct pickle_value *config_maker_get(const struct config_maker *m, const char *name);

/* Whether an argument is True, or this text in capitals or not. */
bool config_maker_is(const struct config_maker *m, const char *name);
bool config_maker_is_text(const struct config_maker *m, const char *name, const char *text);

/* Fail when an argument is absent or None. */
void config_maker_need(struct config_maker *m, const char *name);

/* A whole number from 1 to 2^40, which must be there; 0 after a failure. */
int64_t config_maker_count(struct config_maker *m, const char *name);

/* A number; `fallback` when it is absent. */
double config_maker_number(struct config_maker *m, const char *name, double fallback);

/* A value as messages print it: "True", "0.5", "rope". */
const char *config_maker_text(char buf[CONFIG_MAKER_TEXT], const struct pickle_value *v);

/* Fail, because no config.json says what an argument says. `why` continues "saved with NAME
 * VALUE, ". */
void config_maker_refuse(struct config_maker *m, const char *name, const char *why);

/* ---- members of the config ---- */

/* Takes over `v`; NULL is a failure for lack of memory. */
void config_maker_set(struct config_maker *m, const char *key, json_t *v);
void config_maker_set_int(struct config_maker *m, const char *key, int64_t v);
void config_maker_set_number(struct config_maker *m, const char *key, double v);
void config_maker_set_flag(struct config_maker *m, const char *key, bool v);

#endif
