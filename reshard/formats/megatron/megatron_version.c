/* reshard/formats/megatron/megatron_version.c - see reshard/formats/megatron/megatron_version.h. */
#include "reshard/formats/megatron/megatron_version.h"

#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

enum { PARTS_MAX = 3, DIGITS_MAX = 6 };

/* Read "MAJOR.MINOR" or "MAJOR.MINOR.PATCH". */
static bool read_numbers(int numbers[PARTS_MAX], const char *text)
{
    for (int i = 0; i < PARTS_MAX; i++) {
        const size_t n = strspn(text, DIGITS);

        if (n < 1 || n > DIGITS_MAX)
            return false;
        numbers[i] = (int)strtol(text, NULL, 10);
        text += n;
        if (!*text)
            return i > 0;
        if (*text++ != '.')
            return false;
    }
    return false;
}

tp_status megatron_version_find(struct megatron_version *out, const char *text, struct tp_err *err)
{
    int numbers[PARTS_MAX] = { 0 };

    *out = (struct megatron_version){ 0 };
    if (!text)
        return TP_OK;
    if (!read_numbers(numbers, text))
        return tp_fail(err, TP_E_USAGE,
                       "--megatron-core %.40s: is not a version; give one as 0.12.3, without what "
                       "may follow its numbers",
                       text);
    if (numbers[0] > 0)
        return TP_OK;
    if (numbers[1] < 8)
        return tp_fail(err, TP_E_USAGE,
                       "--megatron-core %s: has no form of the distributed optimizer that is "
                       "written; 0.8 is the earliest version that has one",
                       text);
    out->model_space = numbers[1] < 15;
    out->cuts_vectors = numbers[1] >= 11;
    out->chained_names = numbers[1] < 14;
    return TP_OK;
}
