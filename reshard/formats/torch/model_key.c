/* reshard/formats/torch/model_key.c - see reshard/formats/torch/model_key.h. */
#include "reshard/formats/torch/model_key.h"

#include <string.h>

int model_key_rank(const char *keys, size_t n)
{
    static const char *const usual[MODEL_KEY_OTHER] = {
        "model_state_dict", "state_dict", "model", "module", "net", "weights", "params"
    };
    size_t begin = n;
    int rank = 0;

    while (begin > 0 && keys[begin - 1] != '.')
        begin--;
    while (rank < MODEL_KEY_OTHER &&
           (strlen(usual[rank]) != n - begin || memcmp(usual[rank], keys + begin, n - begin) != 0))
        rank++;
    return rank;
}
