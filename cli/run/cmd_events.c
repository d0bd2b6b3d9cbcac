/* cli/run/cmd_events.c - tp-run events JOB.yaml: prints the events: sentences on a terminal,
 * otherwise one JSON object per line. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/event_text.h"
#include "cli/run/run_context.h"

enum { FOLLOW_PAUSE_MS = 200 };

/* Wait a moment. False: the reader of standard output has ended. */
static bool reader_is_there(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO };

    return poll(&out, 1, FOLLOW_PAUSE_MS) <= 0 || !(out.revents & (POLLERR | POLLHUP));
}

/* Print a line of the events file, unless it is one that a crash has cut. */
static void print_line(const char *line, bool as_json)
{
    json_t *event = json_loads(line, 0, NULL);

    if (json_is_object(event) && as_json)
        fputs(line, stdout);
    else if (json_is_object(event))
        event_print(stdout, event);
    json_decref(event);
}

/* Read the next line. False: there is none, or its end is not there. Such a line is being written,
 * a crash has cut it, or tp-run takes it back because the disk is full. */
static bool next_line(char **line, size_t *size, FILE *f)
{
    const off_t at = ftello(f);
    const ssize_t n = getline(line, size, f);

    if (n > 0 && (*line)[n - 1] == '\n')
        return true;
    if (n > 0)
        fseeko(f, at, SEEK_SET);
    return false;
}

/* Print the events so far; with `follow`, wait for more until interrupted. */
static void copy(FILE *f, bool follow, bool as_json)
{
    char *line = NULL;
    size_t size = 0;

    do {
        while (next_line(&line, &size, f))
            print_line(line, as_json);
        fflush(stdout);
        clearerr(f);
    } while (follow && !ferror(stdout) && reader_is_there());
    free(line);
}

/* Open the events file; with `follow`, wait for a job that was just started. *f is NULL on success
 * when the reader of standard output has ended before. */
static tp_status open_events(FILE **f, const char *state, bool follow, struct tp_err *err)
{
    char path[PATH_MAX];
    bool said = false;

    snprintf(path, sizeof path, "%s/events.jsonl", state);
    while (!(*f = fopen(path, "re"))) {
        if (errno != ENOENT)
            return tp_fail_errno(err, "%s: cannot be read", path);
        if (!follow)
            return tp_fail(err, TP_E_NOTFOUND, "%s: no such file: this job has not been run", path);
        if (!said)
            report_note("tp-run", "%s: no such file yet; waiting until the job is run", path);
        said = true;
        if (!reader_is_there())
            break;
    }
    return TP_OK;
}

int cmd_run_events(int argc, char **argv)
{
    const char *path = NULL;
    bool follow = false, as_json = false;
    struct run_context c;
    struct tp_err err = { 0 };
    FILE *f = NULL;
    int code;
    const struct opt opts[] = {
        OPT_ARG("JOB.yaml", &path, "the job file, or the job's state folder"),
        OPT_FLAG('f', "follow", &follow, "wait for further events, also for the job to begin"),
        OPT_FLAG(0, "json", &as_json,
                 "print one JSON object per line (always when standard output is not a terminal)"),
        OPT_END
    };
    tp_status st;

    if (!report_options(&code, "tp-run events", opts, argc, argv,
                        "Prints what happened to the job, oldest first.", NULL))
        return code;
    st = run_context_open_state(&c, path, &err);
    if (st == TP_OK)
        st = open_events(&f, c.job.state, follow, &err);
    if (f) {
        copy(f, follow, as_json || !isatty(STDOUT_FILENO));
        fclose(f);
    }
    run_context_close(&c);
    return report_json(as_json, "tp-run", st, &err);
}
