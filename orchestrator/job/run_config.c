/* orchestrator/job/run_config.c - see orchestrator/job/run_config.h. */
#include "orchestrator/job/run_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MICRO[] = " micro", AGAIN[] = " recompute-";

char *run_config_format(char buf[RUN_CONFIG_TEXT_MAX], const struct run_config *w)
{
    char spec[SPEC_TEXT_MAX], micro[32] = "";

    if (w->micro > 0)
        snprintf(micro, sizeof micro, "%s%" PRId64, MICRO, w->micro);
    snprintf(buf, RUN_CONFIG_TEXT_MAX, "%s%s%s%s", spec_format(spec, &w->spec), micro,
             w->recompute ? AGAIN : "", w->recompute ? recompute_name(w->recompute) : "");
    return buf;
}

tp_status run_config_parse(struct run_config *out, const char *text, struct tp_err *err)
{
    struct run_config w = { 0 };
    char spec[SPEC_TEXT_MAX];
    size_t n = strcspn(text, " ");
    const char *rest = text + n;
    tp_status st;

    if (n >= sizeof spec)
        return tp_fail(err, TP_E_USAGE, "\"%.80s\" is no layout", text);
    snprintf(spec, sizeof spec, "%.*s", (int)n, text);
    if ((st = spec_parse(&w.spec, spec, err)))
        return st;
    if (strncmp(rest, MICRO, strlen(MICRO)) == 0) {
        char *end;

        w.micro = strtoll(rest + strlen(MICRO), &end, 10);
        rest = w.micro > 0 ? end : rest;
    }
    if (strncmp(rest, AGAIN, strlen(AGAIN)) == 0 &&
        recompute_parse(&w.recompute, rest + strlen(AGAIN)) && w.recompute)
        rest += strlen(rest);
    if (*rest)
        return tp_fail(err, TP_E_USAGE, "\"%.80s\" is no layout, microbatch and recomputation",
                       text);
    *out = w;
    return TP_OK;
}

struct workload run_config_work(const struct workload *asked, const struct run_config *w)
{
    struct workload work = *asked;

    if (w->micro)
        work.micro_batch_size = w->micro;
    if (w->recompute)
        work.recompute = w->recompute;
    return work;
}

bool run_config_same(const struct run_config *a, const struct run_config *b)
{
    char x[RUN_CONFIG_TEXT_MAX], y[RUN_CONFIG_TEXT_MAX];

    return strcmp(run_config_format(x, a), run_config_format(y, b)) == 0;
}
