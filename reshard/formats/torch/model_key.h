/*
 * reshard/formats/torch/model_key.h - the keys under which programs save the model itself, and not
 * an average of it or another model: "model_state_dict", "state_dict", "model". Inside
 * reshard/formats/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_MODEL_KEY_H
#define RESHARD_FORMATS_TORCH_MODEL_KEY_H

#include <stddef.h>

/* How usual the last key is of n bytes of keys with dots between them, "app.model"; 0 is the most
 * usual, MODEL_KEY_OTHER is another key. */
int model_key_rank(const char *keys, size_t n);

enum { MODEL_KEY_OTHER = 7 };

#endif
