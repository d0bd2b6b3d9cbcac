/* tests/unit/trainer_step_graph.c - which steps are queued, recorded and replayed. */
#include "trainer/step_graph.h"

#include <criterion/criterion.h>

static void begin(struct device_queue *q)
{
    (void)q;
}

static void close_graph(struct device *d, struct device_graph *g)
{
    (void)d;
    (void)g;
}

static const struct device_ops RECORDS = { .graph_begin = begin, .graph_close = close_graph },
                               RECORDS_NOT = { 0 };
static const struct device GPU = { .ops = &RECORDS }, CPU = { .ops = &RECORDS_NOT };

Test(step_graph, two_steps_are_queued_one_is_recorded_and_the_others_are_replayed)
{
    struct step_graph g;
    int made;

    step_graph_init(&g, &(struct step_graph_request){ &GPU, true, false });
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_QUEUE);
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_QUEUE);
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_RECORD);
    g.graph = (struct device_graph *)&made;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(step_graph_next(&g), STEP_GRAPH_REPLAY);
    step_graph_close(&g, (struct device *)(uintptr_t)&GPU);
    cr_assert_null(g.graph);
}

Test(step_graph, a_step_during_a_copy_of_the_state_is_queued)
{
    struct step_graph g;
    int made;

    step_graph_init(&g, &(struct step_graph_request){ &GPU, true, false });
    for (int i = 0; i < 2; i++)
        step_graph_next(&g);
    g.copying = true;
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_QUEUE);
    g.copying = false;
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_RECORD);
    g.graph = (struct device_graph *)&made;
    g.copying = true;
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_QUEUE);
    g.copying = false;
    cr_assert_eq(step_graph_next(&g), STEP_GRAPH_REPLAY);
}

Test(step_graph, says_why_no_step_is_recorded)
{
    const struct step_graph_request requests[] = { { &CPU, true, false },
                                                   { &GPU, false, false },
                                                   { &GPU, true, true } };
    const char *const why[] = { "records no graphs", "--cuda-graphs off", "experts" };

    for (int i = 0; i < 3; i++) {
        struct step_graph g;

        step_graph_init(&g, &requests[i]);
        cr_assert(g.why_not && strstr(g.why_not, why[i]));
        for (int step = 0; step < 4; step++)
            cr_assert_eq(step_graph_next(&g), STEP_GRAPH_QUEUE);
    }
}
