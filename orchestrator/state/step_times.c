/* orchestrator/state/step_times.c - see orchestrator/state/step_times.h. */
#include "orchestrator/state/step_times.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The index of a config; t->n: it has no time. */
static int find(const struct step_times *t, const struct run_config *config)
{
    char text[RUN_CONFIG_TEXT_MAX];
    int i = 0;

    run_config_format(text, config);
    while (i < t->n && strcmp(t->entry[i].config, text) != 0)
        i++;
    return i;
}

void step_times_set(struct step_times *t, const struct run_config *config, double seconds)
{
    int i = find(t, config);

    if (i == STEP_TIMES_MAX)
        return;
    if (i == t->n)
        run_config_format(t->entry[t->n++].config, config);
    t->entry[i].seconds = seconds;
}

double step_times_get(const struct step_times *t, const struct run_config *config)
{
    int i = find(t, config);

    return i < t->n ? t->entry[i].seconds : 0;
}

double step_times_longest(const struct step_times *t)
{
    double longest = 0;

    for (int i = 0; i < t->n; i++)
        longest = t->entry[i].seconds > longest ? t->entry[i].seconds : longest;
    return longest;
}

json_t *step_times_json(const struct step_times *t)
{
    json_t *o = json_object();

    for (int i = 0; i < t->n; i++)
        json_object_set_new(o, t->entry[i].config, json_real(t->entry[i].seconds));
    return o;
}

void step_times_read(struct step_times *t, const json_t *json)
{
    const char *config;
    json_t *v;

    t->n = 0;
    json_object_foreach((json_t *)(uintptr_t)json, config, v)
    {
        if (t->n == STEP_TIMES_MAX)
            break;
        snprintf(t->entry[t->n].config, RUN_CONFIG_TEXT_MAX, "%s", config);
        t->entry[t->n++].seconds = json_number_value(v);
    }
}
