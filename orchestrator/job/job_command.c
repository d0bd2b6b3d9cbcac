/* orchestrator/job/job_command.c - see orchestrator/job/job_command.h. */
#include "orchestrator/job/job_command.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "orchestrator/job/job_option.h"

enum { OPTIONS_ADDED = 8, DEGREE_TEXT = 16 };

/* Write one word with its {names} replaced; replacements are not searched again. Returns the
 * length; out may be NULL. */
static size_t fill_into(char *out, const char *word, const char *const names[][2])
{
    size_t n = 0;

    while (*word) {
        int i = 0;

        while (names[i][0] &&
               (*word != '{' || strncmp(word, names[i][0], strlen(names[i][0])) != 0))
            i++;
        if (out && names[i][0])
            memcpy(out + n, names[i][1], strlen(names[i][1]));
        else if (out)
            out[n] = *word;
        n += names[i][0] ? strlen(names[i][1]) : 1;
        word += names[i][0] ? strlen(names[i][0]) : 1;
    }
    return n;
}

static char *fill(const char *word, const char *const names[][2], struct arena *arena)
{
    size_t n = fill_into(NULL, word, names);
    char *text = arena_array(arena, n + 1, 1);

    if (text) {
        fill_into(text, word, names);
        text[n] = 0;
    }
    return text;
}

/* Returns text. */
static const char *degree(char text[DEGREE_TEXT], int n)
{
    snprintf(text, DEGREE_TEXT, "%d", n);
    return text;
}

tp_status job_fill(struct job_words *out, const struct job *j, const struct job_words *words,
                   const struct spec *layout, int64_t attempt, struct arena *arena,
                   struct tp_err *err)
{
    char spec[SPEC_TEXT_MAX], attempt_text[24], ranks[DEGREE_TEXT], tp[DEGREE_TEXT],
        pp[DEGREE_TEXT];
    char vpp[DEGREE_TEXT], dp[DEGREE_TEXT], cp[DEGREE_TEXT], ep[DEGREE_TEXT];
    const char *const names[][2] = { { "{layout}", spec_format(spec, layout) },
                                     { "{ranks}", degree(ranks, spec_world(layout)) },
                                     { "{tp}", degree(tp, layout->tp) },
                                     { "{pp}", degree(pp, layout->pp) },
                                     { "{vpp}", degree(vpp, layout->vpp) },
                                     { "{dp}", degree(dp, layout->dp) },
                                     { "{cp}", degree(cp, layout->cp) },
                                     { "{ep}", degree(ep, layout->ep) },
                                     { "{ckpt}", j->ckpt },
                                     { "{attempt}", attempt_text },
                                     { "{state}", j->state },
                                     { NULL, NULL } };
    struct job_words w = { 0 };

    snprintf(attempt_text, sizeof attempt_text, "%lld", (long long)attempt);
    w.word = arena_array(arena, (size_t)words->n + OPTIONS_ADDED, sizeof *w.word);
    for (; w.word && w.n < words->n; w.n++)
        if (!(w.word[w.n] = fill(words->word[w.n], names, arena)))
            w.word = NULL;
    if (!w.word)
        return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    *out = w;
    return TP_OK;
}

/* Add the options of tp-train that tp-run sets. w has room for them. */
static void add_options(struct job_words *w, const struct job *j, const struct run_config *config,
                        bool must_resume, struct arena *arena)
{
    char spec[SPEC_TEXT_MAX];

    if (!job_option(j, "--layout"))
        w->word[w->n++] = arena_printf(arena, "--layout=%s", spec_format(spec, &config->spec));
    if (j->steps && !job_option(j, "--steps"))
        w->word[w->n++] = arena_printf(arena, "--steps=%lld", (long long)j->steps);
    if (config->micro)
        w->word[w->n++] = arena_printf(arena, "--micro=%lld", (long long)config->micro);
    if (config->recompute)
        w->word[w->n++] = arena_printf(arena, "--recompute=%s", recompute_name(config->recompute));
    if (!job_option(j, "--ckpt"))
        w->word[w->n++] = arena_printf(arena, "--ckpt=%s", j->ckpt);
    if (!job_option(j, "--log"))
        w->word[w->n++] = arena_printf(arena, "--log=%s/steps.jsonl", j->state);
    w->word[w->n++] = arena_strdup(arena, must_resume ? "--resume=must" : "--resume=auto");
    w->word[w->n] = NULL;
}

tp_status job_command(struct job_words *out, const struct job *j, const struct run_config *config,
                      int64_t attempt, bool must_resume, struct arena *arena, struct tp_err *err)
{
    struct job_words w;
    tp_status st = job_fill(&w, j, &j->command, &config->spec, attempt, arena, err);
    int n = 0;

    if (st)
        return st;
    if (!j->is_tp_train) {
        *out = w;
        return TP_OK;
    }
    for (int i = 0; i < w.n; i++) /* tp-run decides whether it resumes */
        if (strncmp(w.word[i], "--resume", 8) != 0)
            w.word[n++] = w.word[i];
    w.n = n;
    add_options(&w, j, config, must_resume, arena);
    for (int i = 0; i < w.n; i++)
        if (!w.word[i])
            return tp_fail(err, TP_E_NOMEM, "no memory for the command");
    *out = w;
    return TP_OK;
}

bool job_command_never_resumes(const struct job *j)
{
    bool found = false;

    for (int i = 0; i < j->command.n; i++) {
        const char *word = j->command.word[i];

        found = found || strcmp(text_base_name(word), "tp-train") == 0;
        if (strncmp(word, "--resume", 8) == 0)
            return false;
    }
    return found && !j->is_tp_train;
}
