/* tests/unit/orchestrator_control.c - requests from other terminals, the events file, and the
 * metrics of a status.
 *
 * covers: orchestrator/web/metrics orchestrator/state/event_log */
#include "orchestrator/web/control.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/state/event_log.h"
#include "orchestrator/state/run_record.h"
#include "orchestrator/web/metrics.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;
static const struct home HERE = { .host = "here" };

TestSuite(control, .init = temp_dir_make, .fini = temp_dir_remove, .timeout = 60);

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

    cr_expect_eq(control_ask(&reply, temp_dir, request, &err), TP_E_NOTFOUND, "no tp-run listens");
    cr_assert_eq(control_open(&c, temp_dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(path, sizeof path, "%s/control", temp_dir);
    cr_assert_eq(stat(path, &sb), 0);
    cr_expect_eq(sb.st_mode & 0777, 0600, "other users must not connect");
    pthread_create(&thread, NULL, serve, c);
    cr_assert_eq(control_ask(&reply, temp_dir, request, &err), TP_OK, "%s", err.msg);
    pthread_join(thread, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(reply, "asked")), "status");
    json_decref(reply);
    control_close(c);
    cr_expect_eq(control_ask(&reply, temp_dir, request, &err), TP_E_NOTFOUND,
                 "the server has ended");
    json_decref(request);
}

Test(control, text_that_is_not_a_request_is_refused_without_harm)
{
    static const char *const texts[] = { "", "\n", "{", "[1]\n", "\xff\xfe\n", "{}\n" };
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct control *c;
    int n = 0;

    cr_assert_eq(control_open(&c, temp_dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", temp_dir);
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

static int connect_to(const struct sockaddr_un *to)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(connect(fd, (const struct sockaddr *)to, sizeof *to), 0);
    return fd;
}

/* Serve until a request was answered. Returns the longest time that one call took. */
static double serve_one(struct control *c, int *n)
{
    double longest = 0;

    while (*n == 0) {
        struct pollfd p = { .fd = control_fd(c), .events = POLLIN };
        double begin;

        poll(&p, 1, 10);
        begin = clock_seconds();
        control_serve(c, answer, n);
        control_tick(c);
        if (clock_seconds() - begin > longest)
            longest = clock_seconds() - begin;
    }
    return longest;
}

/* One client sends nothing, others a byte at a time, and others never take their answers. */
Test(control, slow_clients_delay_no_other)
{
    enum { SLOW = 60 };
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct control *c;
    char text[256];
    int slow[SLOW], fd, n = 0;

    cr_assert_eq(control_open(&c, temp_dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", temp_dir);
    for (int i = 0; i < SLOW; i++) {
        slow[i] = connect_to(&to);
        if (i % 3 == 1)
            cr_assert_eq(write(slow[i], "{\"ve", 4), 4);
        control_serve(c, answer, &n);
    }
    fd = connect_to(&to);
    cr_assert_eq(write(fd, "{\"verb\": \"status\"}\n", 19), 19);
    cr_expect_lt(serve_one(c, &n), 4, "a call has waited: a client has 5 s");
    cr_expect_eq(n, 1);
    cr_expect_gt(recv(fd, text, sizeof text, MSG_DONTWAIT), 0, "it is answered");
    close(fd);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    control_close(c);
}

Test(control, a_request_in_pieces_is_answered)
{
    static const char request[] = "{\"verb\": \"status\"}\n";
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct control *c;
    char text[256] = "";
    int fd, n = 0;

    cr_assert_eq(control_open(&c, temp_dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", temp_dir);
    fd = connect_to(&to);
    for (size_t i = 0; i < sizeof request - 1; i++) {
        cr_assert_eq(write(fd, request + i, 1), 1);
        control_serve(c, answer, &n);
    }
    cr_expect_eq(n, 1);
    cr_expect_gt(recv(fd, text, sizeof text - 1, MSG_DONTWAIT), 0);
    cr_expect(strstr(text, "\"asked\":\"status\""), "%s", text);
    close(fd);
    control_close(c);
}

static json_t *large_answer(void *ctx, const json_t *request)
{
    char *text = calloc(1, 4 << 20);
    json_t *reply;

    ++*(int *)ctx;
    memset(text, 'x', (4 << 20) - 1);
    reply = json_pack("{s:s,s:i}", "text", text, "n", (int)json_object_size(request));
    free(text);
    return reply;
}

Test(control, an_answer_is_sent_as_the_client_takes_it)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct control *c;
    char text[65536];
    size_t total = 0;
    ssize_t got = 1;
    int fd, n = 0;

    cr_assert_eq(control_open(&c, temp_dir, &HERE, &err), TP_OK, "%s", err.msg);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", temp_dir);
    fd = connect_to(&to);
    cr_assert_eq(write(fd, "{}\n", 3), 3);
    control_serve(c, large_answer, &n);
    cr_assert_eq(n, 1);
    while (got != 0) {
        got = recv(fd, text, sizeof text, MSG_DONTWAIT);
        total += got > 0 ? (size_t)got : 0;
        control_serve(c, large_answer, &n);
    }
    cr_expect_gt(total, 4 << 20);
    cr_expect_eq(n, 1);
    close(fd);
    control_close(c);
}

/* ---- events.jsonl ---- */

Test(control, the_newest_events_are_kept_and_a_torn_line_is_skipped)
{
    struct event_log *e;
    char path[64];
    const json_t *list;

    snprintf(path, sizeof path, "%s/events.jsonl", temp_dir);
    cr_assert_eq(file_replace(path, "{\"n\": -1}\n{\"n\": ", 16, &err), TP_OK);
    cr_assert_eq(event_log_open(&e, temp_dir, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < EVENT_LOG_KEPT + 10; i++)
        cr_assert_eq(event_log_add(e, json_pack("{s:i}", "n", i), &err), TP_OK);
    list = event_log_list(e);
    cr_expect_eq(json_array_size(list), EVENT_LOG_KEPT);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(list, 0), "n")), 10);
    event_log_close(e);
    cr_assert_eq(event_log_open(&e, temp_dir, &err), TP_OK);
    list = event_log_list(e);
    cr_expect_eq(json_array_size(list), EVENT_LOG_KEPT);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(list, EVENT_LOG_KEPT - 1), "n")),
                 EVENT_LOG_KEPT + 9);
    event_log_close(e);
}

