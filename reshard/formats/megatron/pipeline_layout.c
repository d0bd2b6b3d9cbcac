/* reshard/formats/megatron/pipeline_layout.c - see reshard/formats/megatron/pipeline_layout.h. */
#include "reshard/formats/megatron/pipeline_layout.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYOUT_BYTES = 1 << 16
}; /* of a text without repetitions; more is not a layout of a model */

/* A text that grows, up to a limit. */
struct unrolled {
    char *text;
    size_t n;
};

static bool add(struct unrolled *u, const char *text, size_t n)
{
    if (n >= LAYOUT_BYTES - u->n)
        return false;
    memcpy(u->text + u->n, text, n);
    u->n += n;
    u->text[u->n] = '\0';
    return true;
}

/* What is repeated at `at`: "(ab|)*3", or "t*3". `after` is behind it; NULL: nothing is. */
static const char *find_unit(const char *at, bool groups, const char **unit, size_t *n,
                             unsigned long *times)
{
    const char *last = groups && *at == '(' ? strchr(at, ')') : groups ? NULL : at;
    char *after = NULL;

    if (!last || (groups && last == at + 1) || last[1] != '*' || last[2] < '0' || last[2] > '9')
        return NULL;
    *unit = groups ? at + 1 : at;
    *n = groups ? (size_t)(last - at - 1) : 1;
    *times = strtoul(last + 2, &after, 10);
    return after;
}

/* Replace what is repeated, groups or letters. */
static bool unroll(struct unrolled *out, const char *text, bool groups)
{
    const char *unit, *after;
    unsigned long times;
    size_t n;
    bool fits = true;

    for (; *text && fits; text = after) {
        after = find_unit(text, groups, &unit, &n, &times);
        if (!after) {
            fits = *text == ',' || add(out, text, 1); /* commas mean nothing */
            after = text + 1;
            continue;
        }
        for (unsigned long i = 0; i < times && fits; i++)
            fits = add(out, unit, n);
    }
    return fits;
}

/* What is wrong with a text without repetitions; NULL: nothing, and its stages are counted. */
static const char *count_layers(struct pipeline_layout *out, const char *text)
{
    const size_t n = strlen(text);

    if (n == 0 || *text != 'E' || text[n - 1] != 'L')
        return "does not begin with E and end with L";
    out->n = 1;
    for (size_t i = 1; i < n - 1; i++) {
        if (text[i] == '|')
            out->n++;
        else if (text[i] == 't')
            out->layers[out->n - 1]++;
        else
            return text[i] == 'm' ? "has layers of multi-token prediction, which are not supported"
                                  : "has another letter than E, t and L, or one of them twice";
    }
    return NULL;
}

tp_status pipeline_layout_read(struct pipeline_layout *out, const char *text, const char *path,
                               struct arena *arena, struct tp_err *err)
{
    struct unrolled groups = { arena_alloc(arena, LAYOUT_BYTES), 0 },
                    all = { arena_alloc(arena, LAYOUT_BYTES), 0 };
    const char *wrong = "is too long";

    *out =
        (struct pipeline_layout){ .layers = arena_array(arena, LAYOUT_BYTES, sizeof *out->layers) };
    if (!groups.text || !all.text || !out->layers)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its pipeline stages", path);
    if (unroll(&groups, text, true) && unroll(&all, groups.text, false))
        wrong = count_layers(out, all.text);
    if (wrong)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with pipeline_model_parallel_layout %.80s, which %s", path,
                       text, wrong);
    return TP_OK;
}
