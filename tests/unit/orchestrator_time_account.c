/* tests/unit/orchestrator_time_account.c - the time account of long runs: nothing is lost, and what
 * is shown stays small.
 *
 * covers: orchestrator/state/json_lines */
#include "orchestrator/state/time_account.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    char dir[64];
    double spent[TIME_CAUSES];
    struct time_account *account;
};

static void open_account(struct fixture *f, double now)
{
    struct tp_err err = { 0 };

    cr_assert_eq(time_account_open(&f->account, f->dir, f->spent, now, &err), TP_OK, "%s", err.msg);
}

static void begin(struct fixture *f)
{
    *f = (struct fixture){ .dir = "/tmp/time_account.XXXXXX" };
    cr_assert(mkdtemp(f->dir));
    open_account(f, 1000);
}

static void end(struct fixture *f, double now)
{
    static const char *const files[] = { "timeline.jsonl", "curve.jsonl" };
    char path[PATH_MAX];

    time_account_close(f->account, now);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        unlink(path);
    }
    rmdir(f->dir);
}

static int lines_of(const struct fixture *f, const char *name)
{
    char path[PATH_MAX];
    FILE *file;
    int c, n = 0;

    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    file = fopen(path, "re");
    cr_assert(file);
    while ((c = fgetc(file)) != EOF)
        n += c == '\n';
    fclose(file);
    return n;
}

Test(time_account, every_point_of_a_long_attempt_is_in_the_file)
{
    struct fixture f;

    begin(&f);
    for (int i = 0; i < 50000; i++)
        time_account_loss(f.account, 1, i + 1, 2.0);
    time_account_flush(f.account);
    cr_expect_eq(lines_of(&f, "curve.jsonl"), 50000);
    time_account_close(f.account, 1001);
    open_account(&f, 1002); /* reading the points again writes none */
    time_account_flush(f.account);
    cr_expect_eq(lines_of(&f, "curve.jsonl"), 50000);
    end(&f, 1003);
}

static int values, most_values; /* allocations of jansson, now and at most */

static void *count_malloc(size_t n)
{
    values++;
    most_values = values > most_values ? values : most_values;
    return malloc(n);
}

static void count_free(void *p)
{
    values -= p != NULL;
    free(p);
}

Test(time_account, reading_a_long_curve_again_takes_no_memory_for_each_of_its_points)
{
    struct fixture f;

    begin(&f);
    for (int i = 0; i < 50000; i++)
        time_account_loss(f.account, 1, i + 1, 2.0);
    time_account_close(f.account, 1001);
    json_set_alloc_funcs(count_malloc, count_free);
    open_account(&f, 1002);
    cr_expect_gt(most_values, 0);
    cr_expect_lt(most_values, 1000);
    end(&f, 1003);
}

/* Training and saving alternate, with a new start now and then. */
static double live_long(struct fixture *f, int n)
{
    double now = 1000;

    for (int i = 0; i < n; i++) {
        time_account_switch(f->account, i % 100 == 7 ? TIME_STARTING : TIME_TRAINING, now);
        now += 30;
        time_account_switch(f->account, TIME_SAVING, now);
        now += 0.5;
    }
    time_account_touch(f->account, now);
    return now;
}

Test(time_account, thousands_of_spans_are_shown_as_shares_of_time)
{
    double shown[TIME_CAUSES] = { 0 }, now;
    struct fixture f;
    json_t *o, *spans, *v;
    size_t i;

    begin(&f);
    now = live_long(&f, 9000);
    o = time_account_json(f.account, now);
    spans = json_object_get(o, "spans");
    cr_expect_leq(json_array_size(spans), 4000);
    cr_expect_gt(json_array_size(spans), 400);
    json_array_foreach(spans, i, v)
    {
        const char *cause = json_string_value(json_array_get(v, 2));
        double length =
            json_number_value(json_array_get(v, 1)) - json_number_value(json_array_get(v, 0));

        cr_expect_gt(length, 0);
        for (int c = 0; c < TIME_CAUSES; c++)
            if (strcmp(time_account_cause_name((enum time_account_cause)c), cause) == 0)
                shown[c] += length;
    }
    for (int c = 0; c < TIME_CAUSES; c++)
        cr_expect(fabs(shown[c] - f.spent[c]) <= 1e-3 * f.spent[c] + 1e-3, "%s: %g of %g",
                  time_account_cause_name((enum time_account_cause)c), shown[c], f.spent[c]);
    json_decref(o);
    time_account_flush(f.account);
    cr_expect_eq(lines_of(&f, "timeline.jsonl"), 2 * 9000 - 1, "the file has all but the last");
    end(&f, now);
}

Test(time_account, a_torn_line_does_not_damage_the_next_one)
{
    struct fixture f;
    char path[PATH_MAX];
    FILE *file;

    begin(&f);
    time_account_close(f.account, 1000.5);
    snprintf(path, sizeof path, "%s/curve.jsonl", f.dir);
    file = fopen(path, "ae");
    fputs("[1, 5, 2.5]\n[1, 6, 2.", file);
    fclose(file);
    open_account(&f, 1001);
    time_account_loss(f.account, 2, 6, 2.25);
    time_account_close(f.account, 1002);
    open_account(&f, 1003);
    {
        json_t *o = time_account_json(f.account, 1003), *curve = json_object_get(o, "curve");

        cr_expect_eq(json_array_size(curve), 2);
        cr_expect_eq(json_integer_value(json_array_get(json_array_get(curve, 1), 0)), 2);
        json_decref(o);
    }
    end(&f, 1004);
}
