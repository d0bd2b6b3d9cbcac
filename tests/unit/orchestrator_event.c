/* tests/unit/orchestrator_event.c - docs/tp-run/reference.md lists the keys, events, reasons and
 * results that the code has, with the same sentences, and no others.
 *
 * covers: orchestrator/backends orchestrator/backend/local/local
 * covers: orchestrator/backend/slurm/slurm_codes orchestrator/backend/slurm/slurm_options */
#include "orchestrator/state/event.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_key.h"

static struct arena arena;
static struct tp_err err;
static char *page; /* 0-terminated */

static void setup(void)
{
    const char *path = "docs/tp-run/reference.md"; /* tests run in the root of the tree */
    char *text;
    size_t size;

    cr_assert_eq(file_read_own(&text, &size, path, 1 << 20, &arena, &err), TP_OK, "%s", err.msg);
    page = arena_printf(&arena, "%.*s", (int)size, text);
    cr_assert_not_null(page);
}

TestSuite(event, .init = setup);

/* The text from a heading to the next one. */
static const char *section(const char *heading)
{
    const char *at = strstr(page, heading), *end;

    cr_assert_not_null(at, "no heading %s", heading);
    end = strstr(at + 2, "\n#");
    return arena_printf(&arena, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
}

static int rows_of(const char *text)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, "\n| `")); p++)
        n++;
    return n;
}

/* Returns the number of codes. */
static int find_codes(const char *text, const struct event_code *codes)
{
    int n = 0;

    for (; codes && codes[n].name; n++) {
        const char *row =
            arena_printf(&arena, "\n| `%s` | %s |\n", codes[n].name, codes[n].meaning);

        cr_expect_not_null(strstr(text, row), "the page has no row%s", row);
    }
    return n;
}

Test(event, the_page_lists_every_event)
{
    const char *text = section("### Event codes");
    int n = find_codes(text, event_codes());

    for (const struct backend *const *b = backends(); *b; b++)
        n += find_codes(text, (*b)->events);
    cr_expect_eq(rows_of(text), n, "the page lists some that the code does not have");
}

Test(event, the_page_lists_every_reason)
{
    const char *text = section("### Reason codes");
    int n = find_codes(text, event_reason_codes());

    for (const struct backend *const *b = backends(); *b; b++)
        n += find_codes(text, (*b)->reasons);
    cr_expect_eq(rows_of(text), n, "the page lists some that the code does not have");
}

Test(event, the_page_lists_every_result)
{
    const char *text = section("### Result codes");
    int n = find_codes(text, event_result_codes());

    for (const struct backend *const *b = backends(); *b; b++)
        n += find_codes(text, (*b)->results);
    cr_expect_eq(rows_of(text), n, "the page lists some that the code does not have");
}

/* A script that matches one code must not match another one. */
Test(event, no_code_occurs_twice)
{
    const struct event_code *tables[] = { event_codes(), event_reason_codes(),
                                          event_result_codes() };

    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (int i = 0; tables[t][i].name; i++) {
            cr_expect(strspn(tables[t][i].name, "abcdefghijklmnopqrstuvwxyz_") ==
                      strlen(tables[t][i].name));
            for (int k = 0; k < i; k++)
                cr_expect_str_neq(tables[t][i].name, tables[t][k].name);
        }
}

Test(event, the_page_names_the_events_that_the_webhook_gets)
{
    const char *text = section("## Events");

    for (const struct event_code *c = event_codes(); c->name; c++)
        if (c->urgent)
            cr_expect_not_null(strstr(text, arena_printf(&arena, "`%s`", c->name)), "%s", c->name);
    cr_expect(event_is_urgent("failed") && !event_is_urgent("save") && !event_is_urgent("x"));
}

/* Returns the number of keys. */
static int find_keys(const struct job_key *keys)
{
    int n = 0;

    for (; keys && keys[n].kind != JOB_KIND_END; n++) {
        const struct job_key *k = &keys[n];
        const char *value = k->kind == JOB_KIND_BACKEND ? backends()[0]->job->name : k->value;
        const char *tick = value && value[0] ? "`" : "";
        const char *row =
            arena_printf(&arena, "\n| `%s%s%s` | %s%s%s |", k->section, k->section[0] ? "." : "",
                         k->name, tick, value ? value : "", tick);

        cr_expect_not_null(strstr(page, row), "the page has no row%s", row);
    }
    return n;
}

Test(event, the_page_lists_every_key_with_its_default)
{
    const char *begin = strstr(page, "## Job file"),
               *end = strstr(page, "## Environment of the ranks");
    int n = find_keys(job_keys());

    cr_assert(begin && end);
    for (const struct backend *const *b = backends(); *b; b++)
        n += find_keys((*b)->job->keys);
    cr_expect_eq(rows_of(arena_printf(&arena, "%.*s", (int)(end - begin), begin)), n,
                 "the page lists some that the code does not have");
}
