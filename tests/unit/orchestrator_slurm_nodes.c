/* tests/unit/orchestrator_slurm_nodes.c - a node is lost when Slurm and its ranks agree about it.
 *
 * The run is replaced by functions that note what they are told. Slurm's answers are texts, as its
 * controller gives them before, while and after it is started again.
 *
 * covers: orchestrator/backend/slurm/slurm_allocation orchestrator/backend/slurm/slurm_nodes
 * covers: orchestrator/backend/slurm/slurm_query */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static struct slurm_options options = { .tasks_per_node = 2, .poll = 5, .min_nodes = 1 };
static struct node_list nodes;
static struct run_record record = { .state = RUN_TRAIN, .open = true };
static struct tp_err err;
static struct slurm slurm;
static bool reports; /* the ranks of every node report */
static int lost, kept, over, taken;
static char stopped_for[40];

static void on_event(void *run, const char *event, const char *reason, const char *message,
                     json_t *more)
{
    const char *result = json_string_value(json_object_get(more, "result"));

    (void)run;
    cr_assert_str_eq(event, "allocation", "%s: %s", reason, message);
    kept += result && strcmp(result, "node_kept") == 0;
    over += result && strcmp(result, "over") == 0;
    taken += result && strcmp(result, "taken") == 0;
    json_decref(more);
}

static tp_status on_lost(void *run, struct node *node, const struct backend_cause *cause)
{
    (void)run;
    cr_assert(cause->message[0]);
    lost++;
    node_lose(node);
    return TP_OK;
}

static bool has_ranks(const void *run, const struct node *node)
{
    (void)run;
    return node != NULL;
}

static bool node_reports(const void *run, const struct node *node)
{
    (void)run;
    return reports && node;
}

static tp_status on_commit(void *run, const char *what)
{
    (void)run;
    return what ? TP_OK : TP_E_USAGE;
}

static void on_relaunch(void *run)
{
    (void)run;
}

static tp_status on_save_and_stop(void *run, const struct backend_cause *cause)
{
    (void)run;
    snprintf(stopped_for, sizeof stopped_for, "%s", cause->reason);
    return TP_OK;
}

static const struct job job = { .state = "/nonexistent", .backend_options = &options };

static const struct backend_host HOST = { .job = &job,
                                          .record = &record,
                                          .nodes = &nodes,
                                          .err = &err,
                                          .event = on_event,
                                          .commit = on_commit,
                                          .relaunch = on_relaunch,
                                          .save_and_stop = on_save_and_stop,
                                          .node_lost = on_lost,
                                          .node_has_ranks = has_ranks,
                                          .node_reports = node_reports };

static void setup(void)
{
    slurm = (struct slurm){ .host = &HOST,
                            .options = &options,
                            .allocation = { .stage = SLURM_STAGE_HELD, .job = 7, .wanted = 2 } };
    slurm.ending.cause = (struct backend_cause){ "", "" };
    for (int i = 0; i < SLURM_COMMANDS; i++)
        slurm.command[i].fd = -1;
    node_list_add(&nodes, "n1", 2);
    node_list_add(&nodes, "n2", 2);
}

static void teardown(void)
{
    node_list_free(&nodes);
}

TestSuite(slurm_nodes, .init = setup, .fini = teardown);

Test(slurm_nodes, ranks_that_report_keep_their_nodes_whatever_slurm_says)
{
    static const char *const words[] = { "unknown",  "unknown*",  "down",   "down*", "idle*",
                                         "no_resp",  "rebooting", "fail",   "",      "power_down",
                                         "drained*", "allocated", "error*", "???" };
    unsigned seed = (unsigned)time(NULL);

    printf("seed %u\n", seed);
    srand(seed);
    reports = true;
    for (int i = 0; i < 2000; i++) {
        size_t a = (size_t)rand() % (sizeof words / sizeof words[0]);
        char text[80];

        snprintf(text, sizeof text, "n1|%s\nn2|%s\n", words[a], words[(a + 3) % 14]);
        cr_assert_eq(slurm_nodes_see(&slurm, i % 7 ? text : ""), TP_OK);
        cr_assert_eq(lost, 0, "%s", text);
    }
    cr_expect_gt(kept, 0, "it is reported");
}

Test(slurm_nodes, what_slurm_says_is_reported_once)
{
    reports = true;
    for (int i = 0; i < 5; i++)
        slurm_nodes_see(&slurm, "n1|down*\nn2|allocated\n");
    cr_expect_eq(kept, 1);
}

