/* tests/unit/reshard_pipeline_layout.c - --pipeline-model-parallel-layout of Megatron-LM.
 *
 * The numbers are those of megatron-core 0.16.1's PipelineParallelLayerLayout.
 *
 * covers: reshard/formats/megatron/pipeline_layout
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "reshard/formats/megatron/pipeline_layout.h"

enum { TEXT = 2048 };

/* Layers of the stages as text, or the error. */
static const char *read_text(const char *text)
{
    static char found[TEXT];
    struct arena arena = { 0 };
    struct pipeline_layout layout;
    struct tp_err err = { 0 };
    size_t n = 0;

    found[0] = '\0';
    if (pipeline_layout_read(&layout, text, "FILE", &arena, &err))
        snprintf(found, sizeof found, "%s", err.msg);
    else
        for (int i = 0; i < layout.n && n < TEXT; i++)
            n += (size_t)snprintf(found + n, TEXT - n, "%s%d", i ? " " : "", layout.layers[i]);
    arena_free(&arena);
    return found;
}

Test(reshard_pipeline_layout, stages_are_read)
{
    static const struct {
        const char *text, *layers;
    } cases[] = { { "Et|tL", "1 1" },
                  { "Ettt|tL", "3 1" },
                  { "E,t*4|t*2,L", "4 2" },
                  { "E|t*3|t|L", "0 3 1 0" },
                  { "Ett|(tt|)*3L", "2 2 2 2 0" },
                  { "Et(t|tt)*2|L", "2 3 2 0" },
                  { "Et(t*2|)*2tL", "3 2 1" },
                  { "Et*0|tL", "0 1" } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(read_text(cases[i].text), cases[i].layers, "%s", cases[i].text);
}

Test(reshard_pipeline_layout, what_megatron_refuses_is_refused)
{
    static const struct {
        const char *text, *word;
    } cases[] = { { "", "begin with E" },
                  { "|EtL", "begin with E" },
                  { "Et|t", "end with L" },
                  { "Et|mL", "multi-token" },
                  { "EtxL", "another letter" },
                  { "EtEL", "twice" },
                  { "Et*2*3L", "another letter" },
                  { "E(t|(t|)*2)*2L", "another letter" },
                  { "E()*2tL", "another letter" },
                  { "E(t|)*L", "another letter" },
                  { "Et*99999999999999999999999L", "too long" },
                  { "E(tttttttt)*9999|(tttttttt)*9999L", "too long" } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = read_text(cases[i].text);

        cr_assert(strstr(found, cases[i].word) && strncmp(found, "FILE: ", 6) == 0, "%s: %s",
                  cases[i].text, found);
    }
}
