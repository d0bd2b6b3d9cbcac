/* tests/unit/orchestrator_control.c - requests from other terminals, the events file, and the
 * metrics of a status.
 *
 * covers: orchestrator/web/metrics orchestrator/state/event_log */
#include "orchestrator/web/control.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/file.h"
#include "orchestrator/state/event_log.h"
#include "orchestrator/state/run_record.h"
#include "orchestrator/web/metrics.h"

static char dir[] = "/tmp/tp-control-XXXXXX";
static struct tp_err err;
static const struct home HERE = { .host = "here" };

static void setup(void)
{
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    file_remove_tree(dir, &err);
}

TestSuite(control, .init = setup, .fini = teardown, .timeout = 60);

static json_t *answer(void *ctx, const json_t *request)
{
    ++*(int *)ctx;
    return json_pack("{s:b,s:O}", "ok", 1, "asked", json_object_get(request, "verb"));
}

/* Serve until *n requests were answered. */
static void *serve(void *ctx)
{
    struct control *c = ctx;
    struct pollfd p = { .fd = control_fd(c), .events = POLLIN };
    int n = 0;

    while (n == 0 && poll(&p, 1, 10000) > 0)
        control_serve(c, answer, &n);
    return NULL;
}

Test(control, a_request_is_answered)
{
    struct control *c;
    struct stat sb;
    char path[64];
    json_t *request = json_pack("{s:s}", "verb", "status"), *reply = NULL;
    pthread_t thread;

    cr_expect_eq(control_ask(&reply, dir, request, &err), TP_E_NOTFOUND, "no tp-run listens");
    cr_assert_eq(control_open(&c, dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(path, sizeof path, "%s/control", dir);
    cr_assert_eq(stat(path, &sb), 0);
    cr_expect_eq(sb.st_mode & 0777, 0600, "other users must not connect");
    pthread_create(&thread, NULL, serve, c);
    cr_assert_eq(control_ask(&reply, dir, request, &err), TP_OK, "%s", err.msg);
    pthread_join(thread, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(reply, "asked")), "status");
    json_decref(reply);
    control_close(c);
    cr_expect_eq(control_ask(&reply, dir, request, &err), TP_E_NOTFOUND, "the server has ended");
    json_decref(request);
}

Test(control, text_that_is_not_a_request_is_refused_without_harm)
{
    static const char *const texts[] = { "", "\n", "{", "[1]\n", "\xff\xfe\n", "{}\n" };
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct control *c;
    int n = 0;

    cr_assert_eq(control_open(&c, dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", dir);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
        (void)!write(fd, texts[i], strlen(texts[i]));
        shutdown(fd, SHUT_WR);
        control_serve(c, answer, &n);
        close(fd);
    }
    cr_expect_leq(n, 1, "only {} is an object");
    control_close(c);
}

/* ---- events.jsonl ---- */

Test(control, the_newest_events_are_kept_and_a_torn_line_is_skipped)
{
    struct event_log *e;
    char path[64];
    const json_t *list;

    snprintf(path, sizeof path, "%s/events.jsonl", dir);
    cr_assert_eq(file_replace(path, "{\"n\": -1}\n{\"n\": ", 16, &err), TP_OK);
    cr_assert_eq(event_log_open(&e, dir, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < EVENT_LOG_KEPT + 10; i++)
        cr_assert_eq(event_log_add(e, json_pack("{s:i}", "n", i), &err), TP_OK);
    list = event_log_list(e);
    cr_expect_eq(json_array_size(list), EVENT_LOG_KEPT);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(list, 0), "n")), 10);
    event_log_close(e);
    cr_assert_eq(event_log_open(&e, dir, &err), TP_OK);
    list = event_log_list(e);
    cr_expect_eq(json_array_size(list), EVENT_LOG_KEPT);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(list, EVENT_LOG_KEPT - 1), "n")),
                 EVENT_LOG_KEPT + 9);
    event_log_close(e);
}

/* ---- metrics ---- */

Test(control, metrics_show_the_status)
{
    json_t *status =
        json_pack("{s:s,s:i,s:i,s:f,s:i,s:i,s:f,s:[{s:s},{s:s},{s:s}],s:{s:f}}", "state", "train",
                  "step", 7, "steps", 10, "loss", 2.5, "world", 4, "attempt", 3, "goodput", 0.75,
                  "nodes", "state", "up", "state", "up", "state", "down", "spent", "lost", 1.5);
    static const char *const lines[] = {
        "tp_run_step 7\n",
        "tp_run_steps 10\n",
        "tp_run_loss 2.5\n",
        "tp_run_ranks 4\n",
        "tp_run_launches_total 3\n",
        "tp_run_goodput_ratio 0.75\n",
        "tp_run_state{state=\"train\"} 1\n",
        "tp_run_state{state=\"plan\"} 0\n",
        "tp_run_nodes{state=\"up\"} 2\n",
        "tp_run_nodes{state=\"down\"} 1\n",
        "tp_run_nodes{state=\"excluded\"} 0\n",
        "tp_run_spent_seconds{cause=\"lost\"} 1.5",
    };
    size_t n;
    char *text = metrics_text(&n, status);

    cr_assert_not_null(text);
    cr_expect_eq(n, strlen(text));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        cr_expect_not_null(strstr(text, lines[i]), "no line %s", lines[i]);
    free(text);
    json_object_del(status, "loss");
    text = metrics_text(&n, status);
    cr_expect_null(strstr(text, "tp_run_loss"), "an unknown loss is not shown");
    free(text);
    json_decref(status);
}

/* docs/tp-run/reference.md lists every metric. */
Test(control, the_page_lists_every_metric)
{
    json_t *status = json_pack("{s:f,s:{s:f}}", "loss", 1.0, "spent", "lost", 1.0);
    struct arena arena = { 0 };
    char *page, *text, name[64];
    size_t n;

    cr_assert_eq(file_read_own(&page, &n, "docs/tp-run/reference.md", 1 << 20, &arena, &err), TP_OK,
                 "%s", err.msg);
    text = metrics_text(&n, status);
    for (const char *p = text; (p = strstr(p, "# TYPE ")); p++) {
        cr_assert_eq(sscanf(p, "# TYPE %60s", name), 1);
        cr_expect_not_null(strstr(page, arena_printf(&arena, "`%s`", name)), "no %s", name);
    }
    free(text);
    json_decref(status);
    arena_free(&arena);
}
