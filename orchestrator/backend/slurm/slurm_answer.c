/* orchestrator/backend/slurm/slurm_answer.c - see orchestrator/backend/slurm/slurm_answer.h. */
#include "orchestrator/backend/slurm/slurm_answer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

enum { VIEW_FIELDS = 12 }; /* of SLURM_VIEW_FORMAT; each ends with a bar */

double slurm_seconds(const char *text)
{
    const char *dash = strchr(text, '-');
    double total = 0;
    int colons = 0;

    if (text[0] < '0' || text[0] > '9')
        return -1; /* UNLIMITED, NOT_SET, INVALID */
    for (const char *p = dash ? dash + 1 : text;; colons++) {
        char *end;

        if (!isdigit((unsigned char)*p) || colons > 2)
            return -1;
        total = total * 60 + (double)strtol(p, &end, 10);
        if (!*end)
            break;
        if (*end != ':')
            return -1;
        p = end + 1;
    }
    if (colons == 0) /* "1-12": hours after the days; "90": minutes */
        total *= dash ? 3600 : 60;
    else if (dash && colons == 1)
        total *= 60;
    return total + (dash ? 86400 * (double)strtol(text, NULL, 10) : 0);
}

/* Cut off the next field of a line, which ends with '|'; squeue's words for "none" become "". */
static const char *field(char **p)
{
    char *begin = *p, *bar = strchr(begin, '|');

    *p = bar ? bar + 1 : begin + strlen(begin);
    if (bar)
        *bar = 0;
    return strcmp(begin, "(null)") == 0 || strcmp(begin, "N/A") == 0 ? "" : begin;
}

/* Find the first line with n bars, or more with `at_least`, and cut the text there; other lines are
 * warnings. */
static char *line_with_bars(char *text, int n, bool at_least)
{
    for (char *next; text; text = next) {
        int bars = 0;

        next = strchr(text, '\n');
        if (next)
            *next++ = 0;
        for (const char *p = text; *p; p++)
            bars += *p == '|';
        if (bars == n || (at_least && bars > n))
            return text;
    }
    return NULL;
}

/* "2026-11-21T16:03:15" by the local clock; -1: it is not a time. */
static time_t local_time(const char *text)
{
    struct tm t = { .tm_isdst = -1 };
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &t);

    return end && !*end ? mktime(&t) : -1;
}

/* Seconds from now to that time; -1: it is not a time. */
static double seconds_until(const char *text, time_t now)
{
    const time_t at = local_time(text);

    return at < 0 ? -1 : at > now ? difftime(at, now) : 0;
}

bool slurm_view_read(struct slurm_view *out, char *text, time_t now)
{
    double end;

    text = line_with_bars(text, VIEW_FIELDS, false);
    if (!text)
        return false;
    out->state = field(&text);
    out->reason = field(&text);
    out->left = slurm_seconds(field(&text));
    end = seconds_until(field(&text), now);
    if (end >= 0 && (out->left < 0 || end < out->left))
        out->left = end;
    out->nodes = strtoll(field(&text), NULL, 10);
    out->limit = field(&text);
    out->account = field(&text);
    out->partition = field(&text);
    out->qos = field(&text);
    out->preempted = field(&text)[0] != 0;
    out->restarts = strtol(field(&text), NULL, 10);
    out->list = field(&text);
    return true;
}

bool slurm_identity_read(struct slurm_identity *out, char *text)
{
    text = line_with_bars(text, 2, true);
    if (!text)
        return false;
    out->state = field(&text);
    out->submitted = local_time(field(&text));
    out->command = strcmp(text, "(null)") == 0 ? "" : text;
    return true;
}

long slurm_allocated(const char *text, bool *granted)
{
    static const char *const words[] = { "Granted job allocation ", "Pending job allocation " };

    for (int i = 0; i < 2; i++) {
        const char *at = strstr(text, words[i]);

        if (at) {
            *granted = i == 0;
            return strtol(at + strlen(words[i]), NULL, 10);
        }
    }
    return 0;
}

long slurm_submitted(const char *text)
{
    const char *newline = strrchr(text, '\n');
    char *end;
    long id = strtol(text = newline ? newline + 1 : text, &end, 10);

    return end != text && (*end == 0 || *end == ';') && id > 0 ? id : 0;
}

long slurm_dependent(const char *text, long job)
{
    char word[64];

    snprintf(word, sizeof word, "|afterany:%ld", job);
    for (const char *at = text ? strstr(text, word) : NULL; at; at = strstr(at + 1, word)) {
        const char *line = at;

        if (isdigit((unsigned char)at[strlen(word)]))
            continue; /* a job whose number begins with this one */
        while (line > text && line[-1] != '\n')
            line--;
        return strtol(line, NULL, 10);
    }
    return 0;
}

