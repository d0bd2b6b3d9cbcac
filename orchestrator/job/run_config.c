/* orchestrator/job/run_config.c - see orchestrator/job/run_config.h. */
#include "orchestrator/job/run_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MICRO[] = " micro", RECOMPUTE[] = " recompute-";

char *run_config_format(char buf[RUN_CONFIG_TEXT_MAX], const struct run_config *c)
{
    char spec[SPEC_TEXT_MAX], micro[32] = "";

    if (c->micro > 0)
        snprintf(micro, sizeof micro, "%s%lld", MICRO, (long long)c->micro);
    snprintf(buf, RUN_CONFIG_TEXT_MAX, "%s%s%s%s", spec_format(spec, &c->spec), micro,
             c->recompute ? RECOMPUTE : "", c->recompute ? recompute_name(c->recompute) : "");
    return buf;
}

tp_status run_config_parse(struct run_config *out, const char *text, struct tp_err *err)
{
    struct run_config c = { 0 };
    char spec[SPEC_TEXT_MAX];
    size_t n = strcspn(text, " ");
    const char *rest = text + n;
    tp_status st;

    if (n >= sizeof spec)
        return tp_fail(err, TP_E_USAGE, "\"%.80s\" is not a layout", text);
    snprintf(spec, sizeof spec, "%.*s", (int)n, text);
    if ((st = spec_parse(&c.spec, spec, err)))
        return st;
    if (strncmp(rest, MICRO, strlen(MICRO)) == 0) {
        char *end;

        c.micro = strtoll(rest + strlen(MICRO), &end, 10);
        rest = c.micro > 0 ? end : rest;
    }
    if (strncmp(rest, RECOMPUTE, strlen(RECOMPUTE)) == 0 &&
        recompute_parse(&c.recompute, rest + strlen(RECOMPUTE)) && c.recompute)
        rest += strlen(rest);
    if (*rest)
        return tp_fail(err, TP_E_USAGE,
                       "\"%.80s\" is not a layout with microbatch and recomputation", text);
    *out = c;
    return TP_OK;
}

struct workload run_config_work(const struct workload *asked, const struct run_config *c)
{
    struct workload work = *asked;

    if (c->micro)
        work.micro_batch_size = c->micro;
    if (c->recompute)
        work.recompute = c->recompute;
    return work;
}

bool run_config_same(const struct run_config *a, const struct run_config *b)
{
    char x[RUN_CONFIG_TEXT_MAX], y[RUN_CONFIG_TEXT_MAX];

    return strcmp(run_config_format(x, a), run_config_format(y, b)) == 0;
}
