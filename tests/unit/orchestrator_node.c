/* tests/unit/orchestrator_node.c - nodes are lost, excluded and used again; what is stored of them.
 */
#include "orchestrator/state/node.h"

#include <criterion/criterion.h>

static struct node_list list;

static void setup(void)
{
    node_list_add(&list, "a", 4);
    node_list_add(&list, "b", 2);
    node_list_add(&list, "c", 1);
}

static void teardown(void)
{
    node_list_free(&list);
}

TestSuite(node, .init = setup, .fini = teardown);

Test(node, ranks_are_those_of_usable_nodes_without_the_spares)
{
    cr_expect_eq(node_list_ranks(&list, 0, 100, 0), 7);
    cr_expect_eq(node_list_ranks(&list, 1, 100, 0), 6, "c is a spare");
    node_lose(node_list_find(&list, "b"));
    cr_expect_eq(node_list_ranks(&list, 1, 100, 0), 5, "c replaces b");
    cr_expect_eq(node_list_ranks(&list, 3, 100, 0), 0);
}

Test(node, slots_without_a_gpu_do_not_count_until_the_node_comes_back)
{
    struct node *a = node_list_find(&list, "a"), *b = node_list_find(&list, "b");
    json_t *json;

    a->missing = 1;
    b->missing = 2;
    cr_expect_eq(node_list_ranks(&list, 0, 100, 0), 4);
    cr_expect(node_is_usable(a, 100, 0) && !node_is_usable(b, 100, 0));
    json = node_list_json(&list, false);
    a->missing = b->missing = 0;
    node_list_read(&list, json, 100, 60);
    json_decref(json);
    cr_expect_eq(node_list_ranks(&list, 0, 100, 0), 4, "tp-run that takes over knows it");
    node_bring_back(b, 100);
    cr_expect_eq(node_list_ranks(&list, 0, 100, 0), 6);
    node_list_expect_gpus(&list);
    cr_expect_eq(node_list_ranks(&list, 0, 100, 0), 7);
}

Test(node, a_node_that_came_back_counts_after_a_stable_time)
{
    struct node *b = node_list_find(&list, "b");

    node_lose(b);
    b->faults = 2;
    node_bring_back(b, 100);
    cr_expect(node_is_usable(b, 101, 0));
    cr_expect(!node_is_usable(b, 101, 5));
    cr_expect(node_is_usable(b, 105, 5));
    cr_expect_eq(b->faults, 0);
}

Test(node, an_exclusion_ends)
{
    struct node *a = node_list_find(&list, "a");

    a->excluded_to = 100;
    cr_expect(!node_is_usable(a, 99, 0) && node_is_usable(a, 100, 0));
    node_list_forgive(&list);
    cr_expect(node_is_usable(a, 99, 0));
}

Test(node, what_is_written_is_read)
{
    struct node *a = node_list_find(&list, "a"), *b = node_list_find(&list, "b");
    json_t *json;

    a->faults = 2;
    a->excluded_to = 500;
    node_lose(b);
    json = node_list_json(&list, false);
    cr_expect_eq(json_object_size(json), 2, "nothing is stored of c");
    a->faults = 0;
    a->excluded_to = 0;
    node_bring_back(b, 10);
    node_list_read(&list, json, 400, 600);
    cr_expect(a->faults == 2 && a->excluded_to > 499 && b->down);
    json_decref(json);
}

/* Times count from the boot. After a reboot the clock starts again at 0. */
Test(node, times_of_an_earlier_boot_are_forgotten)
{
    struct node *a = node_list_find(&list, "a"), *b = node_list_find(&list, "b");
    json_t *json;

    a->excluded_to = 90000;
    node_bring_back(b, 80000);
    json = node_list_json(&list, false);
    node_list_read(&list, json, 30, 600);
    cr_expect(a->excluded_to < 1 && b->back_since < 1);
    json_decref(json);
}

Test(node, faults_of_an_earlier_version_are_read)
{
    json_t *json = json_pack("{s:{s:b,s:i}}", "a", "down", 0, "blame", 2);

    node_list_read(&list, json, 30, 600);
    cr_expect_eq(node_list_find(&list, "a")->faults, 2);
    json_decref(json);
}