/* Let files grow only to this size, as on a disk that is full then. */
static void limit_files(rlim_t size)
{
    const struct rlimit limit = { size, RLIM_INFINITY };

    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void check_lines(const char *path, int first, int n)
{
    char line[64];
    FILE *f = fopen(path, "r");

    cr_assert_not_null(f);
    for (int i = first; i < first + n; i++) {
        char wanted[64];

        snprintf(wanted, sizeof wanted, "{\"n\": %d}\n", i);
        cr_assert_not_null(fgets(line, sizeof line, f), "no line %d", i);
        cr_assert_str_eq(line, wanted);
    }
    cr_expect_null(fgets(line, sizeof line, f), "more lines");
    fclose(f);
}

Test(control, events_that_a_full_disk_refuses_are_written_later_as_whole_lines)
{
    struct event_log *e;
    struct stat sb;
    char path[64];

    snprintf(path, sizeof path, "%s/events.jsonl", temp_dir);
    cr_assert_eq(event_log_open(&e, temp_dir, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(event_log_add(e, json_pack("{s:i}", "n", 10), &err), TP_OK);
    cr_assert_eq(stat(path, &sb), 0);
    limit_files((rlim_t)sb.st_size + 4); /* a part of the next line would fit */
    for (int i = 11; i < 15; i++)
        cr_expect_eq(event_log_add(e, json_pack("{s:i}", "n", i), &err), TP_E_IO);
    cr_expect_eq(event_log_waiting(e), 4);
    check_lines(path, 10, 1);
    limit_files(RLIM_INFINITY);
    cr_expect_eq(event_log_add(e, json_pack("{s:i}", "n", 15), &err), TP_OK, "%s", err.msg);
    check_lines(path, 10, 6);
    cr_expect_eq(event_log_waiting(e), 0);
    cr_expect_eq(event_log_take_lost(e), 0);
    event_log_close(e);
}

Test(control, events_beyond_those_that_may_wait_are_counted)
{
    struct event_log *e;
    char path[64];

    snprintf(path, sizeof path, "%s/events.jsonl", temp_dir);
    cr_assert_eq(event_log_open(&e, temp_dir, &err), TP_OK, "%s", err.msg);
    limit_files(1);
    for (int i = 0; i < EVENT_LOG_KEPT + 10; i++)
        cr_expect_eq(event_log_add(e, json_pack("{s:i}", "n", i), &err), TP_E_IO);
    limit_files(RLIM_INFINITY);
    cr_expect_eq(event_log_flush(e, &err), TP_OK, "%s", err.msg);
    check_lines(path, 10, EVENT_LOG_KEPT);
    cr_expect_eq(event_log_take_lost(e), 10);
    cr_expect_eq(event_log_take_lost(e), 0);
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
    char *text = metrics_text(&n, status, NULL);

    cr_assert_not_null(text);
    cr_expect_eq(n, strlen(text));
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        cr_expect_not_null(strstr(text, lines[i]), "no line %s", lines[i]);
    free(text);
    json_object_del(status, "loss");
    text = metrics_text(&n, status, NULL);
    cr_expect_null(strstr(text, "tp_run_loss"), "an unknown loss is not shown");
    free(text);
    json_decref(status);
}

Test(control, the_file_of_metrics_has_the_job_as_a_label)
{
    json_t *status = json_pack("{s:s,s:s,s:i,s:{s:f}}", "job", "a \"b\\\n", "state", "failed",
                               "step", 7, "spent", "lost", 1.5);
    static const char *const lines[] = {
        "tp_run_step{tp_job=\"a \\\"b\\\\ \"} 7\n",
        "tp_run_state{tp_job=\"a \\\"b\\\\ \",state=\"failed\"} 1\n",
        "tp_run_spent_seconds{tp_job=\"a \\\"b\\\\ \",cause=\"lost\"} 1.5\n",
    };
    struct arena arena = { 0 };
    char path[64], *text;
    size_t n;

    snprintf(path, sizeof path, "%s/job.prom", temp_dir);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(metrics_write(path, status, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_read_own(&text, &n, path, 1 << 16, &arena, &err), TP_OK, "%s", err.msg);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        cr_expect_not_null(strstr(text, lines[i]), "no line %s", lines[i]);
    snprintf(path, sizeof path, "%s/none/job.prom", temp_dir);
    cr_expect_eq(metrics_write(path, status, &err), TP_E_IO);
    json_decref(status);
    arena_free(&arena);
}

/* docs/tp-run/reference.md lists every metric. */
Test(control, the_page_lists_every_metric)
{
    json_t *status = json_pack("{s:f,s:f,s:f,s:{s:f}}", "loss", 1.0, "tokens_per_second", 1.0,
                               "left_seconds", 1.0, "spent", "lost", 1.0);
    struct arena arena = { 0 };
    char *page, *text, name[64];
    size_t n;

    cr_assert_eq(file_read_own(&page, &n, "docs/tp-run/reference.md", 1 << 20, &arena, &err), TP_OK,
                 "%s", err.msg);
    text = metrics_text(&n, status, NULL);
    for (const char *p = text; (p = strstr(p, "# TYPE ")); p++) {
        cr_assert_eq(sscanf(p, "# TYPE %60s", name), 1);
        cr_expect_not_null(strstr(page, arena_printf(&arena, "`%s`", name)), "no %s", name);
    }
    free(text);
    json_decref(status);
    arena_free(&arena);
}