Test(slurm_nodes, without_reports_the_word_of_slurm_counts)
{
    slurm_nodes_see(&slurm, "n1|allocated\nn2|down*\n");
    cr_expect_eq(lost, 1);
    cr_expect(nodes.node[1]->down && !nodes.node[0]->down);
}

Test(slurm_nodes, a_node_that_has_not_registered_yet_is_waited_for)
{
    bool ready;

    slurm_nodes_see(&slurm, "n1|unknown\nn2|allocated\n");
    cr_expect_eq(lost, 0, "nothing is known about it");
    cr_expect(slurm_nodes_unknown(&slurm));
    cr_assert_eq(slurm_ready(&slurm, &ready), TP_OK);
    cr_expect(!ready, "ranks are not started on a node that Slurm does not know yet");
    slurm_nodes_see(&slurm, "n1|allocated\nn2|allocated\n");
    cr_assert_eq(slurm_ready(&slurm, &ready), TP_OK);
    cr_expect(ready);
}

Test(slurm_nodes, a_node_that_never_registers_is_lost)
{
    slurm_nodes_see(&slurm, "n1|unknown\n");
    nodes.node[0]->unknown_since = clock_seconds() - 100;
    slurm_nodes_see(&slurm, "n1|unknown\n");
    cr_expect_eq(lost, 1);
    cr_expect(!slurm_nodes_unknown(&slurm), "it is not waited for");
}

Test(slurm_nodes, a_removed_node_whose_ranks_report_gets_no_new_ranks)
{
    reports = true;
    cr_assert_eq(slurm_nodes_set(&slurm, "n1\n", false), TP_OK, "%s", err.msg);
    cr_expect_eq(lost, 0);
    cr_expect_eq(node_list_ranks(&nodes, 0, clock_seconds(), 0), 2);
    reports = false;
    nodes.node[1]->removed = false;
    cr_assert_eq(slurm_nodes_set(&slurm, "n1\n", false), TP_OK, "%s", err.msg);
    cr_expect_eq(lost, 1);
}

Test(slurm_nodes, an_allocation_whose_ranks_report_exists)
{
    struct child *view = &slurm.command[SLURM_COMMAND_VIEW];

    slurm.query.asked_about = 7;
    reports = true;
    for (int i = 0; i < 3; i++) {
        slurm.query.gone_since = i ? clock_seconds() - 100 : 0;
        view->last[0] = 0; /* an empty answer */
        cr_assert_eq(slurm_viewed(&slurm, 0), TP_OK);
        snprintf(view->last, sizeof view->last, "slurm_load_jobs error: Invalid job id specified");
        cr_assert_eq(slurm_viewed(&slurm, 1), TP_OK);
    }
    cr_expect(over == 0 && slurm.allocation.job == 7);
    reports = false;
    slurm.query.gone_since = 0;
    cr_assert_eq(slurm_viewed(&slurm, 1), TP_OK);
    cr_expect_eq(over, 0, "one answer is not enough");
    slurm.query.gone_since = clock_seconds() - 100;
    cr_assert_eq(slurm_viewed(&slurm, 1), TP_OK);
    cr_expect(over == 1 && slurm.allocation.job == 0);
}

/* Slurm ends a batch job that it requeues, and squeue may say so before SIGTERM arrives. */
static void view_ends(long restarts)
{
    struct child *view = &slurm.command[SLURM_COMMAND_VIEW];
    char text[120];

    slurm.query.asked_about = 7;
    snprintf(text, sizeof text, "COMPLETING|None|10:00|N/A|2|1:00:00|a|p|q|N/A|%ld|n[1-2]|\n",
             restarts);
    view->text = text;
    snprintf(view->last, sizeof view->last, "%.60s", text);
    cr_assert_eq(slurm_viewed(&slurm, 0), TP_OK, "%s", err.msg);
    view->text = NULL;
}

Test(slurm_nodes, a_batch_job_that_slurm_requeues_is_not_over)
{
    slurm.inside = slurm.next.held = 7;
    slurm.next.restarts = 2;
    view_ends(3);
    view_ends(3);
    cr_expect(over == 0 && taken == 1 && slurm.ending.requeued && slurm.allocation.job == 7);
    cr_expect_str_eq(stopped_for, "slurm_requeued");
    free(slurm.query.view_text);
}

Test(slurm_nodes, a_batch_job_that_is_cancelled_is_over)
{
    slurm.inside = slurm.next.held = 7;
    slurm.next.restarts = 2;
    view_ends(2);
    cr_expect(over == 1 && taken == 0 && !slurm.ending.requeued && slurm.allocation.job == 0);
    cr_expect_str_empty(stopped_for);
    free(slurm.query.view_text);
}