static bool begins_with_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strncasecmp(text, *words, strlen(*words)) == 0)
            return true;
    return false;
}

bool slurm_state_waits(const char *state)
{
    static const char *const names[] = {
        "PENDING",       "CONFIGURING",  "EXPEDITING",   "REQUEUED",    "RESV_DEL_HOLD",
        "POWER_UP_NODE", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", NULL
    };

    return text_is_one_of(state, names);
}

bool slurm_state_is_suspended(const char *state)
{
    return strcmp(state, "SUSPENDED") == 0 || strcmp(state, "STOPPED") == 0;
}

bool slurm_state_ends(const char *state)
{
    return strcmp(state, "COMPLETING") == 0 || strcmp(state, "STAGE_OUT") == 0;
}

/* squeue prints what happens to a running job (SIGNALING, RESIZING) in place of RUNNING, and new
 * versions of Slurm add such names. So the states that end a job are listed, and not these. */
bool slurm_state_runs(const char *state)
{
    static const char *const over[] = {
        "BOOT_FAIL",     "CANCELLED", "COMPLETED", "DEADLINE",      "FAILED",
        "LAUNCH_FAILED", "NODE_FAIL", "PREEMPTED", "RECONFIG_FAIL", "OUT_OF_MEMORY",
        "REVOKED",       "TIMEOUT",   NULL
    };

    return !slurm_state_waits(state) && !slurm_state_ends(state) && !text_is_one_of(state, over);
}

bool slurm_state_is_active(const char *state)
{
    return slurm_state_runs(state) && !slurm_state_is_suspended(state);
}

enum slurm_node_state slurm_node_state(const char *text, bool *answers)
{
    static const char *const down[] = {
        "down", "fail", "error", "power", "no_resp", "reboot", NULL
    };
    static const char *const unknown[] = { "unknown", NULL };
    static const char *const draining[] = { "drain", NULL };

    *answers = strchr(text, '*') == NULL;
    if (begins_with_any(text, down))
        return SLURM_NODE_DOWN;
    if (begins_with_any(text, unknown))
        return SLURM_NODE_UNKNOWN;
    return begins_with_any(text, draining) ? SLURM_NODE_DRAINING : SLURM_NODE_UP;
}

bool slurm_is_unreachable(const char *text)
{
    static const char *const words[] = { "Unable to contact slurm", "Socket timed out",
                                         "Connection refused",      "Zero Bytes were transmitted",
                                         "Connection timed out",    "try again later" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasestr(text, words[i]))
            return true;
    return false;
}

bool slurm_refused_step(const char *text)
{
    static const char *const words[] = { "Unable to confirm allocation", "Unable to create step" };

    for (const char *p = text; *p; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n");
        char line[300];

        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), p);
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
            if (strstr(line, words[i]) && slurm_is_unreachable(line))
                return true;
        p += len;
    }
    return false;
}

bool slurm_aborted_step(const char *text)
{
    return strstr(text, "aborted before step completely launched") != NULL;
}

/* Whether `node` is one of the names at the beginning of the text, which commas separate. */
static bool is_named(const char *text, const char *node)
{
    const size_t n = strlen(node);

    for (;; text++) {
        const size_t len = strcspn(text, " ,:\n");

        if (len == n && strncmp(text, node, n) == 0)
            return true;
        text += len;
        if (*text != ',')
            return false;
    }
}

bool slurm_lost_node(const char *text, const char *node)
{
    static const char *const words[] = { "failed on node ", "Node failure on " };

    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++)
        for (const char *at = text; (at = strstr(at, words[k]));) {
            at += strlen(words[k]);
            if (is_named(at, node))
                return true;
        }
    return false;
}

int slurm_rank_of_line(const char *line)
{
    static const char begin[] = "srun: error: ", task[] = ": task ";
    const char *at = strncmp(line, begin, sizeof begin - 1) == 0 ? strstr(line, task) : NULL;
    char *end;
    long rank;

    if (!at || !isdigit((unsigned char)at[sizeof task - 1]))
        return -1;
    rank = strtol(at + sizeof task - 1, &end, 10);
    if (rank >= 1 << 24 || strncmp(end, ": ", 2) != 0 || strstr(end, "exit code 143") ||
        strstr(end, "Terminated"))
        return -1;
    return (int)rank;
}
